"""Where else members of a placed gang could be, with all that is required of the fabric: for whoever changes
places afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from koordra.placement.gang.topology.domains import GangTopology
from koordra.placement.gang.types import GangPlaced, GangRequest, Part
from koordra.placement.index import ClusterIndex


def homes_of(gang: GangRequest, answer: GangPlaced, index: ClusterIndex) -> dict[str, frozenset[str]] | None:
    """By member that is placed, the nodes of the narrowest domain that it is required to be in with others;
    None where nothing is required. Members that are left out have no other place."""
    topology = GangTopology.of(gang, index)
    depths = dict.fromkeys([one.key for one in gang.members], 0)
    if topology.required is not None:
        depths = dict.fromkeys(depths, topology.required + 1)
    for part in _every(gang.parts):
        words = [part.required, *(layer.required for layer in part.slices)]
        levels = [topology.numbers(word, None)[0] for word in words]
        depth = max((0 if level is None else level + 1 for level in levels), default=0)
        for key in part.members.keys() & depths.keys():
            depths[key] = max(depths[key], depth)
    if not any(depths.values()):
        return None
    found = {}
    for one in answer.members:
        home = topology.paths[one.node][: depths[one.key]]
        found[one.key] = frozenset(name for name, path in topology.paths.items() if path[: len(home)] == home)
    return found


def _every(parts: Iterable[Part]) -> Iterable[Part]:
    for part in parts:
        yield part
        yield from _every(part.parts)

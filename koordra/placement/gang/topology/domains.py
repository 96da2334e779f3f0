"""The tree of domains that a gang's nodes stand in, and where the gang may stand in it.

    all nodes ─▶ zone ─▶ core ─▶ spine ─▶ block ─▶ nvlink ─▶ nodes

The levels are the cluster's (`topology.network_topology`). Those that no node knows are left out; so the
numbers of levels here are those of what is left. Of a domain only what placement needs is kept: its level,
its path, its parts (by name, as people count), how many fixed members are in it, and whether it is untouched
(nobody holds a device in it).

What the gang requires must be among the levels: what no label names cannot be promised. The node itself is a
level too, but only for who demands one.

Members that stay (`fixed`) hold their domains: a required level is theirs, and where they are costs nothing
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby

from koordra.allocator.devices.nvlink_fabric import clique_of
from koordra.api import names
from koordra.placement.gang.equivalence import natural
from koordra.placement.gang.types import Fixed, GangRequest
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.topology.network_topology import NODE, Levels, trimmed

Path = tuple[str, ...]


class TopologyUnmet(Exception):
    """What the gang requires of the fabric cannot be; the text says why."""


@dataclass(slots=True, eq=False)
class Domain:
    """`level` numbers the levels that are left, -1 is the root; `parts` are domains, or nodes below the
    narrowest level."""

    level: int
    path: Path
    parts: list[Domain | str] = field(default_factory=list)
    fixed: int = 0
    untouched: bool = True


def tree_of(paths: Mapping[str, Path], *, fixed: Mapping[str, int], touched: Set[str]) -> Domain:
    """The tree of these nodes. `fixed` counts fixed members by node, `touched` are nodes whose devices
    somebody holds."""
    root = Domain(-1, ())
    known: dict[Path, Domain] = {(): root}
    for path, nodes in groupby(paths, key=paths.__getitem__):
        chain = [root]
        for depth in range(1, len(path) + 1):
            domain = known.get(path[:depth])
            if domain is None:
                domain = known[path[:depth]] = Domain(depth - 1, path[:depth])
                chain[-1].parts.append(domain)
            chain.append(domain)
        own = list(nodes)
        chain[-1].parts += own
        stay = sum(fixed.get(node, 0) for node in own)
        untouched = touched.isdisjoint(own)
        for domain in chain:
            domain.fixed += stay
            domain.untouched = domain.untouched and untouched
    return root


@dataclass(frozen=True, slots=True)
class GangTopology:
    """`levels` are those that are left, `paths` every node's domain at each, in order of the fabric.
    `required` and `preferred` are numbers of levels, `required_name` is a name; `spared`: levels whose
    untouched domains count; `domains`: how many there are of each level.

    Where somebody demands the node as a level, it is the last part of every path.
    """

    gang: GangRequest
    index: ClusterIndex
    kept: tuple[int, ...]
    levels: tuple[str, ...]
    paths: Mapping[str, Path]
    required: int | None = None
    required_name: str = ""
    preferred: int | None = None
    spared: frozenset[int] = frozenset()
    domains: tuple[int, ...] = ()

    @classmethod
    def of(cls, gang: GangRequest, index: ClusterIndex) -> GangTopology:
        """Raises TopologyUnmet."""
        fabric = gang.levels
        whole = fabric.paths({name: _place(info) for name, info in index.nodes.items()})
        kept = trimmed(whole)
        paths = whole if len(kept) == len(fabric.levels) else _columns(whole, kept)
        required = None if gang.required is None else required_level(fabric, gang.required, kept)
        preferred = None if gang.preferred is None else preferred_level(fabric, gang.preferred, kept)
        if any(fabric.position(word) == len(fabric.levels) for word in _words(gang)):
            paths = {name: (*path, name) for name, path in paths.items()}
        ordered = sorted(paths, key=lambda name: (tuple(map(natural, paths[name])), natural(name)))
        if required is not None:
            domain_of_fixed("members that stay", gang.fixed, paths, required, str(gang.required))
        levels = tuple(fabric.names[at] for at in kept)
        return cls(
            gang,
            index,
            kept,
            levels,
            {name: paths[name] for name in ordered},
            required,
            "" if required is None else (*levels, NODE)[required],
            preferred,
            frozenset(number for number, at in enumerate(kept) if fabric.levels[at].is_spared),
            tuple(len({path[: at + 1] for path in paths.values()}) for at in range(len(levels))),
        )

    def tree(self, beside: Mapping[str, int]) -> Domain:
        """The nodes' domains, with members that stay and those `beside` (by node) as fixed ones."""
        fixed = Counter(beside)
        fixed.update(one.node for one in self.gang.fixed)
        touched = {name for name, info in self.index.nodes.items() if info.holders or name in fixed}
        return tree_of(self.paths, fixed=fixed, touched=touched)

    def numbers(self, required: str | None, preferred: str | None) -> tuple[int | None, int | None]:
        """Of levels, by their words. Raises TopologyUnmet."""
        fabric = self.gang.levels
        return (
            None if required is None else required_level(fabric, required, self.kept),
            None if preferred is None else preferred_level(fabric, preferred, self.kept),
        )

    def used(self, nodes: Collection[str]) -> list[int]:
        """In how many domains of each level these nodes are."""
        return [len({self.paths[name][: at + 1] for name in nodes}) for at in range(len(self.levels))]


def _columns(whole: Mapping[str, Path], kept: Sequence[int]) -> dict[str, Path]:
    return {name: tuple([path[at] for at in kept]) for name, path in whole.items()}


def _place(info: NodeInfo) -> Mapping[str, str]:
    """What says where the node stands between the others: its labels, and the clique as one more."""
    clique = clique_of(info.pools)
    return {names.ATTR_CLIQUE: clique, **info.labels} if clique else info.labels


def _words(gang: GangRequest) -> Iterator[str]:
    """Every level that the gang names."""
    yield from filter(None, (gang.required, gang.preferred))
    parts = list(gang.parts)
    while parts:
        part = parts.pop()
        parts += part.parts
        yield from filter(None, (part.required, part.preferred))
        for layer in part.slices:
            yield from filter(None, (layer.required, layer.preferred))


def domain_of_fixed(
    who: str, fixed: Iterable[Fixed], paths: Mapping[str, Path], level: int, word: str
) -> Path | None:
    """The domain that members who stay are in, None without such; TopologyUnmet where they are in several:
    they may break already what is required."""
    held = set()
    for one in fixed:
        if not one.node:
            continue
        if one.node not in paths:
            raise TopologyUnmet(f"member {one.key} is on node {one.node}, which is not there")
        held.add(paths[one.node][: level + 1])
    if len(held) > 1:
        where = " and ".join(path[-1] or "an unnamed one" for path in sorted(held)[:3])
        raise TopologyUnmet(f"{who} are in several domains of level {word}: {where}")
    return held.pop() if held else None


def required_level(fabric: Levels, word: str, kept: tuple[int, ...]) -> int:
    """The number of the level among those that are kept."""
    at = _position(fabric, word)
    if at == len(fabric.levels):
        return len(kept)
    if at not in kept:
        level = fabric.levels[at]
        known = f" (labels {', '.join(level.labels)})" if level.labels else ""
        raise TopologyUnmet(f"no node says which {level.name} it is in{known}")
    return kept.index(at)


def preferred_level(fabric: Levels, word: str, kept: tuple[int, ...]) -> int | None:
    """The number of the level, or of the next wider one that is known; None where there is none."""
    at = _position(fabric, word)
    if at == len(fabric.levels):
        return len(kept)
    wider = [number for number, position in enumerate(kept) if position <= at]
    return wider[-1] if wider else None


def _position(fabric: Levels, word: str) -> int:
    at = fabric.position(word)
    if at is None:
        raise TopologyUnmet(
            f"{word} is no level of the fabric; levels are {', '.join((*fabric.names, NODE))}"
        )
    return at

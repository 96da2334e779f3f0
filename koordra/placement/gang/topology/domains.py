"""The tree of domains that a gang's nodes stand in, and where the gang may stand in it.

    all nodes ─▶ zone ─▶ core ─▶ spine ─▶ block ─▶ nvlink ─▶ nodes

The nodes' labels name the domains they are in. Levels that no node knows are left out; so the numbers of
levels here are those of what is left. Of a domain only what placement needs is kept: its level, its path, its
parts (by name, as people count), how many fixed members are in it, and whether it is untouched (nobody holds
a device in it).

What the gang requires must be among the levels: what no label names cannot be promised. The node itself is a
level too, but only for who demands one.

Members that stay (`fixed`) hold their domains: a required level is theirs, and where they are costs nothing
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.devices.nvlink_fabric import clique_of
from koordra.api import names
from koordra.placement.gang.equivalence import natural
from koordra.placement.gang.types import GangRequest
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.topology.network_topology import LEVELS, NODE, NVLINK, domains_of, position, trimmed

_NAMES: Final = tuple(LEVELS)
_OPENED: Final = frozenset({"block", NVLINK})

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


def tree_of(paths: Mapping[str, Path], *, fixed: Mapping[str, int], touched: Collection[str]) -> Domain:
    """The tree of these nodes. `fixed` counts fixed members by node, `touched` are nodes whose devices
    somebody holds."""
    root = Domain(-1, ())
    known: dict[Path, Domain] = {(): root}
    for node, path in paths.items():
        chain = [root]
        for depth in range(1, len(path) + 1):
            domain = known.get(path[:depth])
            if domain is None:
                domain = known[path[:depth]] = Domain(depth - 1, path[:depth])
                chain[-1].parts.append(domain)
            chain.append(domain)
        chain[-1].parts.append(node)
        for domain in chain:
            domain.fixed += fixed.get(node, 0)
            domain.untouched = domain.untouched and node not in touched
    return root


@dataclass(frozen=True, slots=True)
class GangTopology:
    """`levels` are those that are left, `paths` every node's domain at each, in order of the fabric.
    `required` is the number of a level, and `required_name` its name."""

    gang: GangRequest
    index: ClusterIndex
    levels: tuple[str, ...]
    paths: Mapping[str, Path]
    required: int | None = None
    required_name: str = ""

    @classmethod
    def of(cls, gang: GangRequest, index: ClusterIndex) -> GangTopology:
        """Raises TopologyUnmet."""
        whole = {name: domains_of(_place(info)) for name, info in index.nodes.items()}
        kept = trimmed(whole)
        levels = tuple(_NAMES[at] for at in kept)
        paths = {name: tuple(path[at] for at in kept) for name, path in whole.items()}
        required = None if gang.required is None else _required(gang.required, kept)
        named = ""
        if required is not None:
            named = levels[required] if required < len(kept) else NODE
            if named == NODE:
                paths = {name: (*path, name) for name, path in paths.items()}
        ordered = sorted(paths, key=lambda name: (tuple(map(natural, paths[name])), natural(name)))
        if required is not None:
            _refuse_separated(gang, paths, required)
        return cls(gang, index, levels, {name: paths[name] for name in ordered}, required, named)

    def tree(self, beside: Mapping[str, int]) -> Domain:
        """The nodes' domains, with members that stay and those `beside` (by node) as fixed ones."""
        fixed = Counter(beside)
        fixed.update(one.node for one in self.gang.fixed)
        touched = {name for name, info in self.index.nodes.items() if info.holders or name in fixed}
        return tree_of(self.paths, fixed=fixed, touched=touched)

    def domains(self, nodes: Collection[str]) -> list[int]:
        """In how many domains of each level these nodes are."""
        return [len({self.paths[name][: at + 1] for name in nodes}) for at in range(len(self.levels))]

    @property
    def opened(self) -> frozenset[int]:
        """Levels whose untouched domains count."""
        return frozenset(at for at, name in enumerate(self.levels) if name in _OPENED)


def _place(info: NodeInfo) -> Mapping[str, str]:
    """What says where the node stands between the others: its labels, and the clique as one more."""
    clique = clique_of(info.pools)
    return {names.ATTR_CLIQUE: clique, **info.labels} if clique else info.labels


def _refuse_separated(gang: GangRequest, paths: Mapping[str, Path], required: int) -> None:
    """Fixed members may break already what is required."""
    held = set()
    for one in gang.fixed:
        if one.node not in paths:
            raise TopologyUnmet(f"member {one.key} is on node {one.node}, which is not there")
        held.add(paths[one.node][: required + 1])
    if len(held) > 1:
        where = " and ".join(path[-1] or "an unnamed one" for path in sorted(held)[:3])
        raise TopologyUnmet(f"members that stay are in several domains of level {gang.required}: {where}")


def _required(level: str, kept: tuple[int, ...]) -> int:
    """The number of the level among those that are kept."""
    at = position(level)
    if at is None:
        raise TopologyUnmet(f"{level} is no level of the fabric; levels are {', '.join((*_NAMES, NODE))}")
    if at == len(_NAMES):
        return len(kept)
    if at not in kept:
        known = ", ".join(LEVELS[_NAMES[at]])
        raise TopologyUnmet(f"no node says which {_NAMES[at]} it is in (labels {known})")
    return kept.index(at)

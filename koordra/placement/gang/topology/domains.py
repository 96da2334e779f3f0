"""The tree of domains that a gang's nodes stand in, where the gang may stand in it, and what counts there.

    all nodes ─▶ zone ─▶ core ─▶ spine ─▶ block ─▶ nvlink ─▶ nodes of one kind

The nodes' labels name the domains they are in. Levels that no node knows are left out; so the numbers of levels here are those of
what is left. Of a domain only what placement needs is kept: its level, its path, its parts (by name, as people count), how many fixed
members are in it, and whether it is untouched (nobody holds a device in it).

What the gang requires must be among the levels: what no label names cannot be promised. What it prefers moves to the front of
the score. The node itself is a level too, but only for who demands one.

Members that stay (`fixed`) hold their domains: a required level is theirs, and where they are costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.placement.gang.member_classes import natural
from koordra.placement.gang.score import Count, Rules
from koordra.placement.gang.types import Gang
from koordra.placement.index import ClusterIndex
from koordra.topology.network_topology import NODE, NVLINK, NetworkLevels, trimmed

_OPENED: Final = frozenset({"block", NVLINK})


Path = tuple[str, ...]


@dataclass(slots=True)
class Domain:
    """`level` numbers the levels that are left, -1 is the root; `nodes` only below the narrowest level."""

    level: int
    path: Path
    parts: list[Domain] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    fixed: int = 0
    untouched: bool = True
    known: bool = True
    """Whether a label names the domain; what is not known cannot be promised (a required level)."""


def tree_of(
    places: Mapping[str, Path],
    *,
    fixed: Mapping[str, int],
    touched: frozenset[str],
) -> Domain:
    """The tree of these nodes. `fixed` counts fixed members by node, `touched` are nodes whose devices somebody holds."""
    root = Domain(-1, ())
    known: dict[Path, Domain] = {(): root}
    for node in sorted(places, key=natural):
        path = places[node]
        chain = [root]
        for depth in range(1, len(path) + 1):
            domain = known.get(path[:depth])
            if domain is None:
                domain = known[path[:depth]] = Domain(depth - 1, path[:depth], known=bool(path[depth - 1]))
                chain[-1].parts.append(domain)
            chain.append(domain)
        chain[-1].nodes.append(node)
        for domain in chain:
            domain.fixed += fixed.get(node, 0)
            domain.untouched = domain.untouched and node not in touched
    _sort(root)
    return root


def _sort(domain: Domain) -> None:
    domain.parts.sort(key=lambda part: natural(part.path[-1]))
    for part in domain.parts:
        _sort(part)


def domains_at(root: Domain, level: int) -> list[Domain]:
    """All domains of one level, in order."""
    if root.level == level:
        return [root]
    return [found for part in root.parts for found in domains_at(part, level)]


@dataclass(slots=True)
class Scope:
    """`levels` are those that are left, `places` every node's domain at each; `required`, `slice_level` are numbers of levels.
    `remark`: why the preferred level counts for nothing."""

    gang: Gang
    index: ClusterIndex
    fabric: NetworkLevels
    levels: list[str] = field(default_factory=list)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    required: int | None = None
    slice_level: int | None = None
    remark: str = ""

    def find(self) -> str:
        """The tree's levels; a text if what the gang requires of them cannot be."""
        if self.gang.slice_size < 1:
            return f"slices of {self.gang.slice_size} members cannot be"
        whole = {name: self.fabric.place(info.labels) for name, info in self.index.nodes.items()}
        kept = trimmed(whole)
        self.levels = [self.fabric.names[at] for at in kept]
        self.places = {name: tuple(place[at] for at in kept) for name, place in whole.items()}
        for wanted in (self.gang.required, self.gang.preferred, self.gang.slice_level):
            why = self._unknown(wanted)
            if why and wanted not in (self.gang.required, self.gang.slice_level):
                self.remark = f"the preferred topology is not minded: {why}"
            elif why:
                return why
        self.required = self._position(self.gang.required)
        self.slice_level = self._position(self.gang.slice_level)
        if len(self.levels) in (self.required, self.slice_level):
            # The node is a level only for who demands one.
            self.places = {name: (*place, name) for name, place in self.places.items()}
        return self._apart() if self.required is not None else ""

    def _unknown(self, level: str | None) -> str:
        if level is None:
            return ""
        at = self.fabric.position(level)
        if at is None:
            return f"{level} is no level of the fabric; levels are {', '.join((*self.fabric.names, NODE))}"
        if at < len(self.fabric.names) and self.fabric.names[at] not in self.levels:
            known = ", ".join(self.fabric.levels[at].labels)
            return f"no node says which {self.fabric.names[at]} it is in (labels {known})"
        return ""

    def _position(self, level: str | None) -> int | None:
        at = None if level is None else self.fabric.position(level)
        if at is None:
            return None
        if at == len(self.fabric.names):
            return len(self.levels)
        return self.levels.index(self.fabric.names[at]) if self.fabric.names[at] in self.levels else None

    def _apart(self) -> str:
        """Why fixed members already break what is required."""
        lost = [one for one in self.gang.fixed if one.node not in self.places]
        if lost:
            return f"member {lost[0].key} is on node {lost[0].node}, which is not there"
        assert self.required is not None
        held = sorted({self.places[one.node][: self.required + 1] for one in self.gang.fixed})
        if len(held) > 1:
            where = " and ".join(place[-1] or "an unnamed one" for place in held[:3])
            return f"members that stay are in several domains of level {self.gang.required}: {where}"
        return ""

    def tree(self, beside: Mapping[str, int]) -> Domain:
        """The nodes' domains, with members that stay and those `beside` (by node) as fixed ones."""
        fixed = dict(beside)
        for one in self.gang.fixed:
            fixed[one.node] = fixed.get(one.node, 0) + 1
        touched = {name for name, info in self.index.nodes.items() if info.holders}
        return tree_of(self.places, fixed=fixed, touched=frozenset(touched | fixed.keys()))

    def rules(self, want: Count) -> Rules:
        """What counts when so many members of each class are spread."""
        order = list(range(len(self.levels)))
        preferred = self._position(self.gang.preferred)
        if preferred is not None and preferred in order:
            order.remove(preferred)
            order.insert(0, preferred)
        return Rules(
            want=want,
            levels=tuple(order),
            opened=frozenset(at for at, name in enumerate(self.levels) if name in _OPENED),
            required=self.required,
            slice_level=self.slice_level,
            slice_size=self.gang.slice_size,
        )

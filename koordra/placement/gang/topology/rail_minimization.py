"""As good in all that counts more, on fewer rails.

The best counts are found without a word on rails. If the gang's NICs are then on more rails than they need to
be, sets of rails are tried, small ones first: with the NICs of other rails taken away, is there a placement
that is as good in all that counts more? The first that has one is taken.

    fewest       no placement can be on fewer: the bound at which the search starts, and often ends
    known        rails that are free on most nodes come first, so good sets are met early
    admitted     a set on which some class fits on no node at all, or all together have no room by counting
                 (RailBound), is left out, and so is every smaller one inside it
    questions    what may be asked for this; who runs out keeps what was found, not proven best
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordra.allocator.devices.inventory import NIC, PublishedDevice
from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.effort import is_spent
from koordra.placement.gang.equivalence import NodeKind, natural
from koordra.placement.gang.member_assignment import Rails, rail_of
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.topology.cost_tables import Count
from koordra.placement.gang.topology.distribution import Distribution, Found
from koordra.placement.gang.topology.domains import GangTopology
from koordra.placement.gang.topology.packing import NodeCounts
from koordra.placement.gang.types import GangRequest
from koordra.placement.index import NodeInfo

_RAIL_QUESTIONS: Final = 150
_RAIL_TABLES: Final = 40_000
"""Questions to nodes, and tables times nodes, that fewer rails are worth."""

Takes = Mapping[NodeKind, NodeCounts]


@dataclass(slots=True)
class FewerRails:
    gang: GangRequest
    fitting: NodeFit
    spread: Distribution
    budget: int
    _takes: dict[Rails, Takes] = field(default_factory=dict)

    def reduced(self, found: Found, takes: Takes) -> Found:
        """The same in all that counts more, on the fewest rails."""
        fixed = self.fixed()
        used = fixed | self.used(found)
        nodes = found.counts.keys() | {one.node for one in self.gang.fixed if one.node}
        fewest = len(used)
        if found.proven and len(nodes) > 1:
            fewest = self._fewest(found, fixed, takes, len(nodes))
        if len(used) <= fewest:
            return found
        known = self._known_rails(takes, fixed)
        started = self.fitting.asked

        def is_enough() -> bool:
            return is_spent() or self.fitting.asked - started > _RAIL_QUESTIONS * self.budget

        bound = RailBound(self.fitting, self.spread.topology, found)
        # Members of each class that some node has to take, if as few nodes as now are used.
        placed = [sum(numbers) for numbers in zip(*found.counts.values(), strict=True)]
        admitted = _Admitted(
            self.fitting,
            takes,
            frozenset(known),
            tuple(-(-number // len(nodes)) for number in placed),
            lambda rails: is_enough() or bound.suffices(self._on_rails(takes, rails)),
            clean=not found.parts.get("apart"),
        )
        partly = found.size < len(self.gang.members)  # then a class may be left out as a whole
        tables = max(3, min(48, _RAIL_TABLES // len(self.fitting.kinds.of))) * self.budget
        for size in range(fewest, len(used)):
            for rails in map(frozenset, itertools.combinations(known, size)):
                if not fixed <= rails:
                    continue
                if is_enough() or not tables:
                    return replace(found, proven=False)
                if not partly and not admitted.by_some_node(rails):
                    continue
                tables -= 1
                other = self.spread.packed(self._on_rails(takes, rails), rails)
                if other.proven and other.order[:-2] == found.order[:-2] and other.size == found.size:
                    return other
        return found

    def used(self, found: Found) -> Rails:
        """By members that are placed now."""
        return frozenset(
            rail
            for node, count in found.counts.items()
            for rail in self.fitting.placed(node, count, found.rails).rails
        )

    def fixed(self) -> Rails:
        """Used by members that stay."""
        found, nodes = set(), self.fitting.engine.index.nodes
        for one in self.gang.fixed:
            allocations = [allocation for claim in one.claims if (allocation := Allocation.of_claim(claim))]
            held = {result.device for allocation in allocations for result in allocation.results}
            if held and one.node in nodes:
                found |= {rail_of(nic.plain) for nic in _nics(nodes[one.node]) if nic.id in held}
        return frozenset(found)

    def _on_rails(self, takes: Takes, rails: Rails) -> Takes:
        """What nodes take of what they took, with the NICs of other rails taken away."""
        if rails not in self._takes:
            self._takes[rails] = {
                kind: replace(self.fitting.takes(kind, rails, of=counts), alone=counts.alone)
                if counts.takes
                else counts
                for kind, counts in takes.items()
            }
        return self._takes[rails]

    def _fewest(self, found: Found, fixed: Rails, takes: Takes, nodes: int) -> int:
        """No gang like this one can be on fewer rails: its members' NICs have to be on as many nodes, and one
        member's on one.

        Where other members could have been left out, nothing is known.
        """
        if len(self.fitting.classes) > 1 and found.size < len(self.gang.members):
            return len(fixed)
        placed = [self.fitting.placed(node, count, found.rails) for node, count in found.counts.items()]
        assignments = [one for fit in placed for own in fit.assignments for one in own]
        most = max((len(one.rails) for one in assignments), default=0)
        total = sum(len(one.rails) for one in assignments if one.whole)
        types = {name for one in assignments for name in one.types}
        # NICs of one node on one rail (or VFs, if members have such). VFs and shares of a NIC: any number.
        shared = 1
        for info in {published(kind): kind.info for kind, counts in takes.items() if counts.takes}.values():
            rails = Counter(
                rail_of(nic.plain) for nic in _nics(info) if nic.plain.get(names.ATTR_TYPE) in types
            )
            shared = max(shared, *rails.values(), 1)
        return max(len(fixed), -(-max(most, -(-total // max(nodes, 1))) // shared))

    def _known_rails(self, takes: Takes, fixed: Rails) -> list[str]:
        """Those with NICs that are not given out whole, and those of members that stay; rails that are free
        on most nodes first."""
        taken, nodes = self.fitting.engine.index.taken, Counter(self.fitting.kinds.of.values())
        free: Counter[str] = Counter()
        for kind, counts in takes.items():
            if counts.takes:
                rails = {
                    rail_of(nic.plain)
                    for nic in _nics(kind.info)
                    if not taken.of(nic.id).holder
                    and (nic.device.allow_multiple_allocations or not taken.in_use(nic.id))
                }
                free.update(dict.fromkeys(rails, nodes[kind]))
        return sorted(free.keys() | fixed, key=lambda rail: (-free[rail], natural(rail)))


def _nics(info: NodeInfo) -> list[PublishedDevice]:
    return [offered for pool in info.pools for offered in pool.devices if offered.kind == NIC]


def published(kind: NodeKind) -> Hashable:
    """What nodes of the kind publish; themselves where that is like no other's."""
    return kind.info.devices.node_class or kind.info


@dataclass(slots=True)
class _Admitted:
    """Sets of rails on which every class of members fits somewhere, so many `together`; a set is out when a
    larger one is.

    `clean`: no member may be apart from its NICs.
    """

    fitting: NodeFit
    takes: Takes
    every: Rails
    together: Count
    roomy: Callable[[Rails], bool]
    clean: bool
    known: dict[Rails, bool] = field(default_factory=dict)

    def by_some_node(self, rails: Rails) -> bool:
        if rails == self.every:
            return True
        if rails not in self.known:
            self.known[rails] = (
                all(self.by_some_node(rails | {other}) for other in sorted(self.every - rails))
                and all(self._class(at, rails) for at, one in enumerate(self.fitting.classes) if one.claims)
                and self.roomy(rails)
            )
        return self.known[rails]

    def _class(self, at: int, rails: Rails) -> bool:
        """Untouched nodes first: where one of those refuses, so does every one that publishes the same."""
        count = tuple(number * (position == at) for position, number in enumerate(self.together))
        able = [kind for kind, counts in self.takes.items() if count in counts.takes]
        refused: set[Hashable] = set()
        for kind in sorted(able, key=lambda kind: (bool(kind.info.holders), natural(kind.info.name))):
            if published(kind) in refused:
                continue
            numbers = self.fitting.numbers(kind, count, rails)
            if numbers is not None and not (self.clean and numbers[0]):
                return True
            if not kind.info.holders:
                refused.add(published(kind))
        return False


@dataclass(slots=True)
class RailBound:
    """Whether a gang could have room on fewer rails, by counting alone; it only ever says no where there is
    none.

    A placement that is as good as the one `found` uses as many nodes and as many domains of each level. So
    the nodes that hold most on these rails, so many of them, must hold all members; and so must the domains
    that hold most, at every level. Asking this is a few sums over the nodes, where the tables are a whole
    packing.
    """

    fitting: NodeFit
    topology: GangTopology
    found: Found
    _domains: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)
    """Per level, and for the nodes themselves: how many may be used, and where each node is."""

    def __post_init__(self) -> None:
        nodes, paths = list(self.fitting.kinds.of), self.topology.paths
        used = self.found.counts.keys() | (self.fitting.kinds.fixed & set(nodes))
        for depth, allowed in enumerate(self.topology.used(used), start=1):
            numbers: dict[tuple[str, ...], int] = {}
            where = [numbers.setdefault(paths[name][:depth], len(numbers)) for name in nodes]
            self._domains.append((allowed, np.array(where, dtype=np.int64)))
        self._domains.append((len(used), np.arange(len(nodes), dtype=np.int64)))

    def suffices(self, takes: Takes) -> bool:
        """Whether so many nodes, and so many domains, could hold all that are placed."""
        most = {kind: max(map(sum, counts.takes), default=0) for kind, counts in takes.items()}
        holds = [most[kind] for kind in self.fitting.kinds.of.values()]
        for allowed, domain in self._domains:
            if np.sort(np.bincount(domain, weights=holds))[-allowed:].sum() < self.found.size:
                return False
        return True

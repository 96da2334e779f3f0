"""As good in all that counts more, on fewer rails.

The best counts are found without a word on rails. If the gang's NICs are then on more rails than they need to be, sets of rails are
tried, small ones first: with the NICs of other rails taken away, is there a placement that is as good in all that counts more? The first
that has one is taken.

    fewest       no placement can be on fewer: the bound at which the search starts, and often ends
    known        rails that are free on most nodes come first, so good sets are met early
    admitted     a set on which some class fits on no node at all, or all together have no room by counting (RailBound), is left out,
                 and so is every smaller one inside it
    questions    what may be asked for this; who runs out keeps what was found, not proven best
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordra.allocator.devices.inventory import NIC
from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.placement.gang.member_assignment import Rails, rail_of
from koordra.placement.gang.member_classes import natural
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.node_kinds import NodeKind
from koordra.placement.gang.score import Count, NodeCounts
from koordra.placement.gang.topology.distribution import Distribution, Found
from koordra.placement.gang.topology.domains import Scope
from koordra.placement.gang.types import Fixed, Gang

_RAIL_QUESTIONS: Final = 150
_RAIL_TABLES: Final = 40_000
"""Questions to nodes, and tables times nodes, that fewer rails are worth."""


@dataclass(slots=True)
class FewerRails:
    """The rails of one gang, and whether it needs so many."""

    gang: Gang
    fitting: NodeFit
    spread: Distribution
    budget: int
    _takes: dict[Rails, Mapping[Any, NodeCounts]] = field(default_factory=dict)

    def reduced(self, found: Found, takes: Mapping[Any, NodeCounts]) -> Found:
        """The same in all that counts more, on the fewest rails."""
        fixed = self.fixed()
        used = fixed | self.used(found)
        nodes = found.counts.keys() | {one.node for one in self.gang.fixed}
        fewest = self._fewest(found, fixed, takes) if found.proven and len(nodes) > 1 else len(used)
        if len(used) <= fewest:
            return found
        known = self._known_rails(takes, fixed)
        started = self.fitting.asked

        def is_enough() -> bool:
            return self.fitting.asked - started > _RAIL_QUESTIONS * self.budget

        bound = RailBound(
            self.fitting, self.spread.scope, found, frozenset(one.node for one in self.gang.fixed)
        )
        admitted = _Admitted(
            self.fitting,
            takes,
            frozenset(known),
            self._densest(found, len(nodes)),
            lambda rails: is_enough() or bound.suffices(self._on_rails(takes, rails)),
            clean=found.order[0] == 0,
        )
        partly = found.size < len(self.gang.members)  # then a class may be left out as a whole
        tables = max(3, min(48, _RAIL_TABLES // len(self.fitting.kinds.of))) * self.budget
        for size in range(fewest, len(used)):
            for rails in self._rail_sets(known, size, fixed):
                if is_enough() or not tables:
                    return replace(found, proven=False)
                if not partly and not admitted.by_some_node(rails):
                    continue
                tables -= 1
                other = self._limited(takes, rails)
                if other is not None and other.order[:-1] == found.order[:-1] and other.size == found.size:
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
        found: set[str] = set()
        for one in self.gang.fixed:
            if one.node in self.fitting.engine.index.nodes:
                found |= self._rails_of(one)
        return frozenset(found)

    def _densest(self, found: Found, nodes: int) -> Count:
        """Members of each class that some node has to take, if as few nodes as now are used."""
        placed = [sum(numbers) for numbers in zip(*found.counts.values(), strict=True)]
        return tuple(-(-number // nodes) for number in placed)

    def _limited(self, takes: Mapping[Any, NodeCounts], rails: Rails) -> Found | None:
        """The best counts with the NICs of other rails taken away."""
        most = self.spread.most
        other = self.spread.packed(self._on_rails(takes, rails), rails)
        self.spread.most = most
        return other if other is not None and other.proven else None

    def _on_rails(self, takes: Mapping[Any, NodeCounts], rails: Rails) -> Mapping[Any, NodeCounts]:
        """What nodes take of what they took, with the NICs of other rails taken away."""
        if rails not in self._takes:
            self._takes[rails] = {
                kind: replace(self.fitting.takes(kind, rails), alone=counts.alone) if counts.takes else counts
                for kind, counts in takes.items()
            }
        return self._takes[rails]

    def _fewest(self, found: Found, fixed: Rails, takes: Mapping[Any, NodeCounts]) -> int:
        """No gang like this one can be on fewer rails: its members' NICs have to be on as many nodes, and one member's on one.

        Where other members could have been left out, nothing is known.
        """
        if len(self.fitting.classes) > 1 and found.size < len(self.gang.members):
            return len(fixed)
        most, total = 0, 0
        types: set[str] = set()
        for node, count in found.counts.items():
            assignments = [
                assignment
                for own in self.fitting.placed(node, count, found.rails).assignments
                for assignment in own
            ]
            most = max([most, *(len(assignment.rails) for assignment in assignments)])
            total += sum(len(assignment.rails) for assignment in assignments if assignment.whole)
            types.update(name for assignment in assignments for name in assignment.types)
        nodes = len(found.counts.keys() | {one.node for one in self.gang.fixed})
        examples = {
            self.fitting.class_of(kind): self.fitting.kinds.example[kind]
            for kind, counts in takes.items()
            if counts.takes
        }
        shared = max(
            (self._most_of_one_rail(name, frozenset(types)) for name in examples.values()), default=1
        )
        return max(len(fixed), -(-max(most, -(-total // max(nodes, 1))) // shared))

    def _most_of_one_rail(self, node: str, types: frozenset[str]) -> int:
        """NICs (or VFs, if members have such) of the node on one rail. VFs and shares of a NIC: any number."""
        rails = [
            rail_of(offered.plain)
            for pool in self.fitting.engine.index.nodes[node].pools
            for offered in pool.devices
            if offered.kind == NIC and offered.plain.get(names.ATTR_TYPE) in types
        ]
        return max(map(rails.count, set(rails)), default=1)

    def _known_rails(self, takes: Mapping[Any, NodeCounts], fixed: Rails) -> list[str]:
        """Those with free NICs, and those of members that stay; rails that are free on most nodes first."""
        nodes = Counter(self.fitting.kinds.of.values())
        free: Counter[str] = Counter()
        for kind, counts in takes.items():
            if counts.takes:
                for rail in self._free_rails(kind):
                    free[rail] += nodes[kind]
        return sorted(free.keys() | fixed, key=lambda rail: (-free[rail], natural(rail)))

    def _free_rails(self, kind: NodeKind) -> Rails:
        """Rails with a NIC that is not given out whole."""
        index = self.fitting.engine.index
        return frozenset(
            rail_of(offered.plain)
            for pool in index.nodes[self.fitting.kinds.example[kind]].pools
            for offered in pool.devices
            if offered.kind == NIC
            and offered.id not in index.taken.dedicated
            and (offered.device.allow_multiple_allocations or not index.taken.in_use(offered.id))
        )

    def _rail_sets(self, known: Sequence[str], size: int, fixed: Rails) -> Iterator[Rails]:
        for chosen in itertools.combinations(known, size):
            if fixed <= set(chosen):
                yield frozenset(chosen)

    def _rails_of(self, one: Fixed) -> set[str]:
        held = set()
        for claim in one.claims:
            allocation = Allocation.of_claim(claim)
            held |= {result.device for result in allocation.results} if allocation else set()
        return {
            rail_of(offered.plain)
            for pool in (self.fitting.engine.index.nodes[one.node].pools if held else ())
            for offered in pool.devices
            if offered.id in held and offered.kind == NIC
        }


@dataclass(slots=True)
class _Admitted:
    """Sets of rails on which every class of members fits somewhere, so many `together`; a set is out when a larger one is.

    `clean`: no member may be apart from its NICs.
    """

    fitting: NodeFit
    takes: Mapping[Any, NodeCounts]
    every: Rails
    together: Count
    roomy: Callable[[Rails], bool]
    clean: bool
    known: dict[Rails, bool] = field(default_factory=dict)

    def by_some_node(self, rails: Rails) -> bool:
        if rails == self.every:
            return True
        found = self.known.get(rails)
        if found is None:
            larger = all(self.by_some_node(rails | {other}) for other in sorted(self.every - rails))
            found = self.known[rails] = (
                larger
                and all(self._class(at, rails) for at, one in enumerate(self.fitting.classes) if one.claims)
                and self.roomy(rails)
            )
        return found

    def _class(self, at: int, rails: Rails) -> bool:
        """Untouched nodes first: where one of those refuses, so does every one that publishes the same."""
        count = tuple(number * (position == at) for position, number in enumerate(self.together))
        kinds, nodes = self.fitting.kinds, self.fitting.engine.index.nodes
        able = [(kinds.example[kind], kind) for kind, counts in self.takes.items() if count in counts.takes]
        refused: set[Hashable] = set()
        for name, kind in sorted(able, key=lambda one: (bool(nodes[one[0]].holders), natural(one[0]))):
            published = self.fitting.class_of(kind)
            if published in refused:
                continue
            numbers = self.fitting.numbers(kind, count, rails)
            if numbers is not None and not (self.clean and numbers[0]):
                return True
            if not nodes[name].holders:
                refused.add(published)
        return False


@dataclass(slots=True)
class RailBound:
    """Whether a gang could have room on fewer rails, by counting alone; it only ever says no where there is none.

    A placement that is as good as the one `found` uses as many nodes and as many domains of each level. So the nodes that hold most
    on these rails, so many of them, must hold all members; and so must the domains that hold most, at every level. Asking this is a
    few sums over the nodes, where the tables are a whole packing.
    """

    fitting: NodeFit
    scope: Scope
    found: Found
    fixed: frozenset[str]
    _kinds: dict[Hashable, int] = field(default_factory=dict)
    _kind_of: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _domains: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)

    def suffices(self, takes: Mapping[Any, NodeCounts]) -> bool:
        """Whether so many nodes, and so many domains, could hold all that are placed."""
        if not self._kinds:
            self._count()
        most = np.zeros(len(self._kinds), dtype=np.int64)
        for kind, counts in takes.items():
            most[self._kinds[kind]] = max(map(sum, counts.takes), default=0)
        holds = most[self._kind_of]
        for allowed, domain in self._domains:
            together = np.bincount(domain, weights=holds)
            if np.sort(together)[-allowed:].sum() < self.found.size:
                return False
        return True

    def _count(self) -> None:
        """Per level, and for the nodes themselves: how many may be used, and where each node is."""
        nodes = list(self.fitting.kinds.of)
        self._kinds = {kind: number for number, kind in enumerate(self.fitting.kinds.example)}
        self._kind_of = np.array([self._kinds[self.fitting.kinds.of[name]] for name in nodes], dtype=np.int64)
        used = self.found.counts.keys() | (self.fixed & set(nodes))
        for depth in range(1, len(self.scope.levels) + 1):
            numbers: dict[tuple[str, ...], int] = {}
            place = [self.scope.places[name][:depth] for name in nodes]
            where = np.array([numbers.setdefault(one, len(numbers)) for one in place], dtype=np.int64)
            self._domains.append((len({self.scope.places[name][:depth] for name in used}), where))
        self._domains.append((len(used), np.arange(len(nodes), dtype=np.int64)))

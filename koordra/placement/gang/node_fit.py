"""What fits on one node: how many members of each class at the same time, and on which devices.

    kinds       nodes that give the same answers: one of them is asked (equivalence.py)
    counts      asked for from small to large
    answers     kept with the engine's request classes, else from device tables, else searched for
                (node_search.py)

What does not fit is not asked for with more on top, for taking a member away never makes a placement
impossible.

    node ─▶ its NodeClass ─▶ the table for what is asked ─▶ what is in use here, as bits
                                                               ├▶ sets of devices for every count
                                                               └▶ assignments, for the counts that are chosen

A table (member_device_sets.py) is made once for all nodes of a NodeClass; of each node only what is in use
counts. Tables are kept with the request class, and so are the answers of a NodeClassUsage: a node that did
not change costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul
from typing import Any, Final

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import Usage
from koordra.allocator.offer import Offer
from koordra.allocator.score import effective_policy
from koordra.allocator.search.solution import Placed
from koordra.effort import is_spent, spend
from koordra.placement.candidates.node_scoring import WHOLE, cost_with_members
from koordra.placement.decide import Engine
from koordra.placement.gang.equivalence import MemberClass, NodeKind, NodeKinds
from koordra.placement.gang.member_assignment import BARE, Alike, Fit, Rails, by_class, fit_of
from koordra.placement.gang.member_device_sets import Free, MemberDeviceSets, TableAnswer, table_of
from koordra.placement.gang.node_search import NodeSearch, together
from koordra.placement.gang.topology.cost_tables import Count
from koordra.placement.gang.topology.packing import NodeCounts
from koordra.placement.index import NodeInfo
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_MOST_COUNTS: Final = 3_000
"""Counts that are tried on one kind of node (many classes that ask differently)."""

_COMPARED: Final = 32
"""Classes that a step compares in two counts."""

_MOST_KEPT: Final = 1 << 14


@dataclass(slots=True)
class NodeFit:
    """Asks nodes for one gang. Not thread-safe. `asked`: questions to nodes that were not answered before;
    `unknown`: some answer is not the last word, since a search ran out of budget, or there were too many
    counts."""

    classes: Sequence[MemberClass]
    engine: Engine
    kinds: NodeKinds
    searching: NodeSearch
    budget: int = 1
    unknown: bool = False
    asked: int = 0
    _alike: dict[Count, Alike] = field(default_factory=dict)

    def takes(
        self, kind: NodeKind, rails: Rails | None = None, *, of: NodeCounts | None = None
    ) -> NodeCounts:
        """All counts that fit on a node of the kind. `of`: what it takes on all rails."""
        found = self._counts(kind, rails, of)
        if not self.kinds.scores and not any(kind.avoided):
            return found
        most = 1 + (WHOLE * sum(len(one.members) for one in self.classes) if self.kinds.scores else 0)
        return replace(
            found,
            full={
                count: most * sum(map(mul, count, kind.avoided)) + self._full(kind, count, rails)
                for count in found.takes
            },
        )

    def _full(self, kind: NodeKind, count: Count, rails: Rails | None) -> int:
        """What a node of the kind with these members costs by the operator's weights."""
        if not self.kinds.scores:
            return 0

        def placed() -> list[Placed]:
            fit = self.fit(kind, count, rails)
            assert fit is not None
            return [one for own in fit.assignments for member in own for _, one in member.given]

        members = list(zip(self.kinds.scores, count, strict=True))
        return cost_with_members(members, kind.info, kind.rooms, alone=self.kinds.by_identity, placed=placed)

    def _counts(self, kind: NodeKind, rails: Rails | None, of: NodeCounts | None) -> NodeCounts:
        by_table = self._takes_by_table(kind, rails)
        if by_table is not None:
            return by_table
        found: dict[Count, tuple[int, int]] = {}
        zero = (0,) * len(self.classes)
        reached, frontier = {zero}, [zero]
        while frontier:
            following: list[Count] = []
            for base in frontier:
                for at, one in enumerate(self.classes):
                    count = (*base[:at], base[at] + 1, *base[at + 1 :])
                    if count in reached or count[at] > len(one.members) or not kind.suits[at]:
                        continue
                    reached.add(count)
                    spend(1 + len(count) // _COMPARED)
                    if len(reached) > _MOST_COUNTS * self.budget or is_spent():
                        self.unknown = True
                        continue
                    has_room = self.kinds.has_room(kind, count) if of is None else count in of.takes
                    if not has_room or not _all_smaller(count, found, zero):
                        continue
                    numbers = self.numbers(kind, count, rails)
                    if numbers is not None:
                        found[count] = numbers
                        following.append(count)
            frontier = following
        return NodeCounts(found, kind.fixed, max(map(sum, found), default=0))

    def _takes_by_table(self, kind: NodeKind, rails: Rails | None) -> NodeCounts | None:
        """The same where there is one class, and a table has all that it asks."""
        if len(self.classes) != 1 or not kind.suits[0]:
            return None
        known = self._from_table(kind, self._alike_of((1,)), rails)
        if known is None or known.table.preferred:
            return None
        found = dict[Count, tuple[int, int]]()
        for number, numbers in enumerate(known.numbers[: len(self.classes[0].members)], start=1):
            if not self.kinds.has_room(kind, (number,)):
                break
            found[number,] = numbers
        spend(1 + len(found))
        return NodeCounts(found, kind.fixed, len(found))

    def numbers(self, kind: NodeKind, count: Count, rails: Rails | None = None) -> tuple[int, int] | None:
        """How good the node's answer to a count is (apart, spare); None where the count does not fit."""
        alike = self._alike_of(count)
        known = self._from_table(kind, alike, rails)
        if known is not None:
            number = len(alike[0][1])
            if number <= len(known.numbers):
                return known.numbers[number - 1]
            if not known.table.preferred:
                return None
        fit = self.fit(kind, count, rails)
        return None if fit is None else (fit.apart, fit.spare)

    def fit(self, kind: NodeKind, count: Count, rails: Rails | None = None) -> Fit | None:
        """The answer of nodes of the kind to a count, by the rails allowed."""
        alike = self._alike_of(count)
        if not alike:
            return Fit(tuple((BARE,) * number for number in count), 0, 0, frozenset())
        fit = self._answer(kind, alike, rails)
        return None if fit is None else by_class(fit, self.classes, count)

    def placed(self, node: str, count: Count, rails: Rails | None) -> Fit:
        """The answer to a count that is known to fit on the node."""
        fit = self.fit(self.kinds.of[node], count, rails)
        assert fit is not None
        return fit

    def _alike_of(self, count: Count) -> Alike:
        """How many members ask the same of devices. Classes may differ in nothing but CPU or in the nodes
        that are excluded."""
        if count not in self._alike:
            found: dict[RequestClass, list[ResolvedGroup]] = {}
            for one, number in zip(self.classes, count, strict=True):
                if one.claims and number:
                    found.setdefault(one.devices, []).extend(one.resolved_groups[:number])
            self._alike[count] = list(found.items())
        return self._alike[count]

    def _answer(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> Fit | None:
        """The answer that is kept with the first request class; one that was sought in vain is sought again
        with a larger budget."""
        kept = _kept(alike[0][0], "fits")
        key: Hashable = (kind.where, tuple((asks, len(own)) for asks, own in alike), rails)
        known: tuple[Fit | None, int] | None = kept.get(key)
        if known is None or 0 < known[1] < self.budget:
            self.asked += 1
            fit, unknown = self._fit(kind, alike, rails), False
            if fit is None:
                fit, unknown = self.searching.search(kind.info, alike, rails)
            known = kept[key] = fit, self.budget if unknown else 0
        self.unknown = self.unknown or known[1] > 0
        return known[0]

    def _fit(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> Fit | None:
        """The assignments by a table."""
        known, members = self._from_table(kind, alike, rails), alike[0][1]
        if known is None or len(members) > len(known.numbers):
            return None
        asked, state = together(self.engine, members).asked, known.table.state
        requests = iter([request for claim in asked for request in claim.requests])
        placed = []
        for own in known.table.divided(known.table.best(len(members), known.free), len(members)):
            for taken, request in zip(known.table.own[own], requests, strict=False):
                wanted = request.alternatives[0]
                for device in taken:
                    verdict = state.verdict(wanted, device)
                    assert verdict.demand is not None
                    shared = state.shared[device]
                    placed.append(Placed(wanted, device, verdict.demand if shared else Demand({}), shared))
        offers = [Offer(kind.info.name, asked, state.devices, tuple(placed))]
        fit = fit_of(alike, offers, taken=self.engine.index.taken)
        return replace(fit, spare=known.numbers[len(members) - 1][1])

    def _from_table(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> TableAnswer | None:
        """What nodes of the kind say to members that all ask the same; None where no table has it."""
        if len(alike) != 1:
            return None
        ((asks, members),) = alike
        known, key = _kept(asks, "sets"), (kind.where, rails)
        if key not in known:
            if rails is None:
                table = self._table(kind, asks, members[0])
                free = None if table is None else self._free(kind.info, table)
            else:
                every = self._from_table(kind, alike, None)
                table = None if every is None else every.table
                free = None if every is None else every.table.on_rails(every.free, rails)
            known[key] = None if table is None or free is None else table.answer(free)
        found: TableAnswer | None = known[key]
        return found

    def _table(self, kind: NodeKind, asks: RequestClass, member: ResolvedGroup) -> MemberDeviceSets | None:
        engine, info, where = self.engine, kind.info, kind.where
        devices = info.devices
        if where is None or devices.node_class is None or engine.policy is None:
            return None
        if any(pool.is_shared for pool in info.pools):
            return None
        tables = _kept(asks, "tables")
        key = where if where[0] is info else (devices.node_class, devices.honors_partitions)
        if key not in tables:
            policy, honors = (
                effective_policy([claim.placement for claim in member.asked], engine.policy),
                devices.honors_partitions,
            )
            state = AllocationState(
                info.pools,
                Usage(),
                engine.features,
                namespace=member.namespace,
                honors_partitions=honors,
            )
            tables[key] = table_of(member.asked, member.siblings, state, policy=policy)
        found: MemberDeviceSets | None = tables[key]
        return found

    def _free(self, info: NodeInfo, table: MemberDeviceSets) -> Free | None:
        """None where a device is in use and yet whole."""
        taken = self.engine.index.taken
        bit = {device: 1 << at for at, device in enumerate(table.devices)}
        blocked = used = 0
        for device, offered in enumerate(offered for pool in info.pools for offered in pool.devices):
            if not taken.in_use(offered.id):
                continue
            capacity = table.whole.get(device)
            use = taken.of(offered.id)
            if capacity is not None and not use.holder and not use.consumed.get(capacity):
                return None
            used |= bit.get(device, 0)
            blocked |= table.blocks.get(device, 0)
        whole = (1 << len(table.devices)) - 1
        return Free(whole & ~blocked, whole & ~used)


def _all_smaller(count: Count, found: Mapping[Count, object], zero: Count) -> bool:
    """Whether the count with one member less, of any class, fits."""
    for at, number in enumerate(count):
        less = (*count[:at], number - 1, *count[at + 1 :])
        if number and less != zero and less not in found:
            return False
    return True


def _kept(asks: RequestClass, name: str) -> dict[Hashable, Any]:
    """What is kept with a request class, with room for more."""
    found: dict[Hashable, Any] = asks.kept.setdefault(name, {})
    if len(found) >= _MOST_KEPT:
        found.clear()
    return found

"""The nodes for one request class, best first, of which only those are searched that could be the best.

A candidate is a state (or a node, where states are not alike to the class) with its value: what the claim
pays, then taints for which pods prefer other nodes, then how full it is by the operator's weights, then what
the cluster pays, then the first node's name.
The value is a lower bound until the search has worked it out:

    bounds, a heap      not searched yet, or searched up to a ceiling
    exact, a heap       searched: the value is what it costs

The least bound is searched, with the best exact value as its ceiling, until the least exact value is below
all bounds. What changed since the list was read last is all that is looked at. Nodes to be left out change
nothing in the list: the candidate stands under the name of its next node for as long as that question is
asked.

What the search said (`Result`) is kept without the names of node and claims, and never goes stale: a node
that changes enters another state. It is a cost with the devices by position, or a proof that nothing fits,
or, where the search was told how much a placement may cost (its ceiling), a bound: no placement costs less.
That it is undecided holds for who may try no more placements.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from koordra.allocator.offer import Offer
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.search.solution import NOTHING, CostPair, Placed
from koordra.api.tables import BoundedCache
from koordra.effort import spend
from koordra.placement.index import ClusterIndex, Moved, NodeInfo
from koordra.placement.node_class import EquivalentNodes, NodeClassUsage

Unit = EquivalentNodes | NodeInfo


class CandidateCost(NamedTuple):
    """Smaller is better: what the claim pays, how many taints the pods are to avoid (`soft_taints`), how full
    the node is (`scoring`; 0 without weights), what the cluster pays."""

    claim: int
    soft_taints: int
    scoring: int
    cluster: int


class Candidate(NamedTuple):
    """`known`: the value is what it costs, and not only a bound."""

    unit: Unit
    value: CandidateCost
    known: bool


Entry = tuple[int, int, int, int, str, int, Candidate]
"""Its value, its node, a number that no other has, the candidate."""


def ceiling_of(candidate: Candidate, name: str, best: Entry, *, by_waste: bool) -> CostPair:
    """What a placement on the node has to cost less than to be better than the best so far. `by_waste`: the
    expected waste comes before the rest of the written cost, which the search knows nothing of."""
    claim, soft, scoring, cluster, node, *_ = best
    own = candidate.value
    of_node, to_beat = (own.soft_taints, own.scoring), (soft, scoring)
    if by_waste:
        return CostPair(claim + ((*of_node, own.cluster, name) < (*to_beat, cluster, node)))
    if of_node != to_beat:
        return CostPair(claim + (of_node < to_beat))
    return CostPair(claim, (cluster + (name < node),))


Search = Callable[[str, Candidate, "Entry | None"], Candidate | None]
"""(node, candidate, best so far) -> the candidate with what the search found out; None: it cannot serve the
class."""

FirstLook = Callable[[Unit, NodeInfo], Candidate | None]
"""(unit, its first node) -> what can be said without a search."""


def first_of(unit: Unit) -> str | None:
    """The name that the unit stands under; None for a state without nodes and a node that is gone."""
    if isinstance(unit, EquivalentNodes):
        return unit.first
    return None if unit.state is None else unit.name


@dataclass(slots=True, eq=False)
class CandidateList:
    """`read`: the position in the index's changes; `epoch`: of the cluster's costs."""

    read: int = -1
    epoch: int = 0
    by_node: bool = False
    entries: dict[Unit, Candidate | None] = field(default_factory=dict)
    _bounds: list[Entry] = field(default_factory=list)
    _exact: list[Entry] = field(default_factory=list)
    _count: int = 0

    def clear(self) -> None:
        self.entries.clear()
        self._bounds.clear()
        self._exact.clear()
        self.read = -1

    def read_changes(self, index: ClusterIndex, *, by_node: bool, epoch: int, first_look: FirstLook) -> None:
        """Look at what changed since the list was read last."""
        if (by_node, epoch) != (self.by_node, self.epoch) or self.read < index.base:
            self.clear()
            self.by_node, self.epoch = by_node, epoch
        moved = index.changes[self.read - index.base :]
        if self.read < 0:
            moved = [Moved(name, None, info.state) for name, info in index.nodes.items()]
        read = index.base + len(index.changes)
        states = [state for one in moved for state in (one.before, one.after)]
        units: list[Unit | None] = [*(index.nodes.get(one.name) for one in moved)] if by_node else [*states]
        for unit in dict.fromkeys(units):
            name = None if unit is None else first_of(unit)
            if unit is None or name is None:
                continue
            if by_node or unit not in self.entries:
                spend(1)
                self.put(unit, first_look(unit, index.nodes[name]))
            elif (known := self.entries[unit]) is not None:
                self.push(known)
        self.read = read  # not before: who was interrupted looks at all of it again
        self.retain(len(index.nodes))

    def put(self, unit: Unit, candidate: Candidate | None) -> None:
        """The unit's candidate; None: it cannot serve the class."""
        self.entries[unit] = candidate
        if candidate is not None:
            self.push(candidate)

    def push(self, candidate: Candidate) -> None:
        """Stand under the first node's name as it is now."""
        name = first_of(candidate.unit)
        if name is not None:
            self._push(candidate, name)

    def _push(self, candidate: Candidate, name: str) -> None:
        self._count += 1
        heap = self._exact if candidate.known else self._bounds
        heapq.heappush(heap, (*candidate.value, name, self._count, candidate))

    def retain(self, live: int) -> None:
        """Forget what nobody is in any more, where that is much."""
        if len(self.entries) > 2 * live + 1024:
            self.entries = {unit: one for unit, one in self.entries.items() if first_of(unit) is not None}
        if len(self._bounds) + len(self._exact) > 4 * len(self.entries) + 1024:
            self._bounds.clear()
            self._exact.clear()
            for candidate in self.entries.values():
                if candidate is not None:
                    self.push(candidate)

    def best(self, excluded: Mapping[str, Any], search: Search) -> tuple[str, Candidate] | None:
        """The best candidate and its node, of those that are not excluded."""
        aside: list[Candidate] = []
        try:
            while True:
                exact = self._top(self._exact, excluded, aside)
                bound = self._top(self._bounds, excluded, aside)
                if bound is None or (exact is not None and exact[:5] <= bound[:5]):
                    return None if exact is None else (exact[4], exact[6])
                heapq.heappop(self._bounds)
                name, candidate = bound[4], bound[6]
                try:
                    found = search(name, candidate, exact)
                except BaseException:
                    heapq.heappush(self._bounds, bound)
                    raise
                self.entries[candidate.unit] = found
                if found is not None:
                    self._push(found, name)
                    if name != first_of(found.unit):
                        aside.append(found)
        finally:
            for candidate in aside:
                if self.entries.get(candidate.unit) is candidate:
                    self.push(candidate)

    def _top(self, heap: list[Entry], excluded: Mapping[str, Any], aside: list[Candidate]) -> Entry | None:
        """The least entry that still holds; a candidate whose node is excluded stands under its next one."""
        while heap:
            entry = heap[0]
            name, candidate = entry[4], entry[6]
            if self.entries.get(candidate.unit) is not candidate:
                heapq.heappop(heap)
                continue
            unit, wanted = candidate.unit, first_of(candidate.unit)
            detour = wanted in excluded if excluded else False
            if detour:
                wanted = unit.without(excluded) if isinstance(unit, EquivalentNodes) else None
            if name == wanted:
                return entry
            heapq.heappop(heap)
            if detour:
                # Entries under other names are old: it stands under its first node's, too.
                aside.append(candidate)
                if wanted is not None:
                    self._push(candidate, wanted)
        return None


Where = NodeClassUsage | tuple[NodeInfo, int]
"""Whose results hold for a node: its state, or the node alone in the generation that was asked."""


class Result(NamedTuple):
    """`cost` None: nothing fits, or (`bound`) nothing that costs less than that. `placed` are the claims of
    who asked first. `epoch` is that of the table by which devices were chosen, and by which the bound was
    worked out. `undecided`: the placements that were tried in vain, 0 where the answer is the last word."""

    cost: CostPair | None = None
    placed: tuple[Placed, ...] = ()
    bound: CostPair | None = None
    undecided: int = 0
    defect: str = ""
    epoch: int = 0


class ResultCache(BoundedCache[Where, Result]):
    """Of one request class."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1 << 14)

    def saying(self, where: Where, epoch: int, ceiling: CostPair | None, budget: int) -> Result | None:
        """What is known, if it says enough for this ceiling and budget."""
        found = self.get(where)
        if (
            found is None
            or 0 < found.undecided < budget
            or (
                found.epoch != epoch  # what fits nowhere holds for every epoch
                and (found.cost is not None or found.bound is not None)
            )
        ):
            return None
        if found.bound is not None and (ceiling is None or found.bound < ceiling):
            return None
        return found


def offer_of(
    placed: Iterable[tuple[int, Placed]],
    info: NodeInfo,
    asked: Sequence[ResolvedClaim],
    cost: CostPair | None = None,
) -> Offer:
    """Devices by position, with the claims that get them now, written for these claims on this node."""
    given = [
        Placed(
            asked[claim].requests[one.wanted.request].alternatives[one.wanted.index],
            one.device,
            one.demand,
            one.shared,
        )
        for claim, one in placed
    ]
    devices = [device for pool in info.pools for device in pool.devices]
    return Offer(info.name, asked, devices, tuple(given), cost or NOTHING)

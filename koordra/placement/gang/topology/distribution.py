"""How many members of each class go to which node.

    what each kind takes ─▶ tables over the tree of domains ─▶ the best count for the gang ─▶ counts per node

The tables (`packing.py`) are the whole truth. Of their counts only those with the indispensable members and the minimum are good; of
those with the most members the cheapest is taken, and of equal ones the one with most members of the first class.

Where the tables would be too large (many classes with many members each), classes are placed one after the other, each at its best
beside the earlier ones. Such an answer is valid and not proven best; if it finds nothing, nothing is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordra.placement.gang.member_assignment import Rails
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.score import Count, NodeCounts
from koordra.placement.gang.topology.domains import Domain, Scope, domains_at
from koordra.placement.gang.topology.packing import Packing, TooMuch
from koordra.placement.gang.types import Gang

_MOST_STATES: Final = 400_000

Chosen = dict[str, Count]


@dataclass(slots=True)
class Found:
    """Counts per node under a set of rails, with the parts of the score that the tables know."""

    counts: Chosen
    rails: Rails | None
    order: tuple[int, ...]
    opened: int
    proven: bool = True

    @property
    def size(self) -> int:
        """How many members are placed."""
        return sum(map(sum, self.counts.values()))


@dataclass(slots=True)
class Distribution:
    """`most` is the largest number of members that was seen to fit."""

    gang: Gang
    scope: Scope
    fitting: NodeFit
    budget: int
    most: int = 0

    def packed(self, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> Found | None:
        """The best counts; None where fewer than the minimum fit (`most` says how many do)."""
        want = tuple(len(one.members) for one in self.fitting.classes)
        states = int(np.prod([number + 1 for number in want], dtype=object))
        if states <= _MOST_STATES * self.budget:
            try:
                return self._by_tables(want, takes, rails)
            except TooMuch:
                pass
        return self._class_by_class(want, takes, rails)

    def _packing(
        self, want: Count, root: Domain, kinds: Mapping[str, Hashable], takes: Mapping[Any, NodeCounts]
    ) -> Packing:
        rules = self.scope.rules(want)
        domains = {level: len(domains_at(root, level)) for level in rules.levels}
        packing = Packing(root, rules, kinds, takes, domains)
        packing.operations *= self.budget
        return packing

    def _by_tables(self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> Found | None:
        packing = self._packing(want, self.scope.tree({}), self.fitting.kinds.of, takes)
        best: tuple[Any, ...] | None = None
        needed = tuple(one.needed for one in self.fitting.classes)
        beside = len(self.gang.fixed)
        for number, (costs, chain, table) in enumerate(packing.costs()):
            counts = np.argwhere(costs < packing.infeasible)
            totals = counts.sum(axis=1)
            self.most = max(self.most, beside + int(totals.max(initial=0)))
            good = (counts >= needed).all(axis=1) & (totals + beside >= self.gang.minimum)
            if not good.any():
                continue
            counts, totals = counts[good], totals[good]
            counts = counts[totals == totals.max()]
            cost = costs[tuple(counts.T)]
            count = tuple(int(value) for value in counts[cost == cost.min()][-1])
            found = (-sum(count), int(cost.min()), number, count, chain, table)
            if best is None or found[:3] < best[:3]:
                best = found
        if best is None:
            return None
        counts_by_node = packing.places(best[4], best[5], best[3])
        return Found(counts_by_node, rails, *read_off(packing, best[1]))

    def _class_by_class(
        self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None
    ) -> Found | None:
        """Those with indispensable members and then the largest first; each beside what was placed before, as many as can be."""
        self.fitting.unknown = True
        placed: Chosen = {}
        order = sorted(range(len(want)), key=lambda at: (not self.fitting.classes[at].needed, -want[at]))
        for at in order:
            beside = {node: sum(count) for node, count in placed.items()}
            root = self.scope.tree(beside)
            kinds: dict[str, Hashable] = {}
            own: dict[Hashable, NodeCounts] = {}
            for node, kind in self.fitting.kinds.of.items():
                base = placed.get(node, (0,) * len(want))
                kinds[node] = key = (kind, base)
                if key not in own:
                    own[key] = _beside(takes[kind], base, at, fixed=kind.fixed or any(base))
            packing = self._packing((want[at],), root, kinds, own)
            ways = [
                (-most, int(costs[most]), number, chain, table)
                for number, (costs, chain, table) in enumerate(packing.costs())
                for most in [int(np.flatnonzero(costs < packing.infeasible)[-1])]
            ]
            if not ways:
                return None
            best = min(ways, key=lambda way: way[:3])
            if -best[0] < self.fitting.classes[at].needed:
                return None
            for node, (number,) in packing.places(best[3], best[4], (-best[0],)).items():
                base = placed.get(node, (0,) * len(want))
                placed[node] = (*base[:at], number, *base[at + 1 :])
        found = Found(placed, rails, (), 0, proven=False)
        self.most = max(self.most, len(self.gang.fixed) + found.size)
        return found if len(self.gang.fixed) + found.size >= self.gang.minimum else None


def read_off(packing: Packing, cost: int) -> tuple[tuple[int, ...], int]:
    """The parts of the score in a cost, in order, and how many domains are opened."""
    of = packing.weights
    weights = [
        of.apart,
        *(of.level[at] for at in packing.rules.levels),
        of.opened,
        of.nodes,
        of.spare,
    ]
    order = []
    for weight in weights:
        number, cost = divmod(cost, weight)
        order.append(number)
    return tuple(order), order[-3]


def _beside(takes: NodeCounts, base: Count, at: int, *, fixed: bool) -> NodeCounts:
    """What the node takes of one class when it has `base` already."""
    before = takes.takes.get(base, (0, 0))
    found: dict[Count, tuple[int, int]] = {}
    for count, (apart, spare) in takes.takes.items():
        more = count[at] - base[at]
        if more > 0 and count == (*base[:at], count[at], *base[at + 1 :]):
            found[(more,)] = (max(0, apart - before[0]), spare)
    return NodeCounts(found, fixed, takes.alone)

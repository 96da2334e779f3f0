"""How many members of each class go to which node.

The tables of `packing` are the whole truth: of their counts those with the most members, and of these the
cheapest.

Where the tables would be too large (many classes with many members each), classes are placed one after the
other, each at its best beside the earlier ones. Such an answer is valid and not proven best; if it finds too
few, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.effort import is_spent, spend
from koordra.placement.gang.member_assignment import Rails
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.topology.cost_tables import OPERATIONS, Count, TooMuch
from koordra.placement.gang.topology.domains import Domain, GangTopology
from koordra.placement.gang.topology.packing import GangPacking, NodeCounts, Packed, UnitRule
from koordra.placement.gang.topology.units import Units

_MOST_STATES: Final = 400_000

_NODES: Final = 4
"""Nodes of the tree in a step."""


@dataclass(slots=True)
class Found:
    """Counts per node under a set of rails; `order`: the parts of the score that the tables know; `parts`:
    the same by name."""

    counts: dict[str, Count]
    rails: Rails | None
    order: tuple[int, ...] = ()
    proven: bool = True
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(sum, self.counts.values()))


@dataclass(frozen=True, slots=True)
class Distribution:
    topology: GangTopology
    units: Units
    fitting: NodeFit
    budget: int
    root: Domain

    def packed(self, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> Found:
        """The counts with the most members, and of these the best."""
        want = tuple(len(one.members) for one in self.fitting.classes)
        if not want:
            return Found({}, rails)
        if math.prod(number + 1 for number in want) <= _MOST_STATES * self.budget:
            try:
                best = self._best(want, self.root, self.fitting.kinds.of, takes, self.units.rules.values())
                if best is None:
                    return Found({}, rails)
                return Found(best.counts, rails, best.order, parts=best.parts)
            except TooMuch:
                pass
        return self._one_by_one(want, takes, rails)

    def _best(
        self,
        want: Count,
        root: Domain,
        kinds: Mapping[str, Hashable],
        takes: Mapping[Any, NodeCounts],
        rules: Iterable[UnitRule],
    ) -> Packed | None:
        topology = self.topology
        return GangPacking(
            root,
            kinds,
            takes,
            want,
            topology.domains,
            topology.spared,
            topology.required,
            topology.preferred,
            tuple(rules),
            OPERATIONS * self.budget,
        ).best()

    def _one_by_one(self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> Found:
        """Classes one after the other, those of one unit together; the largest first, each beside what was
        placed before, as many as can be."""
        self.fitting.unknown = True
        placed: dict[str, Count] = {}
        nobody = (0,) * len(want)
        together: dict[Hashable, list[int]] = {}
        for at in range(len(want)):
            sort = self.units.sorts[at][:1] if self.units.sorts else ()
            together.setdefault(sort or at, []).append(at)
        for ats in sorted(together.values(), key=lambda ats: -sum(want[at] for at in ats)):
            if is_spent():
                break
            if math.prod(want[at] + 1 for at in ats) > _MOST_STATES * self.budget:
                continue
            spend(len(self.fitting.kinds.of) // _NODES)
            kinds: dict[str, Hashable] = {}
            own: dict[Hashable, NodeCounts] = {}
            for node, kind in self.fitting.kinds.of.items():
                base = placed.get(node, nobody)
                kinds[node] = key = (kind, base)
                if key not in own:
                    own[key] = _beside(takes[kind], base, ats, fixed=kind.fixed or any(base))
            root = self.topology.tree({node: sum(count) for node, count in placed.items()})
            rules = [
                replace(rule, of=tuple([rule.of[at] for at in ats]))
                for rule in self.units.rules.values()
                if any(rule.of[at] for at in ats)
            ]
            try:
                best = self._best(tuple([want[at] for at in ats]), root, kinds, own, rules)
            except TooMuch:
                continue
            for node, number in best.counts.items() if best is not None else ():
                count = list(placed.get(node, nobody))
                for at, more in zip(ats, number, strict=True):
                    count[at] = more
                placed[node] = tuple(count)
        return Found(placed, rails, proven=False)


def _beside(takes: NodeCounts, base: Count, ats: Sequence[int], *, fixed: bool) -> NodeCounts:
    """What the node takes of some classes when it has `base` already."""
    before = takes.takes.get(base, (0, 0))
    found, full = dict[Count, tuple[int, int]](), dict[Count, int]()
    for count, (apart, spare) in takes.takes.items():
        more = tuple([count[at] - base[at] for at in ats])
        rest = all(a == b for at, (a, b) in enumerate(zip(count, base, strict=True)) if at not in ats)
        if rest and any(more) and min(more) >= 0:
            found[more] = (max(0, apart - before[0]), spare)
            full[more] = takes.full.get(count, 0)
    return NodeCounts(found, fixed, takes.alone, full)

"""How many members of each class go to which node.

The tables of `packing` are the whole truth: of their counts those with the most members, and of these the
cheapest.

Where the tables would be too large (many classes with many members each), classes are placed one after the
other, each at its best beside the earlier ones. Such an answer is valid and not proven best; if it finds too
few, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.effort import is_spent, spend
from koordra.placement.gang.member_assignment import Rails
from koordra.placement.gang.node_fit import NodeFit
from koordra.placement.gang.topology.domains import Domain, GangTopology
from koordra.placement.gang.topology.packing import (
    OPERATIONS,
    Count,
    GangPacking,
    NodeCounts,
    Packed,
    TooMuch,
)

_MOST_STATES: Final = 400_000

_NODES: Final = 4
"""Nodes of the tree in a step."""


@dataclass(slots=True)
class Found:
    """Counts per node under a set of rails; `order`: the parts of the score that the tables know."""

    counts: dict[str, Count]
    rails: Rails | None
    order: tuple[int, ...] = ()
    proven: bool = True

    @property
    def size(self) -> int:
        return sum(map(sum, self.counts.values()))

    @property
    def opened(self) -> int:
        return self.order[-3] if self.order else 0


@dataclass(frozen=True, slots=True)
class Distribution:
    topology: GangTopology
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
                best = self._best(want, self.root, self.fitting.kinds.of, takes)
                return Found({}, rails) if best is None else Found(best.counts, rails, best.order)
            except TooMuch:
                pass
        return self._class_by_class(want, takes, rails)

    def _best(
        self,
        want: Count,
        root: Domain,
        kinds: Mapping[str, Hashable],
        takes: Mapping[Any, NodeCounts],
    ) -> Packed | None:
        topology, operations = self.topology, OPERATIONS * self.budget
        domains = topology.domains(topology.paths)
        return GangPacking(
            root, kinds, takes, want, domains, topology.opened, topology.required, operations
        ).best()

    def _class_by_class(self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> Found:
        """The largest first; each beside what was placed before, as many as can be."""
        self.fitting.unknown = True
        placed: dict[str, Count] = {}
        nobody = (0,) * len(want)
        for at in sorted(range(len(want)), key=lambda at: -want[at]):
            if is_spent():
                break
            spend(len(self.fitting.kinds.of) // _NODES)
            kinds: dict[str, Hashable] = {}
            own: dict[Hashable, NodeCounts] = {}
            for node, kind in self.fitting.kinds.of.items():
                base = placed.get(node, nobody)
                kinds[node] = key = (kind, base)
                if key not in own:
                    own[key] = _beside(takes[kind], base, at, fixed=kind.fixed or any(base))
            root = self.topology.tree({node: sum(count) for node, count in placed.items()})
            best = self._best((want[at],), root, kinds, own)
            for node, (number,) in best.counts.items() if best is not None else ():
                base = placed.get(node, nobody)
                placed[node] = (*base[:at], number, *base[at + 1 :])
        return Found(placed, rails, proven=False)


def _beside(takes: NodeCounts, base: Count, at: int, *, fixed: bool) -> NodeCounts:
    """What the node takes of one class when it has `base` already."""
    before = takes.takes.get(base, (0, 0))
    found: dict[Count, tuple[int, int]] = {}
    for count, (apart, spare) in takes.takes.items():
        more = count[at] - base[at]
        if more > 0 and count == (*base[:at], count[at], *base[at + 1 :]):
            found[(more,)] = (max(0, apart - before[0]), spare)
    return NodeCounts(found, fixed, takes.alone)

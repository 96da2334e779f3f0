"""Whether a gang could have room on fewer rails, by counting alone. It only ever says no where there is none.

A placement that is as good as the one found uses as many nodes and as many domains of each level. So the nodes that hold most on these
rails, so many of them, must hold all members; and so must the domains that hold most, at every level. Asking this is a few sums over
the nodes, where the tables are a whole packing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordra.placement.gang.node_fit import Fitting
from koordra.placement.gang.score import NodeCounts
from koordra.placement.gang.topology.constraint import Scope
from koordra.placement.gang.topology.distribution import Found


@dataclass(slots=True)
class Room:
    """For one gang: `found` is the placement that has to be equalled."""

    fitting: Fitting
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

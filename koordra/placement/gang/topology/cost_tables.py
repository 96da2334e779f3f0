"""Tables of what counts of members cost, shared among parts: (min,+) convolution in numpy.

A table has a cost for each count (one number per class), as far as its parts reach; counts beyond that, and
those that are not possible, cannot be had. Two tables are shared by the least sum over all ways to divide a
count; the same table many times over by halves, so that k alike parts cost log k of that. Nothing is sampled
or cut. Tables remember what they are made of, so that a count can be divided again among the parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from koordra.effort import spend

Costs = NDArray[Any]

Count = tuple[int, ...]
"""Members of each class."""

OPERATIONS: Final = 1_500_000_000
"""Additions that one gang may cost: some seconds."""

_ADDED: Final = 20_000
"""Additions in a step."""

_MOST_ADDED: Final = 1 << 15
"""Additions that are made at once."""


class TooMuch(Exception):
    """The tables would cost more additions than allowed."""


@dataclass(slots=True, eq=False)
class CostTable:
    """`costs` by count. Made of two tables (`parts`) that share the count, of one with costs of its own on
    top, or of none: a node."""

    costs: Costs
    parts: tuple[CostTable, ...] = ()


@dataclass(slots=True)
class SharedTables:
    """`want`: the most of each class that any table counts. `infeasible`: the cost from which on a count
    cannot be had."""

    want: Count
    infeasible: int
    operations: int
    _powers: dict[tuple[CostTable, int], CostTable] = field(default_factory=dict)
    _sums: dict[tuple[CostTable, CostTable], CostTable] = field(default_factory=dict)

    def power(self, table: CostTable, times: int) -> CostTable:
        """So many parts with this table together."""
        times = min(times, max(sum(self.want), 1))
        known = self._powers.get((table, times))
        if known is None:
            known = table
            if times > 1:
                known = self.share(self.power(table, times - times // 2), self.power(table, times // 2))
            self._powers[table, times] = known
        return known

    def share(self, left: CostTable, right: CostTable) -> CostTable:
        known = self._sums.get((left, right))
        if known is None:
            known = self._sums[left, right] = CostTable(
                self.convolved(left.costs, right.costs), (left, right)
            )
        return known

    def convolved(self, left: Costs, right: Costs) -> Costs:
        """The least of all shifts of one table by the counts of the other, many shifts at once, as far as
        they are feasible."""
        few, many = (left, right) if left.size <= right.size else (right, left)
        if few.ndim == 1 and few.size * many.size <= _MOST_ADDED:
            return self._of_one_class(few, many)
        counts, others = (np.argwhere(side < self.infeasible) for side in (few, many))
        if len(others) < len(counts):
            few, many, counts = many, few, others
        sizes = zip(few.shape, many.shape, self.want, strict=True)
        shape = tuple([min(a + b - 1, most + 1) for a, b, most in sizes])
        size = math.prod(shape)
        self._pay(len(counts) * size)
        reach = np.array(few.shape) - 1
        inside = tuple([slice(min(a, b)) for a, b in zip(many.shape, shape, strict=True)])
        padded = np.full(
            [a + b for a, b in zip(reach.tolist(), shape, strict=True)], self.infeasible, many.dtype
        )
        padded[tuple([slice(a, a + one.stop) for a, one in zip(reach.tolist(), inside, strict=True)])] = many[
            inside
        ]
        windows = as_strided(padded, (*few.shape, *shape), padded.strides * 2)
        least: Costs = np.full(shape, self.infeasible, many.dtype)
        at_once = max(1, _MOST_ADDED // size)
        for first in range(0, len(counts), at_once):
            shifts = counts[first : first + at_once]
            shifted = windows[tuple((reach - shifts).T)]
            shifted += few[tuple(shifts.T)].reshape(-1, *[1] * few.ndim)
            np.minimum(least, shifted.min(axis=0), out=least)
        return least

    def _of_one_class(self, few: Costs, many: Costs) -> Costs:
        """The same in few calls: most tables are of one class, and small."""
        size = min(few.size + many.size - 1, self.want[0] + 1)
        self._pay(few.size * size)
        padded = np.full(few.size - 1 + size, self.infeasible, many.dtype)
        kept = min(many.size, size)
        padded[few.size - 1 : few.size - 1 + kept] = many[:kept]
        windows: Costs = np.ndarray((few.size, size), many.dtype, padded, 0, padded.strides * 2)
        least: Costs = (windows + few[::-1, None]).min(axis=0)
        return np.minimum(least, self.infeasible, out=least)

    def _pay(self, additions: int) -> None:
        self.operations -= additions
        spend(additions // _ADDED)
        if self.operations < 0:
            raise TooMuch

    def each(self, table: CostTable, one: CostTable, count: Count) -> list[Count]:
        """What each of the alike parts takes whose power the table is, those that take most first."""
        if table is one:
            return [count]
        left, right = table.parts
        first = self.split(table, count)
        shares = self.each(left, one, first) + self.each(right, one, minus(count, first))
        return sorted(shares, reverse=True)

    def split(self, table: CostTable, count: Count) -> Count:
        """What the left side takes: of equal ways the one that gives it most."""
        left, right = (part.costs for part in table.parts)
        sizes = list(zip(count, left.shape, right.shape, strict=True))
        least = [max(0, number - other + 1) for number, _, other in sizes]
        most = [min(number, own - 1) for number, own, _ in sizes]
        upto = tuple([slice(a, b + 1) for a, b in zip(least, most, strict=True)])
        rest = tuple([slice(n - b, n - a + 1) for n, a, b in zip(count, least, most, strict=True)])
        total = left[upto] + right[rest][(slice(None, None, -1),) * len(count)]
        best = np.argwhere(total == table.costs[count])[-1].tolist()
        return tuple([a + b for a, b in zip(least, best, strict=True)])


def minus(count: Sequence[int], other: Sequence[int]) -> Count:
    return tuple([a - b for a, b in zip(count, other, strict=True)])

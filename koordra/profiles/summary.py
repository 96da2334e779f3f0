"""One series of a pod, or of several, in bounded size: what it was when, and how often it was how high.

    cells    BASE milliseconds wide at first, on a grid of the wall clock; where there would be more than
             MOST, two become one until there are not: a second or a month take the same room
    bins     a histogram of which each bin ends GROWTH times as high as the one below: quantiles are within
             ERROR of the value, or half the series' resolution, whichever is more; the highest value is exact

Everything is a sum of whole numbers. So a summary is that of its samples and of nothing else: added in
whatever order, in parts that are merged in whatever order, it is the same, and so is one that was stored in
between. (DDSketch has the same bins; it collapses them where there are many, after which order matters.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BASE: Final = 5000
"""The sampler's period: nothing is told that is shorter."""
MOST: Final = 64
GROWTH: Final = 1.05
ERROR: Final = (GROWTH - 1) / (GROWTH + 1)
HIGHEST: Final = 1 << 60
"""Nothing is higher: a counter that was garbled does not make bins without end."""
LONGEST: Final = 1 << 40
"""Milliseconds that one sample can stand for."""
LATEST: Final = 1 << 53
"""Milliseconds since 1970."""
_LOG: Final = math.log(GROWTH)


@dataclass(slots=True)
class Cell:
    """`ms`: for how long there are samples, of all pods together; `total`: the sum of value times
    milliseconds."""

    ms: int = 0
    total: int = 0
    peak: int = 0

    def add(self, other: Cell) -> None:
        self.ms += other.ms
        self.total += other.total
        self.peak = max(self.peak, other.peak)


@dataclass(slots=True)
class Summary:
    """`resolution`: below which values are not told apart. `cells` by number: that of `ms // width` of the
    wall clock; `bins`: milliseconds by number, 0 for what is 0. Belongs to one thread."""

    resolution: int = 1
    width: int = BASE
    cells: dict[int, Cell] = field(default_factory=dict)
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, at: int, ms: int, value: int) -> None:
        """It was `value` in the `ms` milliseconds before `at` (milliseconds since 1970); all of them count
        for the cell that `at` is in."""
        at, ms, value = min(max(at, 0), LATEST), min(ms, LONGEST), min(max(value, 0), HIGHEST)
        if ms <= 0:
            return
        self._put(at // self.width, Cell(ms, value * ms, value))
        number = self._bin(value)
        self.bins[number] = self.bins.get(number, 0) + ms
        self._fit()

    def merge(self, other: Summary) -> None:
        """With what the other has, which stays as it is."""
        while self.width < other.width:
            self._widen()
        for number, cell in other.cells.items():
            self._put(number * other.width // self.width, cell)
        for number, ms in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + ms
        self._fit()

    @property
    def ms(self) -> int:
        return sum(self.bins.values())

    @property
    def peak(self) -> int:
        return max((cell.peak for cell in self.cells.values()), default=0)

    def quantile(self, part: float) -> int:
        """The least value that it was not above in `part` of the time; 0 where there is nothing."""
        wanted, passed = self.ms * part, 0
        for number, ms in sorted(self.bins.items()):
            passed += ms
            if passed >= wanted:
                return min(self._value(number), self.peak)
        return self.peak

    def _put(self, number: int, cell: Cell) -> None:
        self.cells.setdefault(number, Cell()).add(cell)

    def _fit(self) -> None:
        while self.cells and max(self.cells) - min(self.cells) >= MOST:
            self._widen()

    def _widen(self) -> None:
        before, self.cells, self.width = self.cells, {}, self.width * 2
        for number, cell in before.items():
            self._put(number // 2, cell)

    def _bin(self, value: int) -> int:
        units = value / self.resolution
        return 0 if units < 0.5 else 1 + max(0, math.ceil(math.log(units) / _LOG))

    def _value(self, number: int) -> int:
        if number == 0:
            return 0
        ends = GROWTH ** (number - 1)
        return round(self.resolution * (ends if number == 1 else ends * 2 / (GROWTH + 1)))


def merged(summaries: Iterable[Summary]) -> Summary:
    """Of one series. Empty, of resolution 1, without any."""
    found: Summary | None = None
    for one in summaries:
        if found is None:
            found = Summary(one.resolution)
        found.merge(one)
    return found or Summary()


def summary_document(summary: Summary) -> dict[str, Any]:
    return {
        "width": summary.width,
        "cells": [[number, each.ms, each.total, each.peak] for number, each in sorted(summary.cells.items())],
        "bins": [list(each) for each in sorted(summary.bins.items())],
    }


def read_summary(document: Any, resolution: int) -> Summary:
    """Raises ValueError, TypeError or KeyError for what is none."""
    if not isinstance(document, Mapping):
        raise TypeError("a summary is an object")
    width = document["width"]
    if (
        not isinstance(width, int)
        or width < BASE
        or width > LATEST
        or width % BASE
        or (width // BASE).bit_count() != 1
    ):
        raise ValueError(f"width {width!r}")
    found = Summary(resolution, width)
    for number, ms, total, peak in document["cells"]:
        found.cells[_whole(number)] = Cell(_whole(ms), _whole(total), _whole(peak))
    for number, ms in document["bins"]:
        found.bins[_whole(number)] = _whole(ms)
    if len(found.bins) > _MOST_BINS or (found.cells and max(found.cells) - min(found.cells) >= MOST):
        raise ValueError("larger than a summary can be")
    return found


_MOST_BINS: Final = math.ceil(math.log(HIGHEST) / _LOG) + 2


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value

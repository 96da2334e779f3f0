"""What ends when: the order in which what has devices is expected to give them back.

Ends that lie close together, by GRAIN of the time until then, come as one: what is expected is known no
better, and a forecast has a bounded number of steps however many claims there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import Final, Generic, TypeVar

GRAIN: Final = 0.1
LEAST: Final = 1.0
"""Seconds that are one moment."""
GOLDEN: Final = 0.6180339887498949

_Ending = TypeVar("_Ending")


class Departures(Generic[_Ending]):
    """Times are seconds from now."""

    def __init__(self, ends: Iterable[tuple[float, _Ending]] = ()) -> None:
        self._numbers = count()
        self._heap: list[tuple[float, int, _Ending]] = []
        for at, ending in ends:
            self.add(at, ending)

    def add(self, at: float, ending: _Ending) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), ending))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def first(self) -> float:
        """When the next one ends."""
        return self._heap[0][0]

    def take_one(self) -> tuple[float, _Ending]:
        at, _, ending = heapq.heappop(self._heap)
        return at, ending

    def take(self) -> tuple[float, list[_Ending]]:
        """Those that end next, and when the last of them has."""
        first = self.first
        limit, at, found = max(first * (1 + GRAIN), first + LEAST), first, []
        while self._heap and self._heap[0][0] <= limit:
            at, ending = self.take_one()
            found.append(ending)
        return at, found


def spread(number: int) -> float:
    """A quantile for the number-th of those whose ends are learned: any few in a row are spread evenly over
    all of them, so that some end soon and some late, as they do, and not all in the middle."""
    return (0.5 + number * GOLDEN) % 1.0

"""What waits, and why, in figures: pods that are planned together, gangs, and pods that are not planned for
at all, each under the one word that its Events have.

Kept by what changes: a pass costs what it decided, however many wait.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from heapq import heappop, heappush
from typing import Final, NamedTuple

from koordra.allocator.reasons import Cause
from koordra.controller.reporting.claim_events import (
    CLAIM_MISSING,
    GANG_GATHERING,
    GANG_REFUSED,
    INTERNAL_ERROR,
    QUOTA_EXCEEDED,
    WRITE_REFUSED,
)

REASONS: Final = (
    *(cause.value for cause in Cause),
    *(CLAIM_MISSING, QUOTA_EXCEEDED, GANG_GATHERING, GANG_REFUSED, WRITE_REFUSED, INTERNAL_ERROR),
)
"""Why something waits, in one word."""


class Waiting(NamedTuple):
    """`oldest`: Unix time from which the one waits that waits longest."""

    number: int
    oldest: float


class WaitingGroups:
    """Not thread-safe. A key is a group's, a gang's or a pod's uid."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[str, float]] = {}
        self._number = Counter[str]()
        self._oldest: dict[str, list[tuple[float, str]]] = {}
        """Heaps by reason; what does not wait any more is dropped when it is met."""

    def put(self, key: str, reason: str, created: str) -> None:
        """It waits for this reason. `created`: RFC 3339, of what has waited longest of it."""
        waits = reason, _unix(created)
        if self._waits.get(key) == waits:
            return
        self.drop(key)
        self._waits[key] = waits
        self._number[reason] += 1
        heap = self._oldest.setdefault(reason, [])
        heappush(heap, (waits[1], key))
        if len(heap) > 2 * self._number[reason] + 64:
            self._oldest[reason] = sorted(
                (since, each) for each, (why, since) in self._waits.items() if why == reason
            )

    def drop(self, key: str) -> None:
        if (waits := self._waits.pop(key, None)) is not None:
            self._number[waits[0]] -= 1

    def figures(self) -> dict[str, Waiting]:
        """By reason, of those for which something waits."""
        found = {}
        for reason, heap in self._oldest.items():
            while heap and self._waits.get(heap[0][1]) != (reason, heap[0][0]):
                heappop(heap)
            if heap:
                found[reason] = Waiting(self._number[reason], heap[0][0])
        return found


def _unix(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return float("inf")  # nobody knows since when

"""Keys to work on, for the loops of the development cluster.

A key waits at most once, is never worked on by two threads at a time, and comes again after a growing delay
when the work failed. An idle queue sleeps on a condition; nothing polls.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Final

from koordra.errors import Conflict, KoordraError
from koordra.logs import get_logger

log = get_logger(__name__)

FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 10.0
LONGEST_SLEEP: Final = 1.0
"""Seconds between two looks at the stop event."""


class WorkQueue:
    """`handle(key)` returns None when done, or the seconds after which it wants to see the key again."""

    def __init__(
        self, name: str, handle: Callable[[str], float | None], *, longest_retry: float = LONGEST_RETRY
    ) -> None:
        self.name = name
        self._handle = handle
        self._longest = longest_retry
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, str]] = []
        self._due: dict[str, float] = {}
        self._active: set[str] = set()
        self._meanwhile: set[str] = set()
        self._failures: dict[str, int] = {}
        self._order = itertools.count()

    def add(self, key: str, *, after: float = 0.0) -> None:
        """Work on `key` after some seconds; an earlier time that is already set stands."""
        due = time.monotonic() + after
        with self._changed:
            if key in self._due and self._due[key] <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.notify()

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`; several threads may run the same queue."""
        while not stop.is_set():
            key = self._take()
            if key is not None:
                again = self._work(key)
                self._finished(key)
                if again is not None:
                    self.add(key, after=again)

    def _take(self) -> str | None:
        """The next key that is due and idle; None after a while, so that the caller can look at its stop
        event."""
        with self._changed:
            while self._heap and self._heap[0][0] <= time.monotonic():
                due, _, key = heapq.heappop(self._heap)
                if self._due.get(key) != due:
                    continue
                del self._due[key]
                if key in self._active:
                    self._meanwhile.add(key)
                    continue
                self._active.add(key)
                return key
            left = self._heap[0][0] - time.monotonic() if self._heap else LONGEST_SLEEP
            self._changed.wait(max(0.0, min(left, LONGEST_SLEEP)))
            return None

    def _finished(self, key: str) -> None:
        """What became due while the key was being worked on is due now."""
        with self._changed:
            self._active.discard(key)
            due_again = key in self._meanwhile
            self._meanwhile.discard(key)
        if due_again:
            self.add(key)

    def _work(self, key: str) -> float | None:
        try:
            again = self._handle(key)
        except KoordraError as error:
            if not isinstance(error, Conflict):
                log.warning("work_failed", queue=self.name, key=key, error=str(error))
            return self._retry_after(key)
        except Exception:
            # The last border: a defect in one key's work must not end the others'.
            log.exception("work_failed", queue=self.name, key=key)
            return self._retry_after(key)
        self._failures.pop(key, None)
        return again

    def _retry_after(self, key: str) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return min(FIRST_RETRY * 2.0 ** min(failures - 1, 20), self._longest)

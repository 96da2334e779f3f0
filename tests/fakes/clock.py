"""A clock that stands still until a test moves it, so that no test depends on how fast the machine is."""

from __future__ import annotations


class Clock:
    """In place of a module's `time`: what reads it still waits in real time, and then finds the time that the
    test has set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

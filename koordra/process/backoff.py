"""How long to wait after a failure: the one answer of every loop that talks to an API server or a runtime.

Pauses double from FIRST_PAUSE to a bound, as those of client-go's reflector do, and each is drawn between
half and one and a half of that: ten thousand nodes whose API server comes back do not come back all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0


class Backoff:
    """The pauses of one loop, in seconds. `first`: FIRST_PAUSE, if not said; `draw`: a number of [0, 1)."""

    def __init__(
        self,
        *,
        first: float | None = None,
        longest: float = LONGEST_PAUSE,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self._first = FIRST_PAUSE if first is None else first
        self._longest = longest
        self._draw = draw or random.random
        self.failures = 0
        """In a row."""

    def next(self, *, longest: float | None = None) -> float:
        """After one more failure. `longest`: where this one has another bound."""
        pause = min(self._first * 2.0 ** min(self.failures, 30), longest or self._longest)
        self.failures += 1
        return pause * (0.5 + self._draw())

    def reset(self) -> None:
        """Something went well: the next failure is a first one again."""
        self.failures = 0

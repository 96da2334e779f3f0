"""When the node looks at the limited claims again. Pure.

Nothing tells the node that a process takes memory past the limiter: NVML has events for errors, power and MIG, none for memory or
processes, and the device nodes that a container opens are not the host's. So it looks, often while something happens and seldom
while nothing does:

    a process takes a slot, or is refused          a look at once (it calls the broker), then brisk ones
    unseen bytes, processes or a verdict changed   brisk looks
    BRISK_FOR seconds without any of that          quiet looks

    brisk    every BRISK seconds       quiet    every QUIET seconds

A look never takes more than LOAD of one processor's time: after a slow one (many claims, a driver that is slow to answer) the
pause is as much longer. So bytes that the limiter does not see are counted within BRISK and one look where a process has just started or
such bytes have just changed, and within QUIET and one look in a program that was quiet; or within 1 / LOAD times what a look
takes, where that is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUIET: Final = 1.0
BRISK: Final = 0.1
BRISK_FOR: Final = 3.0
LOAD: Final = 0.05


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds until the next look: `at_least`, also when somebody calls, and `at_most`, when nobody does."""

    at_least: float
    at_most: float


def pause(*, took: float, quiet_for: float) -> Pause:
    """After a look that `took` so many seconds, `quiet_for` seconds after something happened last."""
    rest = took / LOAD
    return Pause(at_least=max(BRISK, rest), at_most=max(QUIET if quiet_for > BRISK_FOR else BRISK, rest))

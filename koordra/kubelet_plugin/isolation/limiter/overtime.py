"""Whether a claim's kernels have more of a card's time than its share, by what the driver says of them. Pure.

A share that is limited gets more where something launches past the limiter, where what launches cost is told
wrong (by a program that writes into its region, or of kernels that the limiter cannot measure), and where
memory is only filled, which is not paced. What the driver saw beyond the share, and TOLERATED besides, adds
up, and what it saw less is taken off again. More than BURST of it says OverTime:

    a program that has all of the card for its 10 %      after 4 s
    10 points more than its share                        after a minute
    5 points more                                        never: measurements may be so wrong

Kernels that are as long as the limiter lets them be paid for (PATIENCE of native/limiter/pace.c, 10 s of wall
time at a rate r, so 10 r s of device time) are at most 10 r (1 - r) <= 2.5 s ahead of their share, which is
less than BURST. Longer ones are over their time, and it is right to say so.

The driver tells late, by a second at most, so a share that was changed, or lent to, is compared with the most
that it might have had within LATE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

TOLERATED: Final = 0.05
BURST: Final = 3_000_000_000
LATE: Final = 2_000_000_000
"""In ns, as all times here."""
WHOLE: Final = 10_000


@dataclass(frozen=True, slots=True)
class OverTime:
    """A claim had `percent` of a card for `seconds`; its share is `share` in percent."""

    claim: str
    uuid: str
    percent: float
    seconds: float
    share: float

    reason: ClassVar[str] = "OverTime"
    """the kernels of a claim have had more of the card's time than its share"""
    evicts: ClassVar[bool] = False
    """The time is past when it is told, and honest programs may have kernels too long to be paced."""

    def __str__(self) -> str:
        return (
            f"the driver saw its kernels on {self.uuid} for {self.percent:.0f}% of {self.seconds:.0f} s, the share "
            f"is {self.share:.0f}%"
        )


@dataclass(frozen=True, slots=True)
class TimeExcess:
    """Of one share, `until` an instant of the driver's clock: the `excess` since `since`, when there was none
    last, and what was `seen` since then. `allowed`: of the last LATE, until when which part might be had, in
    1/100 %. `is_over`: it was more than BURST, and is not gone again."""

    until: int
    since: int
    seen: int = 0
    excess: float = 0.0
    allowed: tuple[tuple[int, int], ...] = ()
    is_over: bool = False

    def later(self, until: int, *, seen: int, allowed: int) -> TimeExcess:
        """After the driver has seen the share's kernels for `seen` ns more."""
        recent = (*((at, part) for at, part in self.allowed if until - at < LATE), (until, allowed))
        part = max(each for _, each in recent) / WHOLE + TOLERATED
        excess = min(max(self.excess + seen - part * (until - self.until), 0.0), 2.0 * BURST)
        if not excess:
            return TimeExcess(until, until, allowed=recent)
        is_over = self.is_over or excess > BURST
        return replace(
            self, until=until, seen=self.seen + seen, excess=excess, allowed=recent, is_over=is_over
        )

    def told(self, claim: str, uuid: str) -> OverTime:
        passed = max(self.until - self.since, 1)
        share = max(part for _, part in self.allowed) / 100
        return OverTime(claim, uuid, 100 * self.seen / passed, passed / 1e9, share)

"""How long each process's kernels ran on a card, by what the driver samples. Pure.

The driver samples every process several times a second (1/6 s to 1 s, by product) and tells in how many
percent of its last period a kernel of it ran; of one that did nothing it tells nothing. So a sample stands
for the time since the one before it, of that process or of the card, but for not much more than a period; or,
where more than a period was between two questions, for that too: then samples were lost, and the newest
stands for them.

Which clock the driver uses, and how long its period is, it does not say. A clock that was set back shows as a
silence (it has nothing newer than `since`); after SILENCE without an answer everything that it keeps is asked
for, and counted from there on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from koordra.kubelet_plugin.sampling.nvml_cards import Utilisation

SILENCE: Final = 10.0
LONGEST: Final = 10_000_000
"""Microseconds that one sample stands for at most."""
PERIODS: Final = (166_667, 1_000_000)
"""Between which a driver's period is, in microseconds (nvml.h, nvmlDeviceGetProcessUtilization)."""


@dataclass(frozen=True, slots=True)
class CardClock:
    """Up to where a card's samples are counted: `since` in microseconds of the driver's clock, 0: nothing is
    known yet; `period`: the shortest time that was between two samples; `asked` and `answered` in seconds of
    our clock."""

    since: int = 0
    period: int = PERIODS[1]
    asked: float = 0.0
    answered: float = 0.0

    @property
    def question(self) -> int:
        """What to ask the driver for: samples after this."""
        return 0 if self.asked - self.answered > SILENCE else self.since


@dataclass(frozen=True, slots=True)
class SeenTime:
    """Nanoseconds by pid until `until`, in ns of the driver's clock. `began`: counting began here, so that
    what was before is not in any figure."""

    until: int
    ns: Mapping[int, int] = field(default_factory=dict)
    began: bool = False


def seen_time(
    clock: CardClock, samples: Iterable[Utilisation], *, now: float
) -> tuple[CardClock, SeenTime | None]:
    """What the samples that were got at `now` say; None where they say nothing new."""
    by_process = defaultdict[int, list[Utilisation]](list)
    for each in samples:
        by_process[each.pid].append(each)
    asked = replace(clock, asked=now)
    if not by_process:
        return asked, None
    newest = max(each.at for of in by_process.values() for each in of)
    if not clock.since or newest <= clock.since or clock.question != clock.since:
        began = replace(asked, since=newest, answered=now)
        return began, SeenTime(newest * 1000, began=True)
    gap = int((now - clock.asked) * 1e6)
    stamps = {pid: [clock.since, *sorted({each.at for each in of})] for pid, of in by_process.items()}
    steps = [after - before for of in stamps.values() for before, after in pairwise(of)]
    period = min(clock.period, max(PERIODS[0], min(steps)))
    most = min(period + (gap if gap > period else period // 2), LONGEST)
    percents = {(each.pid, each.at): each.percent for of in by_process.values() for each in of}
    ns = {
        pid: sum(percents[pid, after] * min(after - before, most) * 10 for before, after in pairwise(of))
        for pid, of in stamps.items()
    }
    return replace(asked, since=newest, period=period, answered=now), SeenTime(newest * 1000, ns)

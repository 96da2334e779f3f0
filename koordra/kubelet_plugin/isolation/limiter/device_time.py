"""Device time that nobody uses: who may have it.

A share whose `cores` are enforced (--limiter-cores, and coresPolicy of class or claim) has its rate, always.
What the active claims of a card leave of it is lent to those that are active and elastic: to the most urgent
(the smallest number) among them, in proportion to their rates. Claims learn nothing of each other but what
they may use.

    regions ──> shares of each card ──> `lent` ──> policy of each claim, for VALID seconds

What is lent ends by itself, so that no claim keeps another's time when this process is dead. A claim is
active when its processes have taken device time, or waited for it, a moment ago; they write that themselves:
one that lies keeps its own share from being lent. A share whose cores are only counted is always active.

The slowest to get its time back is who begins: up to STEP here and NAP (50 ms) in the limiter.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.open_region import OpenRegion, OpenRegions
from koordra.process.wakeable import Pause, Wakeable

WHOLE: Final = 10_000
MOST: Final = 9_900
"""More is not lent: a claim without any limit would no longer say that it is active."""
STEP: Final = 0.1
QUIET: Final = 1.0
VALID: Final = 1.0
ACTIVE_FOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class HeldTime:
    """What one claim has of one card: `index` of the card in its region, `rate` in 1/100 %, 0: not enforced;
    `lent` and `neighbours` as they are written now."""

    claim: str
    index: int
    uuid: str
    cores: int
    rate: int
    elastic: bool
    priority: int
    active: bool
    lent: int = 0
    neighbours: int = 0


def lent(shares: Iterable[HeldTime]) -> dict[tuple[str, int], int]:
    """What each may use in all while others leave it idle, in 1/100 %, by claim and index; those that are
    lent nothing are left out."""
    cards = defaultdict[str, list[HeldTime]](list)
    for share in shares:
        cards[share.uuid].append(share)
    found = {}
    for card in cards.values():
        idle = WHOLE - sum(share.rate or share.cores * 100 for share in card if share.active)
        wanting = [share for share in card if share.active and share.elastic and share.rate]
        first = min((share.priority for share in wanting), default=0)
        urgent = [share for share in wanting if share.priority == first]
        for share in urgent if idle > 0 else ():
            part = idle * share.rate // sum(each.rate for each in urgent)
            found[share.claim, share.index] = min(share.rate + part, MOST)
    return found


def held_time(regions: Mapping[str, OpenRegion], *, now: int) -> list[HeldTime]:
    """All claims' shares of this node, at `now` in ns of CLOCK_MONOTONIC. Who is active is read where
    something may be lent alone, of cards with an elastic share."""
    shares = [
        HeldTime(
            claim=claim,
            index=index,
            uuid=region.uuid_text(raw),
            cores=cores,
            rate=rate,
            elastic=bool(elastic),
            priority=priority,
            active=True,
            lent=given,
            neighbours=neighbours,
        )
        for claim, of in regions.items()
        for index, (raw, _, _, _, cores, priority, rate, given, _, _, _, neighbours, elastic) in enumerate(
            of.devices()
        )
    ]
    lending = {share.uuid for share in shares if share.elastic and share.rate}
    return [
        replace(share, active=_is_active(regions[share.claim].active(share.index), now))
        if share.rate and share.uuid in lending
        else share
        for share in shares
    ]


def _is_active(stamp: int | None, now: int) -> bool:
    """Also who cannot be asked: nothing of it is lent."""
    return stamp is None or 0 <= now - stamp < ACTIVE_FOR * 1e9


class TimeLender(Wakeable):
    """`claims` is the folder with one folder per claim. Who changes a share wakes it."""

    failed = "device_time_not_lent"

    def __init__(self, claims: Path, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._clock = clock
        self._regions = OpenRegions(claims, clock=lambda: clock() / 1e9)

    def step(self) -> Pause:
        self._regions.look_up()
        now = self._clock()
        shares = held_time(self._regions.by_claim, now=now)
        given, neighbours = lent(shares), _neighbours(shares)
        for share in shares:
            self._write(share, given.get((share.claim, share.index), 0), neighbours[share.uuid] - 1, now)
        pause = STEP if any(share.elastic and share.rate for share in shares) else QUIET
        return Pause(STEP, pause)

    def _write(self, share: HeldTime, amount: int, neighbours: int, now: int) -> None:
        if (amount, neighbours) == (0, share.neighbours) and not share.lent:
            return
        self._regions.by_claim[share.claim].write_lent(
            share.index,
            lent=amount,
            until=now + int(VALID * 1e9) if amount else 0,
            neighbours=neighbours,
        )


def _neighbours(shares: Iterable[HeldTime]) -> Mapping[str, int]:
    """Claims with a share of each card."""
    return Counter(uuid for uuid, _ in {(share.uuid, share.claim) for share in shares})

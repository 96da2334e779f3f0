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

import os
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.usage import read_policy
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


def held_time(claims: Path, *, now: int) -> list[HeldTime]:
    """All claims' shares of this node, at `now` in ns of CLOCK_MONOTONIC; a region that comes or goes, or is
    damaged, is left out or counts as active."""
    found = []
    for folder in sorted(claims.iterdir()) if claims.is_dir() else ():
        try:
            policy = read_policy(folder)
            active = _active(folder / "usage", len(policy))
        except (OSError, NodeError):
            continue
        for index, (raw, _, _, _, cores, priority, rate, given, *rest) in enumerate(policy):
            stamp = active[index]
            found.append(
                HeldTime(
                    claim=folder.name,
                    index=index,
                    uuid=region.uuid_text(raw),
                    cores=cores,
                    rate=rate,
                    elastic=bool(rest[4]),
                    priority=priority,
                    active=rate == 0 or stamp is None or 0 <= now - stamp < ACTIVE_FOR * 1e9,
                    lent=given,
                    neighbours=rest[3],
                )
            )
    return found


def _active(path: Path, count: int) -> list[int | None]:
    """When each device's time was last taken; None: not readable."""
    with path.open("rb", buffering=0) as file:
        paces = os.pread(file.fileno(), count * region.PACE.size, region.PACES)
    whole = len(paces) // region.PACE.size
    stamps: list[int | None] = [
        struct.unpack_from("=Q", paces, index * region.PACE.size + region.ACTIVE)[0] for index in range(whole)
    ]
    return stamps + [None] * (count - whole)


class TimeLender(Wakeable):
    """`claims` is the folder with one folder per claim."""

    failed = "device_time_not_lent"

    def __init__(self, claims: Path, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._claims = claims
        self._clock = clock

    def step(self) -> Pause:
        now = self._clock()
        shares = held_time(self._claims, now=now)
        given = lent(shares)
        for share in shares:
            self._write(share, given, _neighbours(shares, share), now)
        pause = STEP if any(share.elastic and share.rate for share in shares) else QUIET
        return Pause(pause, pause)

    def _write(
        self, share: HeldTime, given: Mapping[tuple[str, int], int], neighbours: int, now: int
    ) -> None:
        amount = given.get((share.claim, share.index), 0)
        if (amount, neighbours) == (0, share.neighbours) and not share.lent:
            return
        try:
            region.write_lent(
                self._claims / share.claim,
                share.index,
                lent=amount,
                until=now + int(VALID * 1e9) if amount else 0,
                neighbours=neighbours,
            )
        except OSError:  # it is being taken away
            return


def _neighbours(shares: Iterable[HeldTime], of: HeldTime) -> int:
    return sum(1 for share in shares if share.uuid == of.uuid and share.claim != of.claim)

"""Tells each claim how long its kernels really ran, by the node's sampler: the limiter's measurements are
corrected by it (native/limiter/pace.c).

    NVML ──> sampler ──> ns by pid ──> claim ──> `device_time`, `seen_until` of its policy

It is told of all claims of a card whenever the driver has sampled the card, also of those that had nothing of
it, so that each knows up to when it was seen. It is not told where the figure would not be the claim's alone:
to a container with two shares of one card; where the driver's pids are not those that this process sees; of a
card whose driver tells nothing (`seen_until` stays 0, and the measurements stand).

A claim is told of nothing but itself, by the file that it cannot write. What it writes into its own region
changes nothing of this.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.usage import read_policy
from koordra.kubelet_plugin.sampling.device_time import SeenTime
from koordra.kubelet_plugin.sampling.host_processes import Process

LOOKED_UP: Final = 1.0
"""Seconds for which it is remembered which claims have a part of which card."""


class _Share(NamedTuple):
    """`at`: the card's number in the claim's region."""

    claim: str
    at: int


class SeenTimes:
    """`claims` is the folder with one folder per claim. For one thread."""

    def __init__(self, claims: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims = claims
        self._clock = clock
        self._looked_at = -LOOKED_UP
        self._shares: dict[str, tuple[_Share, ...]] = {}
        self._told: dict[_Share, int] = {}

    def cards(self) -> Collection[str]:
        """Those of which a claim has an enforced part."""
        now = self._clock()
        if now - self._looked_at >= LOOKED_UP:
            self._looked_at, self._shares = now, _shares(self._claims)
            known = {share for of in self._shares.values() for share in of}
            self._told = {share: ns for share, ns in self._told.items() if share in known}
        return self._shares.keys()

    def tell(self, uuid: str, seen: SeenTime, owners: Mapping[int, Process]) -> None:
        shares = self._shares.get(uuid, ())
        there = {share.claim for share in shares}
        ns = defaultdict[str, int](int)
        mixed: set[str] = set()
        for pid, of_process in seen.ns.items():
            claims = [claim for claim in (owners[pid].claims if pid in owners else ()) if claim in there]
            mixed |= set(claims) if len(claims) > 1 else set()
            for claim in claims:
                ns[claim] += of_process
        for share in shares:
            anew = seen.began or share not in self._told or share.claim in mixed
            self._told[share] = 0 if anew else self._told[share] + ns[share.claim]
            try:
                region.write_seen_time(
                    self._claims / share.claim,
                    share.at,
                    device_time=self._told[share],
                    until=seen.until,
                )
            except OSError:  # it is being taken away
                continue


def _shares(claims: Path) -> dict[str, tuple[_Share, ...]]:
    found = defaultdict[str, list[_Share]](list)
    for folder in sorted(claims.iterdir()) if claims.is_dir() else ():
        try:
            policy = read_policy(folder)
        except (OSError, NodeError):
            continue
        for index, (raw, _, _, _, _, _, rate, *_) in enumerate(policy):
            if rate:
                found[region.uuid_text(raw)].append(_Share(folder.name, index))
    return {uuid: tuple(shares) for uuid, shares in found.items()}

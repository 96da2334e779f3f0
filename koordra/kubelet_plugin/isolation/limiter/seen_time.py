"""Tells each claim how long its kernels really ran, by the node's sampler: the limiter's measurements are
corrected by it (native/limiter/pace.c).

    NVML ──> sampler ──> ns by pid ──> claim ──> `device_time`, `seen_until` of its policy

It is told of all claims of a card whenever the driver has sampled the card, also of those that had nothing of
it, so that each knows up to when it was seen. It is not told where the figure would not be the claim's alone:
to a container with two shares of one card; where the driver's pids are not those that this process sees; of a
card whose driver tells nothing (`seen_until` stays 0, and the measurements stand).

Which claims have had more than their share for a while is kept in `over` (overtime.py).

A claim is told of nothing but itself, by the file that it cannot write. What it writes into its own region
changes nothing of this.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from koordra.kubelet_plugin.isolation.limiter.open_region import OpenRegion, OpenRegions
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime, TimeExcess
from koordra.kubelet_plugin.isolation.limiter.region import uuid_text
from koordra.kubelet_plugin.sampling.device_time import SeenTime
from koordra.kubelet_plugin.sampling.host_processes import Process


class _Share(NamedTuple):
    """`at`: the card's number in the claim's region."""

    claim: str
    at: int


class SeenTimes:
    """`claims` is the folder with one folder per claim. For one thread; `over`, by claim, for any."""

    def __init__(self, claims: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._regions = OpenRegions(claims, clock=clock)
        self._shares: dict[str, tuple[_Share, ...]] = {}
        self._told: dict[_Share, int] = {}
        self._excess: dict[_Share, TimeExcess] = {}
        self.over: Mapping[str, OverTime] = {}

    def cards(self) -> Collection[str]:
        """Those of which a claim has an enforced part."""
        before = self._regions.by_claim
        if self._regions.look_up():
            self._keep_shares(before)
        return self._shares.keys()

    def _keep_shares(self, before: Mapping[str, OpenRegion]) -> None:
        """What is known of a share is of its region: another one begins anew."""
        now = self._regions.by_claim
        shares = defaultdict[str, list[_Share]](list)
        for claim, region in now.items():
            for at, (raw, _, _, _, _, _, rate, *_) in enumerate(region.devices()):
                if rate:
                    shares[uuid_text(raw)].append(_Share(claim, at))
        kept = {
            share for of in shares.values() for share in of if now[share.claim] is before.get(share.claim)
        }
        self._told = {share: ns for share, ns in self._told.items() if share in kept}
        self._excess = {share: each for share, each in self._excess.items() if share in kept}
        held = {(share.claim, uuid) for uuid, of in shares.items() for share in of}
        self.over = {claim: each for claim, each in self.over.items() if (claim, each.uuid) in held}
        self._shares = {uuid: tuple(of) for uuid, of in shares.items()}

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
            region = self._regions.by_claim[share.claim]
            region.write_seen_time(share.at, device_time=self._told[share], until=seen.until)
            known = None if anew else self._excess.get(share)
            self._excess[share] = (known or TimeExcess(seen.until, seen.until)).later(
                seen.until, seen=0 if known is None else ns[share.claim], allowed=region.allowed(share.at)
            )
        self._judge(uuid, shares)

    def _judge(self, uuid: str, shares: Iterable[_Share]) -> None:
        """Who is over its time keeps its first figures, so that nothing is written again for each second
        more."""
        over = {
            share.claim: self._excess[share].told(share.claim, uuid)
            for share in shares
            if self._excess[share].is_over
        }
        others = {claim: each for claim, each in self.over.items() if each.uuid != uuid}
        kept = {claim: each for claim, each in self.over.items() if each.uuid == uuid and claim in over}
        self.over = {**over, **kept, **others}

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
from typing import Final, NamedTuple

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime, TimeExcess
from koordra.kubelet_plugin.isolation.limiter.region import PolicyFile
from koordra.kubelet_plugin.sampling.device_time import SeenTime
from koordra.kubelet_plugin.sampling.host_processes import Process

LOOKED_UP: Final = 1.0
"""Seconds for which it is remembered which claims have a part of which card."""


class _Share(NamedTuple):
    """`at`: the card's number in the claim's region."""

    claim: str
    at: int


class SeenTimes:
    """`claims` is the folder with one folder per claim. For one thread; `over`, by claim, for any."""

    def __init__(self, claims: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims = claims
        self._clock = clock
        self._looked_at = -LOOKED_UP
        self._policies: dict[str, PolicyFile] = {}
        self._shares: dict[str, tuple[_Share, ...]] = {}
        self._told: dict[_Share, int] = {}
        self._excess: dict[_Share, TimeExcess] = {}
        self.over: Mapping[str, OverTime] = {}

    def cards(self) -> Collection[str]:
        """Those of which a claim has an enforced part."""
        now = self._clock()
        if now - self._looked_at >= LOOKED_UP:
            self._looked_at = now
            self._look_up()
        return self._shares.keys()

    def _look_up(self) -> None:
        shares = defaultdict[str, list[_Share]](list)
        policies: dict[str, PolicyFile] = {}
        for folder in sorted(self._claims.iterdir()) if self._claims.is_dir() else ():
            known = self._policies.get(folder.name)
            try:
                policy = known if known is not None and known.is_of(folder) else PolicyFile(folder)
            except (OSError, NodeError):  # it comes, goes, or is another koordra's
                continue
            policies[folder.name] = policy
            for at, (uuid, rate) in enumerate(policy.rates()):
                if rate:
                    shares[uuid].append(_Share(folder.name, at))
        kept = {share for of in shares.values() for share in of}
        self._told = {
            share: ns
            for share, ns in self._told.items()
            if share in kept and policies[share.claim] is self._policies.get(share.claim)
        }
        self._excess = {share: each for share, each in self._excess.items() if share in self._told}
        held = {(share.claim, uuid) for uuid, of in shares.items() for share in of}
        self.over = {claim: each for claim, each in self.over.items() if (claim, each.uuid) in held}
        for claim, policy in self._policies.items():
            if policies.get(claim) is not policy:
                policy.close()
        self._policies, self._shares = policies, {uuid: tuple(of) for uuid, of in shares.items()}

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
            policy = self._policies[share.claim]
            policy.write_seen_time(share.at, device_time=self._told[share], until=seen.until)
            known = None if anew else self._excess.get(share)
            self._excess[share] = (known or TimeExcess(seen.until, seen.until)).later(
                seen.until, seen=0 if known is None else ns[share.claim], allowed=policy.allowed(share.at)
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

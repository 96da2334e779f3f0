"""Whether a claim's processes have more of a card than its share, by what the driver says of them. Pure, but
for the samples that it keeps.

What goes past the limiter (a driver that is loaded behind it, a statically linked program, requests of its
own on the device nodes) counts against the claim as `unseen`, so the limiter refuses what follows; it cannot
take back what is there. So what NVML reports for the claim's processes is compared with

    limit + what a context takes on such a card

SAMPLES times, EVERY seconds apart: memory that comes and goes between two requests is no overuse. Then the
claim's condition says OverLimit, within 10 s of the first such byte; `--on-overuse evict` evicts its pods.

Cards on which an MPS server computes are left out: NVML charges the server for what its clients use, and who
the clients are it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse

SAMPLES: Final = 3
EVERY: Final = 2.0

Share = tuple[str, str]
"""A claim's uid and a card's UUID."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """Bytes of a card: `used` by the claim's processes, `limit` of its share, `context` for one context."""

    claim: str
    uuid: str
    used: int
    limit: int
    context: int

    reason: ClassVar[str] = "OverLimit"
    """the processes of a claim have more of the card's memory than its share"""
    evicts: ClassVar[bool] = True
    """What is there stays until its process ends."""

    def __str__(self) -> str:
        return (
            f"its processes have {mib(self.used)} of {self.uuid}, the share is {mib(self.limit)} and a context "
            f"takes {mib(self.context)}"
        )


def over_limit(uses: Mapping[str, ClaimUse], in_use: Mapping[Share, int]) -> dict[Share, Overuse]:
    """The shares that are over now. `in_use` has those that NVML's figures can be trusted for."""
    found = {
        (uid, device.uuid): Overuse(
            uid, device.uuid, in_use[uid, device.uuid], device.limit, device.context_bytes
        )
        for uid, use in uses.items()
        for device in use.devices
        if device.limit is not None and (uid, device.uuid) in in_use
    }
    return {share: each for share, each in found.items() if each.used > each.limit + each.context}


class OveruseSamples:
    """Counts how often in a row a share was over."""

    def __init__(self) -> None:
        self._seen: dict[Share, tuple[int, float]] = {}
        self._told: dict[str, Overuse] = {}

    def add(self, over: Mapping[Share, Overuse], *, now: float) -> dict[str, Overuse]:
        """The claims that were over in SAMPLES samples, each EVERY seconds after the one before; a reading in
        between in which a share is not over begins anew. A claim keeps its first figures, so that nothing is
        written again for each byte more."""
        seen: dict[Share, tuple[int, float]] = {}
        for share in over:
            count, last = self._seen.get(share, (0, now - EVERY))
            seen[share] = (count + 1, now) if now - last >= EVERY else (count, last)
        self._seen = seen
        sure = {over[share].claim: over[share] for share, (count, _) in seen.items() if count >= SAMPLES}
        self._told = {claim: self._told.get(claim, each) for claim, each in sure.items()}
        return self._told


def mib(count: int) -> str:
    return f"{count >> 20}Mi"

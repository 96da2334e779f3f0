"""A card in virtual time whose tenants are real processes with the real limiter, and whose node is the
caller: native/test/shares. Time passes when the caller says so, and stands still otherwise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.region import TimeShare
from tests.unit.limiter.native_build import environment

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
"""Of the fake driver's first card."""
MS = 1_000_000


@dataclass
class SharedCard:
    """`claims` is the folder of the claims' regions, `pids` the tenants' processes, `device_ns` how long each
    has really had the card, `now` how much time has passed, in ns."""

    claims: Path
    process: subprocess.Popen[str]
    pids: list[int] = field(default_factory=list)
    device_ns: list[int] = field(default_factory=list)
    now: int = 0

    def claim_of(self, pid: int) -> str | None:
        return f"claim-{self.pids.index(pid)}" if pid in self.pids else None

    def pass_time(self, ns: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{ns}\n")
        self.process.stdin.flush()
        self.now += ns
        self.read()

    def read(self) -> None:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, "the tenants have ended"
        self.pids, self.device_ns = [int(word) for word in words[::2]], [int(word) for word in words[1::2]]

    def parts(
        self, ns: int, *, look: Callable[[], None], window: int = 1000 * MS, step: int = 50 * MS
    ) -> list[tuple[float, float]]:
        """The least and the most part that each tenant had in any window within the next `ns`, in percent;
        `look` is called after each step."""
        seen = [list(self.device_ns)]
        for _ in range(ns // step):
            self.pass_time(step)
            look()
            seen.append(list(self.device_ns))
        width = window // step
        shares = [
            [
                100 * (after[tenant] - before[tenant]) / window
                for before, after in zip(seen, seen[width:], strict=False)
            ]
            for tenant in range(len(self.pids))
        ]
        return [(min(of), max(of)) for of in shares]


@contextmanager
def shared_card(
    built: Path, folder: Path, tenants: Sequence[tuple[int, str]], *, sms: int = 132
) -> Iterator[SharedCard]:
    """`tenants`: the rate of each, in percent, and what it does (LOADS of native/test/shares)."""
    claims, arguments = folder / "claims", []
    for number, (percent, load) in enumerate(tenants):
        own = folder / "own" / str(number)
        region.allow(
            own / f"claim-{number}",
            claim=f"claim-{number}",
            uuid=UUID,
            limit=None,
            cores=percent,
            time=TimeShare(percent * 100),
        )
        claims.mkdir(exist_ok=True)
        (claims / f"claim-{number}").symlink_to(own / f"claim-{number}")
        arguments += [str(own), load]
    around = environment(built, regions=claims, world=folder)
    with subprocess.Popen(
        [str(built / "test" / "shares"), str(sms), *arguments],
        env=around,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        card = SharedCard(claims, process)
        card.read()
        try:
            yield card
        finally:
            process.kill()

"""What is kept of parts of the card's time (--limiter-cores), with PyTorch: claims with `cores` and
coresPolicy Hard, one capped alone, and two beside each other, with small kernels, large products and CUDA
graphs. A part is what a program gets done with it, of what it gets done without a limit.

    cores: small, cores: gemm, cores: graph      a step each, with the figures

Nobody has seen this on a card yet, so a step says what it has found, and is a problem only where a limit has
no effect: DIFFERENCE points beside the share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.selftest.claims import LIMITER, AppliedClaim, ClaimPreparation, WantedClaim
from koordra.kubelet_plugin.selftest.container import Container
from koordra.kubelet_plugin.selftest.program_runs import Answer, run
from koordra.kubelet_plugin.selftest.report import Finding, ok, problem, skipped
from koordra.topology.machine import Gpu

TRIALS: Final[tuple[tuple[int, ...], ...]] = ((0,), (30,), (30, 70), (10, 90))
"""Percent of each claim; 0: no limit, which the others are compared with."""
SECONDS: Final = 4.0
STARTS_WITHIN: Final = 15.0
"""Seconds that a program has to begin with CUDA: all of a trial begin together."""
LONGEST: Final = len(TRIALS) * (STARTS_WITHIN + 2 * SECONDS)
"""Seconds that a load takes at most, if nothing hangs."""
DIFFERENCE: Final = 15.0
"""Points beside the share that say that a limit has no effect."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One program of a trial: `percent` is its share."""

    percent: int
    per_second: float
    launch_us: float
    late: float
    charged: float
    waited: float

    def document(self, whole: float) -> dict[str, float]:
        return {
            "share": self.percent,
            "part": round(100 * self.per_second / whole, 1) if whole else 0.0,
            "perSecond": round(self.per_second, 2),
            "launchMicroseconds": round(self.launch_us, 2),
            "late": round(self.late, 2),
            "chargedSeconds": round(self.charged, 3),
            "waitedSeconds": round(self.waited, 3),
        }


class CoreShares:
    """`container` makes one for a folder of its own; `program` is the command of a program of the self test,
    by its name and arguments."""

    def __init__(
        self,
        claims: ClaimPreparation,
        container: Callable[[Path], Container],
        *,
        gpu: Gpu,
        memory: int,
        folder: Path,
        program: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._claims, self._container = claims, container
        self._gpu, self._memory, self._folder = gpu, memory, folder
        self._program = program

    def try_load(self, load: str) -> Finding:
        """With the figures of every trial."""
        found: list[list[Measured]] = []
        for shares in TRIALS:
            answers = self._trial(load, shares)
            wrong = next((each for each in answers if isinstance(each, Answer)), None)
            if wrong is not None:
                if wrong.lacking:
                    return skipped(wrong.lacking)
                return problem(
                    f"{_shares(shares)}: {wrong.failure}", "try the load alone: programs.torch_load"
                )
            found.append([each for each in answers if isinstance(each, Measured)])
        whole = found[0][0].per_second
        figures = {
            _shares(shares): [each.document(whole) for each in measured]
            for shares, measured in zip(TRIALS, found, strict=True)
        }
        return replace(judged(found, whole), details={"trials": figures})

    def _trial(self, load: str, shares: Sequence[int]) -> list[Measured | Answer]:
        with ExitStack() as held:
            applied = [
                held.enter_context(
                    self._claims.prepared(
                        WantedClaim(
                            f"cores-{number}", self._gpu, self._memory // len(shares), LIMITER, cores=share
                        )
                    )
                )
                for number, share in enumerate(shares)
            ]
            begin = time.monotonic() + STARTS_WITHIN
            with ThreadPoolExecutor(len(applied)) as pool:
                return list(
                    pool.map(lambda pair: self._run(load, begin, *pair), zip(applied, shares, strict=True))
                )

    def _run(self, load: str, begin: float, claim: AppliedClaim, share: int) -> Measured | Answer:
        folder = self._folder / claim.name
        folder.mkdir(parents=True, exist_ok=True)
        argv = self._program(["torch_load", load, str(SECONDS), str(begin)])
        command = self._container(folder).command(claim, argv, {})
        answer = run(command, folder=folder, deadline=STARTS_WITHIN + 3 * SECONDS + 30)
        if answer.document is None:
            return answer
        said = answer.document
        assert claim.region is not None
        card = usage.read(claim.region).devices[0]
        return Measured(
            share,
            float(said["perSecond"]),
            float(said["launchUs"]),
            float(said["late"]),
            card.device_ns / 1e9,
            card.waited_ns / 1e9,
        )


def judged(found: Sequence[Sequence[Measured]], whole: float) -> Finding:
    limited = [each for measured in found for each in measured if each.percent]
    if any(each.charged == 0 for each in limited):
        return problem(
            "the limiter has seen no launch of a limited program",
            "attach this report: a way to launch is not known",
        )
    parts = [(each.percent, 100 * each.per_second / whole if whole else 0.0) for each in limited]
    text = "; ".join(f"{share}% got {part:.1f}%" for share, part in parts)
    late = max(each.late for measured in found for each in measured)
    if late > 0.5:
        return ok(f"{text}; not comparable: a program began {late:.1f} s late")
    if any(part > share + DIFFERENCE for share, part in parts):
        return problem(f"{text}: a limit has no effect", "attach this report")
    return ok(text)


def _shares(shares: Sequence[int]) -> str:
    return " and ".join(f"{share}%" if share else "no limit" for share in shares)

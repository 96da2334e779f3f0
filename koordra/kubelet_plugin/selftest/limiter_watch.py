"""What the limiter and the card say while a program of a limited claim runs.

A program is limited if a process of it takes a slot in the claim's region. The limiter's ledger there says
what the program was granted; the plugin's reconciler, which compares the ledger with NVML and counts what
went past it, does not run here. So NVML is asked beside the program (programs/card_memory.py), and what the
card has more in use than before is held against the limit."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse
from koordra.kubelet_plugin.selftest.container import Command
from koordra.kubelet_plugin.selftest.judgement import SLACK, Expected, size
from koordra.kubelet_plugin.selftest.report import Finding, problem

_BEGINS_WITHIN: Final = 20.0
_ENDS_WITHIN: Final = 5.0


@dataclass(slots=True)
class LimiterWatch:
    """`before`: the region before the program; `more`: the bytes that the card had in use at most while it
    ran, beyond those at first, None where NVML did not say."""

    region: Path
    before: ClaimUse
    more: int | None = None

    def judged(self, finding: Finding, expected: Expected) -> Finding:
        """The finding of a program that has ended, unless it was not limited, or got more than its limit."""
        now = usage.read(self.region)
        processes = now.started - self.before.started
        refused = now.devices[0].denied - self.before.devices[0].denied
        figures = {"limiter": {"processes": processes, "refused": refused}, "moreOnCard": self.more}
        details = {**finding.details, **figures}
        if not processes:
            text = "the limiter was not in force: no process of the program is in the claim's region"
            return problem(f"{finding.found}; {text}", "see which libcuda it had mapped", **details)
        if (self.more or 0) > expected.most + SLACK:
            text = f"{size(self.more)} more on the card by NVML, of {size(expected.most)}"
            remedy = "see that nothing else used the card meanwhile; then attach this report"
            return problem(f"{finding.found}; {text}", remedy, **details)
        return replace(finding, details=details)


@contextmanager
def watched(region: Path | None, card_memory: Command) -> Iterator[LimiterWatch | None]:
    """Around a program; None for a claim without a region. Raises NodeError where the region cannot be
    read."""
    if region is None:
        yield None
        return
    watch, process = LimiterWatch(region, usage.read(region)), _started(card_memory)
    try:
        yield watch
        watch.more = _more(process) if process else None
    finally:
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_ENDS_WITHIN)


def _started(command: Command) -> subprocess.Popen[bytes] | None:
    """The program, once it watches or has ended; None where it cannot be started."""
    try:
        process = subprocess.Popen(
            command.argv,
            env=dict(command.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    if process.stdout is not None:
        begun = select.poll()  # select.select takes no descriptor above 1,023
        begun.register(process.stdout, select.POLLIN)
        if begun.poll(_BEGINS_WITHIN * 1000):
            process.stdout.readline()
    return process


def _more(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired, ValueError, TypeError):
        first, most = json.loads(process.communicate(b"end\n", timeout=_ENDS_WITHIN)[0])
        return int(most - first)
    return None

"""A program in a child process with a deadline, and what it answered.

A program prints one line that begins with MARK and goes on with a JSON document: its answer
(programs/answer.py). What else it prints is kept for the report. A program that crashes, hangs, or says
nothing is an answer too; it never takes the self test with it: it runs in a session of its own, which is
killed as a whole at its deadline."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordra.kubelet_plugin.selftest.container import Command
from koordra.kubelet_plugin.selftest.namespace_init import NO_CONTAINER
from koordra.kubelet_plugin.selftest.programs.answer import MARK
from koordra.kubelet_plugin.selftest.report import Finding, skipped

_KEPT: Final = 64 << 10
LEAST_SECONDS: Final = 5.0
"""With less of the budget left no program is begun."""
_KILLED_WITHIN: Final = 5.0
_LARGEST_FILE: Final = 1 << 30
"""Of the files that a program may write."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`document` None: the program gave none, and `failure` says why. `lacking`: what is not installed, so
    that there is nothing to try; `no_container`: it was never started."""

    document: Mapping[str, Any] | None = None
    failure: str = ""
    lacking: str = ""
    no_container: bool = False
    output: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code, negative for a signal, None where it was killed at its deadline;
    and the ends of what it printed."""

    code: int | None
    output: str
    errors: str


def ended(command: Command, *, folder: Path, deadline: float, kept: int = _KEPT) -> Ended:
    """Run it for `deadline` seconds at most; its output goes through files in `folder`, so that a program
    that prints without end fills no disk; the last `kept` bytes of each are returned. Raises OSError where
    it cannot be started."""
    output, errors = folder / "stdout", folder / "stderr"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command.argv,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd=folder,
        )
        with suppress(OSError, ValueError):  # it has ended, its limit is lower, or a sandbox has none
            most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_LARGEST_FILE, most))
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=deadline)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # One that hangs in the driver is not killed before the driver lets it go: it is left to itself.
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_KILLED_WITHIN)
    return Ended(code, _end(output, kept), _end(errors, kept))


def run(command: Command, *, folder: Path, deadline: float) -> Answer:
    """What the program answers within `deadline` seconds."""
    try:
        end = ended(command, folder=folder, deadline=deadline)
    except OSError as error:
        return Answer(failure=f"it cannot be started: {error}")
    return read_answer(end.code, end.output, end.errors, deadline=deadline)


def read_answer(code: int | None, output: str, errors: str, *, deadline: float) -> Answer:
    """`code` None: it was killed at its deadline."""
    said = next((line[len(MARK) :] for line in reversed(output.splitlines()) if line.startswith(MARK)), None)
    shown = f"{output}\n--- stderr\n{errors}"
    if code is None:
        return Answer(failure=f"it did not end within {deadline:.0f} s and was killed", output=shown)
    if code == NO_CONTAINER and said is None:
        return Answer(failure=_last_line(errors), no_container=True, output=shown)
    number = -code if code < 0 else code - 128
    if code != 0 and 0 < number < signal.NSIG:
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        return Answer(failure=f"it crashed with {name}: {_last_line(errors)}", output=shown)
    try:
        document = json.loads(said) if said else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return Answer(failure=f"it ended with {code} and no answer: {_last_line(errors)}", output=shown)
    if "lacking" in document:
        return Answer(lacking=str(document["lacking"]), output=shown)
    if "failure" in document:
        return Answer(failure=str(document["failure"]), output=shown)
    return Answer(document=document, output=shown)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it printed nothing"


def _end(path: Path, kept: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - kept))
        return file.read().decode(errors="replace")


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._from = time.monotonic()

    @property
    def left(self) -> float:
        return self.budget - (time.monotonic() - self._from)

    def used_up(self) -> Finding:
        return skipped(f"the budget of {self.budget:.0f} s is used up")

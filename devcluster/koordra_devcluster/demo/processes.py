"""The demo's processes: started, watched, started again when they die, and ended together.

A process that dies is started again with the same arguments, as systemd or the kubelet would do it: at once
the first time, after a growing pause when it keeps dying. Children get a process group of their own, so that
Ctrl-C reaches the demo alone, and they end by themselves when the demo is killed
(koordra/process/lifecycle.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from koordra.errors import ClusterError
from koordra.process.lifecycle import PARENT_VARIABLE

GRACE = 8.0
"""Seconds a process has to end after SIGTERM before it is killed."""

TOO_OFTEN = 10
"""Deaths in a row after which the demo gives up on a process."""

STEADY = 10.0
"""Seconds after which a process that was started again counts as well."""


@dataclass(frozen=True, slots=True)
class Program:
    """One koordra command: `name` for messages and its log file, `arguments` after `koordra`."""

    name: str
    arguments: tuple[str, ...]


@dataclass(slots=True)
class _Running:
    program: Program
    process: subprocess.Popen[bytes]
    started: float
    deaths: int = 0
    restart_at: float | None = field(default=None)


class ProcessGroup:
    """The running programs. Not thread-safe: the demo's main thread owns it."""

    def __init__(self, logs: Path, *, say: Callable[[str], None]) -> None:
        self._logs = logs
        self._say = say
        self._running: dict[str, _Running] = {}

    def start(self, program: Program) -> None:
        self._running[program.name] = _Running(program, self._spawn(program), time.monotonic())

    def pids(self) -> dict[str, int]:
        """Process id by program name."""
        return {name: running.process.pid for name, running in self._running.items()}

    def supervise(self) -> None:
        """Start again what has died. Raises ClusterError when one program cannot be kept alive."""
        now = time.monotonic()
        for name, running in self._running.items():
            if running.restart_at is None and running.process.poll() is not None:
                running.deaths = 1 if now - running.started > STEADY else running.deaths + 1
                if running.deaths >= TOO_OFTEN:
                    self.say_last_words(name)
                    raise ClusterError(f"{name} ended {running.deaths} times; its last words are above")
                pause = 0.0 if running.deaths == 1 else min(0.2 * 2**running.deaths, 5.0)
                running.restart_at = now + pause
                self._say(f"{name} ended ({_ending(running.process.returncode)}); starting it again")
            if running.restart_at is not None and now >= running.restart_at:
                running.process = self._spawn(running.program)
                running.restart_at, running.started = None, now

    def stop(self) -> None:
        """End everything, last started first; whoever does not listen is killed."""
        ordered = list(reversed(self._running.values()))
        for running in ordered:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for running in ordered:
            try:
                running.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._say(f"{running.program.name} did not end in time and was killed")
                running.process.kill()
                running.process.wait()
        self._running.clear()

    def say_last_words(self, name: str, lines: int = 15) -> None:
        """The end of a program's log, line by line."""
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            text = ""
        for line in text.splitlines()[-lines:] or ("nothing",):
            self._say(f"{name} said: {line}")

    def _command(self, program: Program) -> list[str]:
        return [sys.executable, "-m", "koordra", *program.arguments]

    def _spawn(self, program: Program) -> subprocess.Popen[bytes]:
        with (self._logs / f"{program.name}.log").open("ab") as log:
            return subprocess.Popen(
                self._command(program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", PARENT_VARIABLE: str(os.getpid())},
            )


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"

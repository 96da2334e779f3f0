"""How much do several processes of one claim get together, when each takes what it can?

two_processes           starts two of the other form at once
two_processes fill      makes a context and says so; when it is told to, takes 64 MiB at a time until it is
                        refused, says how much, and holds it until its standard input ends
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer
from koordra.kubelet_plugin.selftest.programs.cuda_driver import MIB, CudaDriver

PROCESSES = 2
PIECE = 64 * MIB
MOST = 1 << 14


def fill() -> None:
    driver = CudaDriver()
    driver.begin()
    say({"begun": True})
    sys.stdin.readline()
    taken, code = 0, 0
    while taken < MOST and code == 0:
        code, _ = driver.allocate(PIECE)
        taken += code == 0
    say({"bytes": taken * PIECE, "refusedWith": code})
    sys.stdin.read()


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Filling:
    """One of the processes; what it does not answer is an empty document."""

    def __init__(self) -> None:
        command = [
            sys.executable,
            "-m",
            "koordra.kubelet_plugin.selftest.programs.two_processes",
            "fill",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline() or "{}"))

    def go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def end(self) -> int:
        self._process.communicate(timeout=60)
        return self._process.returncode


def ask() -> dict[str, Any]:
    filling = [Filling() for _ in range(PROCESSES)]
    begun = [each.said() for each in filling]
    for each in filling:
        each.go()
    said = [each.said() for each in filling]
    ended = [each.end() for each in filling]
    return {
        "begun": [bool(each) for each in begun],
        "bytes": [each.get("bytes") for each in said],
        "refusedWith": [each.get("refusedWith") for each in said],
        "ended": ended,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["fill"]:
        fill()
    else:
        answer(ask)

"""native/bench/gpu.c in a container: what calls cost, and each kind of memory taken until it is refused.

native_bench PROGRAM costs PAIRS
native_bench PROGRAM limit
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import LackingError, answer

ROUNDS = 3


def measured(program: str, arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{Path(program).name} ends with {done.returncode}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def ask() -> dict[str, Any]:
    program, *arguments = sys.argv[1:]
    if not Path(program).exists():
        raise LackingError(f"{program} is not built: make -C native bench-gpu")
    rounds = [measured(program, arguments) for _ in range(ROUNDS if arguments[0] == "costs" else 1)]
    if arguments[0] == "limit":
        return dict(rounds[0])
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


if __name__ == "__main__":
    answer(ask)

"""PyTorch as a load for the card's time: what it gets done beside others.

torch_load LOAD SECONDS AT      waits until AT (seconds of CLOCK_MONOTONIC), so that several begin together

small    additions of a few thousand numbers, one launch each
gemm     products of large matrices, milliseconds each
graph    the small ones, captured once as a CUDA graph and replayed
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer, torch_with_cuda

LAUNCHES = 64
SIDE = 4096
NUMBERS = 1 << 14


def small(torch: Any) -> Callable[[], object]:
    x = torch.zeros(NUMBERS, device="cuda")

    def act() -> None:
        for _ in range(LAUNCHES):
            x + 1

    return act


def gemm(torch: Any) -> Callable[[], object]:
    left, right = torch.randn(SIDE, SIDE, device="cuda"), torch.randn(SIDE, SIDE, device="cuda")
    return lambda: left @ right


def graph(torch: Any) -> Callable[[], object]:
    act, made = small(torch), torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        act()
    replay: Callable[[], object] = made.replay
    return replay


LOADS = {"small": small, "gemm": gemm, "graph": graph}


def ask() -> dict[str, Any]:
    name, seconds, begin = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    torch = torch_with_cuda()
    act = LOADS[name](torch)
    for _ in range(3):
        act()
    torch.cuda.synchronize()
    late = time.monotonic() - begin
    time.sleep(max(0.0, -late))
    began, done, launching = time.monotonic(), 0, []
    while time.monotonic() - began < seconds:
        at = time.monotonic()
        act()
        launching.append(time.monotonic() - at)
        torch.cuda.synchronize()
        done += 1
    took = time.monotonic() - began
    return {
        "version": torch.__version__,
        "perSecond": done / took,
        "late": max(0.0, late),
        "launchUs": min(launching) * 1e6 / (LAUNCHES if name == "small" else 1),
    }


if __name__ == "__main__":
    answer(ask)

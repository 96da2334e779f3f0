"""CUDA in other processes than the first: in a child of fork before and after CUDA has begun, and in a new
program.

A child of a process that has begun with CUDA has none; it has to be told so, not to crash or to hang. Each
child is killed after 20 seconds by its own alarm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer
from koordra.kubelet_plugin.selftest.programs.cuda_driver import MIB, CudaDriver, CudaError

_REFUSED = 3
_ALLOCATION_FAILED = 4
SPAWNED = "spawned"


def use_cuda() -> int:
    """0: CUDA works in this process; else what does not."""
    try:
        driver = CudaDriver()
        driver.begin()
    except CudaError:
        return _REFUSED
    code, address = driver.allocate(16 * MIB)
    if code != 0:
        return _ALLOCATION_FAILED
    driver.free(address)
    return 0


def in_child(act: Callable[[], int]) -> int:
    """The exit code of a child of fork that does this; negative: the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(act())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ask() -> dict[str, Any]:
    before = in_child(use_cuda)
    parent = use_cuda()
    after = in_child(use_cuda)
    again = use_cuda()
    spawned = subprocess.run(
        [sys.executable, "-m", "koordra.kubelet_plugin.selftest.programs.processes", SPAWNED],
        check=False,
        timeout=60,
    ).returncode
    return {
        "forkedBefore": before,
        "parent": parent,
        "forkedAfter": after,
        "parentAgain": again,
        "spawned": spawned,
    }


if __name__ == "__main__":
    if sys.argv[1:] == [SPAWNED]:
        sys.exit(use_cuda())
    answer(ask)

"""Stands for JAX in the self test's program, on CUDA's driver as the loader finds it. XLA's share of the
memory is taken at once, as by default."""

from __future__ import annotations

import os
import types
from typing import Any

from koordra.kubelet_plugin.selftest.programs.cuda_driver import CudaDriver

__version__ = "0.11.2"
_driver = CudaDriver()
_driver.begin()
LIMIT = int(_driver.memory()[0] * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", ".75")))
assert _driver.allocate(LIMIT)[0] == 0


def devices() -> list[Any]:
    return [types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": LIMIT})]


def jit(function: Any) -> Any:
    return function

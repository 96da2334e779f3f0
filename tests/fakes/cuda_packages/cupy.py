"""Stands for CuPy in the self test's program, on CUDA's driver as the loader finds it."""

from __future__ import annotations

import types
from typing import Any

import numpy

from koordra.kubelet_plugin.selftest.programs.cuda_driver import OUT_OF_MEMORY, CudaDriver

__version__ = "14.2.0"
int64, uint8, float32 = numpy.int64, numpy.uint8, numpy.float32
_driver = CudaDriver()
_driver.begin()


class OutOfMemoryError(MemoryError):
    pass


def arange(count: int, dtype: Any = None) -> Any:
    return numpy.arange(count, dtype=dtype)


def full(shape: tuple[int], value: float, *, dtype: Any) -> Any:
    return numpy.full(shape, value, dtype=dtype)


def empty(count: int, dtype: Any) -> Any:
    assert dtype is uint8
    code, _ = _driver.allocate(count)
    if code == OUT_OF_MEMORY:
        raise OutOfMemoryError(f"Out of memory allocating {count} bytes")
    return numpy.empty(1, dtype=dtype)


def ElementwiseKernel(inputs: str, outputs: str, body: str, name: str) -> Any:
    assert (inputs, outputs, body) == ("float32 x", "float32 y", "y = 2 * x"), name
    return lambda x: 2 * x


cuda = types.SimpleNamespace(
    runtime=types.SimpleNamespace(memGetInfo=_driver.memory),
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
)

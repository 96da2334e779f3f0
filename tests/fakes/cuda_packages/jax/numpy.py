"""Stands for jax.numpy: numpy, with XLA's limit."""

from __future__ import annotations

from typing import Any

import numpy
from numpy import arange, float32, ones, uint8

from jax import LIMIT

__all__ = ["arange", "float32", "ones", "uint8", "zeros"]


def zeros(shape: tuple[int], dtype: Any) -> Any:
    if shape[0] > LIMIT:
        raise RuntimeError(f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {shape[0]} bytes.")
    return numpy.zeros(shape, dtype=dtype)

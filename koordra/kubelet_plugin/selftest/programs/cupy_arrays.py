"""CuPy: a kernel that is compiled at run time, and what happens where memory ends.

cupy_arrays [BEYOND]      bytes that the claim must not get
"""

from __future__ import annotations

import sys
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer, library


def ask() -> dict[str, Any]:
    cupy = library("cupy")
    total = int(cupy.arange(1000, dtype=cupy.int64).sum())
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "koordra_selftest")
    free, memory = cupy.cuda.runtime.memGetInfo()
    document: dict[str, Any] = {
        "version": cupy.__version__,
        "sum": total,
        "doubled": float(double(cupy.full((8,), 21.0, dtype=cupy.float32))[0]),
        "free": int(free),
        "total": int(memory),
    }
    if len(sys.argv) > 1:
        try:
            cupy.empty(int(sys.argv[1]), dtype=cupy.uint8)
            document["refused"] = ""
        except cupy.cuda.memory.OutOfMemoryError as error:
            document["refused"] = str(error).splitlines()[0]
        document["again"] = int(cupy.arange(10).sum())
    return document


if __name__ == "__main__":
    answer(ask)

"""JAX: a compiled matrix product on the card, the memory that XLA takes for itself, and what happens beyond
it.

jax_arrays [BEYOND]       bytes that the claim must not get
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import LackingError, answer, library


def ask() -> dict[str, Any]:
    jax = library("jax")
    if not any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins")):
        raise LackingError(f"JAX {jax.__version__} has no plugin for CUDA")
    numpy = library("jax.numpy")
    devices = jax.devices()
    if devices[0].platform not in ("gpu", "cuda"):  # why, JAX says on stderr
        raise RuntimeError(f"JAX computes on {devices[0].platform}, not on the card")
    ones = numpy.ones((512, 512), dtype=numpy.float32)
    product = float(jax.jit(lambda x: (x @ x).sum())(ones))
    memory = devices[0].memory_stats() or {}
    document: dict[str, Any] = {
        "version": jax.__version__,
        "platform": devices[0].platform,
        "count": len(devices),
        "product": product,
        "bytesLimit": memory.get("bytes_limit"),
    }
    if len(sys.argv) > 1:
        try:
            numpy.zeros((int(sys.argv[1]),), dtype=numpy.uint8).block_until_ready()
            document["refused"] = ""
        except (RuntimeError, ValueError) as error:
            document["refused"] = str(error).splitlines()[0][:300]
        document["again"] = float(numpy.arange(10).sum())
    return document


if __name__ == "__main__":
    answer(ask)

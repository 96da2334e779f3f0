"""PyTorch: a matrix product, the memory it is told, a CUDA graph, and what happens where memory ends.

    torch_tensors             computes
    torch_tensors BYTES       and takes memory until it is refused; BYTES is what the claim may have

The allocator is PYTORCH_CUDA_ALLOC_CONF's.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer, torch_with_cuda

PIECE = 256 << 20


def fill(torch: Any) -> dict[str, Any]:
    held: list[Any] = []
    refused = ""
    try:
        while len(held) < 10_000:
            held.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        refused = str(error).splitlines()[0]
    most = PIECE * len(held)
    held.clear()
    gc.collect()
    torch.cuda.empty_cache()
    again = torch.empty(max(1, most // 2), dtype=torch.uint8, device="cuda")
    return {"most": most, "refused": refused, "again": int(again.numel())}


def allocator(torch: Any) -> str:
    """The one that has given out what is held now."""
    backend = str(torch.cuda.get_allocator_backend())
    if backend == "native" and any(each.get("is_expandable") for each in torch.cuda.memory_snapshot()):
        return "expandable segments"
    return backend


def graph(torch: Any) -> float:
    x = torch.zeros(1 << 20, device="cuda")
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        y = x * 2 + 1
    made.replay()
    torch.cuda.synchronize()
    return float(y[0])


def ask() -> dict[str, Any]:
    torch = torch_with_cuda()
    torch.cuda.init()
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    wrong = float(((left.cuda() @ right.cuda()).cpu() - left @ right).abs().max())
    free, total = torch.cuda.mem_get_info()
    document: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "count": torch.cuda.device_count(),
        "device": torch.cuda.get_device_name(0),
        "propertiesTotal": int(torch.cuda.get_device_properties(0).total_memory),
        "free": int(free),
        "total": int(total),
        "matmulError": wrong,
        "allocator": allocator(torch),
    }
    if len(sys.argv) > 1:
        document |= fill(torch)
    document["graph"] = graph(torch)
    return document


if __name__ == "__main__":
    answer(ask)

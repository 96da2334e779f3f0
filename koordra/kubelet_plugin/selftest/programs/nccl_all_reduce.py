"""NCCL through PyTorch: an all-reduce of a process group of one, and of all cards of this process.

nccl_all_reduce                                   here
nccl_all_reduce RANK ADDRESS:PORT BYTES           with another machine: ranks 0 and 1
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import LackingError, answer, torch_with_cuda

ROUNDS = 20


def between(torch: Any, rank: int, address: str, size: int) -> dict[str, Any]:
    """Bus bandwidth of an all-reduce of two ranks is the algorithm's: 2 (n - 1) / n is 1."""
    torch.distributed.init_process_group("nccl", init_method=f"tcp://{address}", rank=rank, world_size=2)
    data = torch.ones(size // 4, device="cuda")
    torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(ROUNDS):
        torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.monotonic() - began) / ROUNDS
    torch.distributed.destroy_process_group()
    return {"first": float(data[0]), "gbps": round(size * 8 / seconds / 1e9, 1)}


def ask() -> dict[str, Any]:
    torch = torch_with_cuda()
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        raise LackingError("this PyTorch is built without NCCL")
    torch.cuda.set_device(0)
    document = {"version": list(torch.cuda.nccl.version()), "cards": torch.cuda.device_count()}
    if len(sys.argv) > 1:
        return document | between(torch, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        torch.distributed.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
        data = torch.full((1 << 20,), 3.0, device="cuda")
        torch.distributed.all_reduce(data)
        torch.cuda.synchronize()
        document["alone"] = float(data[0])
        torch.distributed.destroy_process_group()
    cards = [torch.full((1 << 20,), 1.0, device=f"cuda:{card}") for card in range(document["cards"])]
    torch.cuda.nccl.all_reduce(cards)
    torch.cuda.synchronize()
    return document | {"all": [float(card[0]) for card in cards], "debug": os.environ.get("NCCL_DEBUG", "")}


if __name__ == "__main__":
    answer(ask)

"""The limiter on a real GPU, with PyTorch: to be run where there is one; nothing of it has been run on a machine without.

    python native/bench/gpu.py --driver /usr/lib/x86_64-linux-gnu --out build/native [--limit-gib 8]

For each allocator of PyTorch (default, expandable segments, cudaMallocAsync) and for CUDA graphs, a process with the limiter in
front of the driver allocates until it is refused. Expected: a torch.OutOfMemoryError, never a crash; the bytes that NVML reports
for the process within the limit (contexts and modules apart); after a gc all of it can be had again. Prints one JSON document
with the driver's version, for the note on the issue and benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORK = r"""
import gc, json, sys, torch
limit = int(sys.argv[1])
held, refused = [], ""
free, total = torch.cuda.mem_get_info()
try:
    while len(held) < 10000:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    refused = str(error).splitlines()[0]
most = sum(t.numel() for t in held)
held.clear(); gc.collect(); torch.cuda.empty_cache()
again = torch.empty(most // 2, dtype=torch.uint8, device="cuda")
graph = torch.cuda.CUDAGraph()
x = torch.zeros(1 << 20, device="cuda")
with torch.cuda.graph(graph):
    y = x * 2 + 1
graph.replay(); torch.cuda.synchronize()
print(json.dumps({"total": total, "free": free, "most": most, "refused": refused, "graph": float(y[0]), "within": most <= limit}))
"""

ALLOCATORS = {
    "default": "",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}


def uuid_of_first_gpu() -> tuple[str, str]:
    """UUID and driver version, from nvidia-smi."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,driver_version", "--format=csv,noheader", "-i", "0"],
        check=True,
        capture_output=True,
        text=True,
    )
    uuid, version = done.stdout.strip().split(", ")
    return uuid, version


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--driver", type=Path, required=True, help="folder of the real libcuda.so.1")
    parser.add_argument("--out", type=Path, required=True, help="folder of the built limiter")
    parser.add_argument("--limit-gib", type=int, default=8)
    options = parser.parse_args()
    from koordra.kubelet_plugin.isolation import limiter_region

    uuid, version = uuid_of_first_gpu()
    limit = options.limit_gib << 30
    results = {}
    for name, setting in ALLOCATORS.items():
        with tempfile.TemporaryDirectory() as folder:
            allowance = limiter_region.Allowance(uuid=uuid, limit=limit)
            limiter_region.allow(Path(folder) / "claim", claim="bench", allowance=allowance)
            done = subprocess.run(
                [sys.executable, "-c", WORK, str(limit)],
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": f"{options.out / 'cuda'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                    "KOORDRA_DRIVER_FOLDER": str(options.driver),
                    "KOORDRA_LIMITER_FOLDER": folder,
                    "PYTORCH_CUDA_ALLOC_CONF": setting,
                },
                capture_output=True,
                text=True,
                check=False,
            )
            use = limiter_region.read(Path(folder) / "claim")
            results[name] = {
                "exit": done.returncode,
                "said": json.loads(done.stdout) if done.returncode == 0 else done.stderr[-2000:],
                "refusedByLimiter": use.devices[0].denied,
                "handshake": use.handshake,
            }
    document = {"gpu": uuid, "driver": version, "limitBytes": limit, "results": results}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

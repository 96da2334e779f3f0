"""The limiter on a real GPU. Needs the driver, a C compiler with make, and Python 3.10; PyTorch is tried
where it is there.

    python3 native/bench/gpu.py                    builds what it needs in build/native
    python3 native/bench/gpu.py --limit-gib 8 --pairs 200 --driver FOLDER

1. `costs`: each call with and without the limiter in front, in turn, best of several; told as ratios.
2. `limit`: each kind of memory is taken until it is refused. Expected: CUDA's own out-of-memory error (2), no
   more granted than the limit, all of it to be had again afterwards, and on the card (NVML) no more than that
   and a context.
3. `torch`: the same with each allocator of PyTorch and with CUDA graphs; expected: torch.OutOfMemoryError,
   never a crash.

Prints one JSON document with the card and the driver's version; `failed` lists what is not as expected, and
is the exit status. Nothing of it has been run on a real card yet. It runs against the fake driver too
(test/run), which shows that it does run.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).resolve().parents[1]
OUT_OF_MEMORY = 2
CONTEXT_AT_MOST = 2 << 30

TORCH = r"""
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


def region_modules() -> tuple[Any, Any]:
    """region.py and usage.py alone: the packages above it import what a bare machine does not have."""
    package = NATIVE.parent
    for name in (
        "koordra",
        "koordra.kubelet_plugin",
        "koordra.kubelet_plugin.isolation",
        "koordra.kubelet_plugin.isolation.limiter",
    ):
        module = types.ModuleType(name)
        module.__path__ = [str(package / name.replace(".", "/"))]
        sys.modules[name] = module
    region = importlib.import_module("koordra.kubelet_plugin.isolation.limiter.region")
    return region, importlib.import_module("koordra.kubelet_plugin.isolation.limiter.usage")


def driver_folder() -> Path:
    """Where the loader finds the driver: asked of a process that has loaded it."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith("libcuda.so"):
            # The file may have its version for a name; the limiter looks for libcuda.so.1.
            folders = (
                path.parent,
                *map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(":")),
                Path("/usr/lib64"),
            )
            return next(folder for folder in folders if (folder / "libcuda.so.1").exists())
    raise SystemExit("no libcuda.so.1: is there a driver?")


def build(out: Path) -> Path:
    """The limiter, and the program that is run with it and without."""
    subprocess.run(["make", "-s", "-C", str(NATIVE), f"OUT={out}", "all", "bench-gpu"], check=True)
    return out / "bench-gpu"


def environment(driver: Path, *, out: Path | None, regions: str) -> dict[str, str]:
    """With `out`: the limiter is in front."""
    libraries = [*([str(out / "cuda")] if out else []), str(driver), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(each for each in libraries if each),
        "KOORDRA_DRIVER_FOLDER": str(driver),
        "KOORDRA_LIMITER_FOLDER": regions,
    }


def run(command: list[str], variables: dict[str, str]) -> Any:
    """What it prints; where it fails, a document that says so."""
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)
    return {"exit": done.returncode, "error": done.stderr[-1000:]}


def compared(program: Path, bare: dict[str, str], limited: dict[str, str], pairs: int) -> Any:
    """Bare and limited in turn, so that what else the machine does meets both alike; the best of each."""
    rounds = [
        [run([str(program), "costs", str(pairs)], variables) for variables in (bare, limited)]
        for _ in range(5)
    ]
    failed = next((said for each in rounds for said in each if "error" in said), None)
    if failed:
        return failed
    least = [{name: min(each[side][name] for each in rounds) for name in rounds[0][side]} for side in (0, 1)]
    return {
        name: {"bare": least[0][name], "limited": least[1][name], "ratio": round(least[1][name] / value, 3)}
        for name, value in least[0].items()
        if value > 0
    }


def not_as_expected(document: dict[str, Any], limit: int) -> list[str]:
    """In words."""
    wrong = [
        f"{part}: {said['error']}"
        for part in ("costs", "limit")
        if "error" in (said := document[part]["said"])
    ]
    wrong += [
        f"{part}: the claim's limiter says {document[part]['handshake']}"
        for part in ("costs", "limit")
        if document[part]["handshake"] != "enforcing"
    ]
    before = document["limit"]["said"].get("onCardBefore", 0)
    for kind, said in document["limit"]["said"].items():
        if not isinstance(said, dict):
            continue
        if said["refusedWith"] != OUT_OF_MEMORY:
            wrong.append(f"{kind}: ended with error {said['refusedWith']}, not {OUT_OF_MEMORY}")
        if not 0 < said["granted"] <= limit:
            wrong.append(f"{kind}: {said['granted']} bytes were granted of {limit}")
        if not said["halfAgain"]:
            wrong.append(f"{kind}: what was given back could not be had again")
        if said["onCard"] and said["onCard"] - before > limit + CONTEXT_AT_MOST:
            wrong.append(f"{kind}: {said['onCard'] - before} bytes on the card")
    for name, part in document["torch"].items():
        said = part["said"]
        if "error" in said or not said["within"] or not said["refused"] or said["graph"] != 1.0:
            wrong.append(f"torch {name}: {said}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--driver", type=Path, help="folder of the real libcuda.so.1; else the loader's")
    parser.add_argument("--out", type=Path, default=NATIVE.parent / "build" / "native")
    parser.add_argument("--limit-gib", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=200)
    options = parser.parse_args()
    if Path("/run/koordra/limiter").exists():
        raise SystemExit("this is a limited container: run it on the node, or where koordra is not")
    out, limit = options.out.resolve(), options.limit_gib << 30
    driver = (options.driver or driver_folder()).resolve()
    program, (region, usage) = build(out), region_modules()
    with tempfile.TemporaryDirectory() as folder:
        bare = environment(driver, out=None, regions=folder)
        card = run([str(program), "card"], bare)
        if "error" in card:
            raise SystemExit(f"the driver does not work: {card['error']}")

        def limited(name: str, command: list[str] | None, **more: str) -> Any:
            """In a claim of its own: what was said, and what its region says afterwards."""
            regions = Path(folder) / name
            region.allow(regions / "claim", claim="bench", uuid=card["uuid"], limit=limit)
            variables = environment(driver, out=out, regions=str(regions)) | more
            said = run(command, variables) if command else compared(program, bare, variables, options.pairs)
            use = usage.read(regions / "claim")
            return {"said": said, "refusedByLimiter": use.devices[0].denied, "handshake": use.handshake}

        document: dict[str, Any] = {
            "card": card,
            "limitBytes": limit,
            "costs": limited("costs", None),
            "limit": limited("limit", [str(program), "limit"]),
            "torch": {},
        }
        if importlib.util.find_spec("torch") is not None:
            document["torch"] = {
                name: limited(
                    f"torch-{name}",
                    [sys.executable, "-c", TORCH, str(limit)],
                    PYTORCH_CUDA_ALLOC_CONF=setting,
                )
                for name, setting in ALLOCATORS.items()
            }
    document["failed"] = not_as_expected(document, limit)
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 1 if document["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a program's answer is what the claim promises. Pure.

Each judge takes the answer's document and what is expected of the claim, and says what was found, with
every point that is not as promised. Figures of the answer go into the step's details either way, by the
caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.kubelet_plugin.selftest.report import Finding, ok, problem

Document = Mapping[str, Any]
OUT_OF_MEMORY: Final = 2
GIB: Final = 1 << 30
MIB: Final = 1 << 20
SLACK: Final = 2 * GIB
"""What contexts, and pieces that did not fit any more, may leave of a limit."""


@dataclass(frozen=True, slots=True)
class Expected:
    """`memory`: the card's; `limit` None: no limiter. `own_devices`: nothing but the claim's cards can be
    opened (a namespace). `context`: bytes that the limiter keeps for a context."""

    uuid: str
    memory: int
    limit: int | None = None
    own_devices: bool = True
    context: int = 0

    @property
    def most(self) -> int:
        """Bytes that the claim may have."""
        return self.limit or self.memory


Judge = Callable[[Document, Expected], Finding]


def _verdict(found: str, wrong: list[str], remedy: str) -> Finding:
    return problem(f"{found}; {'; '.join(wrong)}", remedy) if wrong else ok(found)


def size(count: object) -> str:
    return f"{count / GIB:.2f} GiB" if isinstance(count, int) else f"{count}"


def _is_total(told: object, expected: Expected) -> bool:
    """A limiter says exactly its limit. A driver says somewhat less than the whole card, for it keeps a
    part; or more, where koordra does not offer what the driver keeps."""
    if not isinstance(told, int):
        return False
    return (
        told == expected.limit if expected.limit else 0.9 * expected.memory <= told <= 1.05 * expected.memory
    )


_LIMITER: Final = "attach this report: the limiter does not do what it promises (native/README.md)"
_SPEC: Final = "compare specs/ of the report with what the program had mapped"


def driver_api(said: Document, expected: Expected) -> Finding:
    wrong = []
    uuids = list(said["uuids"])
    if expected.uuid not in uuids or (expected.own_devices and uuids != [expected.uuid]):
        wrong.append(f"the claim's card is {expected.uuid}")
    wrong += [
        f"{field} is {said[field]} bytes, the claim has {expected.most}"
        for field in ("total", "deviceTotal")
        if not _is_total(said[field], expected)
    ]
    wrong += [
        f"{field} the claim's memory: CUDA error {said[field]}, not {OUT_OF_MEMORY}"
        for field in ("beyond", "asynchronousBeyond")
        if said[field] != OUT_OF_MEMORY
    ]
    wrong += [
        f"{field}: an allocation of 64 MiB ends with CUDA error {said[field]}"
        for field in ("afterwards", "asynchronous")
        if said[field] != 0
    ]
    found = f"CUDA {said['cudaVersion']}, {', '.join(uuids) or 'no card'}, {size(said['total'])}"
    return _verdict(found, wrong, _LIMITER if expected.limit else _SPEC)


def library_search(said: Document, expected: Expected) -> Finding:
    """In a plain process nothing makes an ld cache, so that only the loader and Triton can be expected to
    find it."""
    wrong = []
    if not said["loader"]:
        wrong.append("the loader finds no libcuda.so.1")
    if not said["triton"]:
        wrong.append("Triton would find no libcuda.so.1 (torch.compile fails)")
    if expected.own_devices:
        if said["findLibrary"] is None:
            wrong.append("ctypes.util.find_library('cuda') finds nothing")
        if not said["bareName"]:
            wrong.append("there is no libcuda.so beside libcuda.so.1")
        if len(said["cached"]) > 1 and expected.limit:
            wrong.append(
                f"the ld cache has {len(said['cached'])} of libcuda.so.1: {', '.join(said['cached'])}"
            )
    found = f"ld cache: {', '.join(said['cached']) or 'nothing'}; Triton: {', '.join(said['triton']) or 'nothing'}"
    return _verdict(found, wrong, "the spec's hook has to make links and the ld cache (hooks in specs/)")


def nvml_view(said: Document, expected: Expected) -> Finding:
    wrong = []
    found = f"NVML: {', '.join(said['uuids'])}, {', '.join(map(size, said['total']))}"
    totals = dict(zip(said["uuids"], said["total"], strict=False))
    if expected.uuid not in totals:
        wrong.append(f"the claim's card {expected.uuid} is missing")
    elif not _is_total(totals[expected.uuid], expected):
        wrong.append(f"total is {totals[expected.uuid]} bytes, the claim has {expected.most}")
    if expected.limit and len(said["processes"] or ()) > 1:
        wrong.append(f"processes of others are listed: {said['processes']}")
    smi = said["nvidiaSmi"]
    if smi is None:
        found += "; no nvidia-smi in the container"
    else:
        found += f"; nvidia-smi: {', '.join(map(str, smi['totalMiB'].values()))} MiB"
        if smi["exit"] != 0:
            wrong.append(f"nvidia-smi ends with {smi['exit']}: {smi['said']}")
        elif not _is_total(smi["totalMiB"].get(expected.uuid, 0) * MIB, _in_mebibytes(expected)):
            wrong.append(f"nvidia-smi does not show the claim's {expected.most // MIB} MiB")
    return _verdict(found, wrong, _LIMITER if expected.limit else _SPEC)


def _in_mebibytes(expected: Expected) -> Expected:
    limit = expected.limit and expected.limit // MIB * MIB
    return Expected(expected.uuid, expected.memory // MIB * MIB + MIB, limit)


def processes(said: Document, expected: Expected) -> Finding:
    del expected
    wrong = [
        f"{field}: exit {said[field]}"
        for field in ("forkedBefore", "parent", "parentAgain", "spawned")
        if said[field] != 0
    ]
    if said["forkedAfter"] < 0:
        wrong.append(f"a child forked after CUDA began was killed by signal {-said['forkedAfter']}")
    after = "has CUDA" if said["forkedAfter"] == 0 else "is told that it has none"
    found = f"fork before CUDA, parent, spawn; a fork after CUDA began {after}"
    return _verdict(found, wrong, _LIMITER)


def two_processes(said: Document, expected: Expected) -> Finding:
    wrong = []
    taken = [each or 0 for each in said["bytes"]]
    if None in said["bytes"] or any(said["ended"]):
        wrong.append(f"a process died: {said['bytes']}, exit {said['ended']}")
    if sum(taken) > expected.most:
        wrong.append(f"they got {sum(taken)} bytes of {expected.most}")
    if sum(taken) + SLACK + len(taken) * expected.context < expected.most:
        wrong.append(f"they got only {size(sum(taken))} of {size(expected.most)}")
    if set(said["refusedWith"]) != {OUT_OF_MEMORY}:
        wrong.append(f"refused with CUDA errors {said['refusedWith']}, not {OUT_OF_MEMORY}")
    return _verdict(f"{' + '.join(map(size, taken))} of {size(expected.most)}", wrong, _LIMITER)


def every_kind(said: Document, expected: Expected) -> Finding:
    """Each kind of memory by itself: no more than the limit, refused as out of memory, and to be had
    again."""
    wrong, kinds = [], {name: each for name, each in said.items() if isinstance(each, dict)}
    before = said.get("onCardBefore", 0)
    for name, each in kinds.items():
        if each["refusedWith"] != OUT_OF_MEMORY:
            wrong.append(f"{name}: ends with CUDA error {each['refusedWith']}, not {OUT_OF_MEMORY}")
        if not 0 < each["granted"] <= expected.most:
            wrong.append(f"{name}: {each['granted']} bytes of {expected.most}")
        if not each["halfAgain"]:
            wrong.append(f"{name}: what was given back cannot be had again")
        if before and each["onCard"] - before > expected.most + SLACK:
            wrong.append(f"{name}: {size(each['onCard'] - before)} more on the card by NVML")
    found = ", ".join(f"{name} {size(each['granted'])}" for name, each in kinds.items())
    return _verdict(found or "nothing was tried", wrong if kinds else ["no kind of memory"], _LIMITER)


def context_size(said: Document, expected: Expected) -> Finding:
    """The limiter reserves for a context before one can be measured; a larger one goes past the limit for a
    moment."""
    card = said["uuids"].index(expected.uuid)
    listed = next((used for pid, used in said["processes"] or () if pid == said["pid"]), None)
    measured = listed or said["used"][card] - said["usedBefore"][card]
    found = (
        f"{measured / MIB:.0f} MiB ({'listed for the process' if listed else 'by what the card has less'})"
    )
    if not expected.context:
        return ok(found)
    found += f"; the limiter keeps {expected.context / MIB:.0f} MiB for one"
    wrong = ["it is larger than what is kept"] if measured > expected.context else []
    return _verdict(found, wrong, "set --limiter-context of the kubelet plugin to what was measured")


def torch_tensors(said: Document, expected: Expected, *, allocator: str | None = None) -> Finding:
    """`allocator`: the one that was asked for, None for PyTorch's own choice."""
    wrong = []
    if allocator not in (None, said["allocator"]):
        wrong.append(f"memory comes from {said['allocator']}, not from {allocator}")
    if said["matmulError"] > 0.5:
        wrong.append(f"a matrix product is off by {said['matmulError']}")
    if said["graph"] != 1.0:
        wrong.append(f"a CUDA graph computes {said['graph']}, not 1.0")
    if not _is_total(said["total"], expected):
        wrong.append(f"mem_get_info's total is {said['total']} bytes, the claim has {expected.most}")
    found = f"PyTorch {said['version']} for CUDA {said['cuda']}: {said['device']}, {size(said['total'])}"
    if "most" in said:
        found += f"; {size(said['most'])} until refused"
        if not said["refused"]:
            wrong.append("memory beyond the claim's was not refused")
        if not 0 < said["most"] <= expected.most:
            wrong.append(f"{said['most']} bytes of {expected.most}")
        elif said["most"] + SLACK + expected.context < expected.most:
            wrong.append(f"only {size(said['most'])} of {size(expected.most)}")
    return _verdict(found, wrong, _LIMITER if expected.limit else _SPEC)


def torch_compiled(said: Document, expected: Expected) -> Finding:
    del expected
    wrong = [] if said["error"] < 1e-3 else [f"the compiled function is off by {said['error']}"]
    return _verdict(f"PyTorch {said['version']}, Triton {said['triton']}", wrong, _SPEC)


def cupy_arrays(said: Document, expected: Expected) -> Finding:
    wrong = (
        []
        if (said["sum"], said["doubled"]) == (499500, 42.0)
        else [f"it computes {said['sum']}, {said['doubled']}"]
    )
    if not _is_total(said["total"], expected):
        wrong.append(f"memGetInfo's total is {said['total']} bytes, the claim has {expected.most}")
    if said.get("refused") == "" or said.get("again", 45) != 45:
        wrong.append("memory beyond the claim's was not refused, or nothing could be had afterwards")
    return _verdict(
        f"CuPy {said['version']}, {size(said['total'])}", wrong, _LIMITER if expected.limit else _SPEC
    )


def jax_arrays(said: Document, expected: Expected) -> Finding:
    wrong = (
        [] if said["product"] == 512.0**3 else [f"a matrix product gives {said['product']}, not {512.0**3}"]
    )
    if said["bytesLimit"] and said["bytesLimit"] > expected.most:
        wrong.append(f"XLA counts on {said['bytesLimit']} bytes, the claim has {expected.most}")
    if said.get("refused") == "" or said.get("again", 45.0) != 45.0:
        wrong.append("memory beyond the claim's was not refused, or nothing could be had afterwards")
    found = f"JAX {said['version']} on {said['platform']}, XLA takes {size(said['bytesLimit'])}"
    return _verdict(found, wrong, _LIMITER if expected.limit else _SPEC)


def nccl_all_reduce(said: Document, expected: Expected) -> Finding:
    del expected
    wrong = [] if said["alone"] == 3.0 else [f"a group of one gets {said['alone']}, not 3.0"]
    if set(said["all"]) != {float(said["cards"])}:
        wrong.append(f"over {said['cards']} cards: {said['all']}")
    return _verdict(f"NCCL {'.'.join(map(str, said['version']))} over {said['cards']} cards", wrong, _SPEC)


def overhead(bare: Document, limited: Document) -> Finding:
    """Two answers of `native_bench costs`: without the limiter, and with it."""
    ratios = {name: round(limited[name] / bare[name], 2) for name in bare if bare[name] and name in limited}
    found = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    return ok(found, ratios=ratios, bare=dict(bare), limited=dict(limited))

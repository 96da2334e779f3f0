"""Whether an answer is what the claim promises: each judge on an answer that is, and on each that is not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from koordra.kubelet_plugin.selftest import judgement
from koordra.kubelet_plugin.selftest.judgement import Expected, Judge
from koordra.kubelet_plugin.selftest.report import Status

GIB, MIB = 1 << 30, 1 << 20
CARD, OTHER = "GPU-1", "GPU-2"
SHARE = Expected(CARD, 80 * GIB, limit=8 * GIB, context=640 * MIB)
WHOLE = Expected(CARD, 80 * GIB, context=640 * MIB)
PROCESS = Expected(CARD, 80 * GIB, limit=8 * GIB, own_devices=False)

DRIVER = {
    "cudaVersion": 13000,
    "uuids": [CARD],
    "deviceTotal": 8 * GIB,
    "total": 8 * GIB,
    "beyond": 2,
    "asynchronousBeyond": 2,
    "afterwards": 0,
    "asynchronous": 0,
}
SEARCH = {
    "loader": True,
    "bareName": True,
    "findLibrary": "libcuda.so.1",
    "cached": ["/usr/lib/libcuda.so.1"],
    "triton": ["/usr/lib"],
}
SMI = {"exit": 0, "said": "", "totalMiB": {CARD: 8192}}
NVML = {"uuids": [CARD], "total": [8 * GIB], "processes": [[2, 1]], "nvidiaSmi": SMI}
PROCESSES = {"forkedBefore": 0, "parent": 0, "forkedAfter": 3, "parentAgain": 0, "spawned": 0}
TWO = {"bytes": [3 * GIB, 4 * GIB], "refusedWith": [2, 2], "ended": [0, 0]}
KIND = {"refusedWith": 2, "granted": 7 * GIB, "halfAgain": True, "onCard": 8 * GIB}
CONTEXT = {
    "uuids": [OTHER, CARD],
    "used": [9 * GIB, 5 * GIB],
    "usedBefore": [0, 4.5 * GIB],
    "pid": 7,
    "processes": [],
}
TORCH = {
    "matmulError": 1e-5,
    "graph": 1.0,
    "total": 8 * GIB,
    "version": "2.11",
    "cuda": "13.0",
    "device": "H200",
    "allocator": "native",
    "most": 7 * GIB,
    "refused": "CUDA out of memory",
}
CUPY = {
    "sum": 499500,
    "doubled": 42.0,
    "total": 8 * GIB,
    "version": "14",
    "refused": "Out of memory",
    "again": 45,
}
JAX = {
    "product": 512.0**3,
    "platform": "gpu",
    "bytesLimit": 6 * GIB,
    "version": "0.11",
    "refused": "RESOURCE_EXHAUSTED",
    "again": 45.0,
}
NCCL = {"alone": 3.0, "cards": 2, "all": [2.0, 2.0], "version": [2, 28, 9]}
COMPILED = {"error": 1e-6, "version": "2.11", "triton": "3.6"}
native = partial(judgement.torch_tensors, allocator="native")


WELL: list[tuple[Judge, Mapping[str, Any], Expected]] = [
    (judgement.driver_api, DRIVER, SHARE),
    (judgement.driver_api, DRIVER | {"total": 79 * GIB, "deviceTotal": 81 * GIB}, WHOLE),
    (judgement.driver_api, DRIVER | {"uuids": [OTHER, CARD]}, PROCESS),
    (judgement.library_search, SEARCH, SHARE),
    (judgement.library_search, SEARCH | {"cached": [], "bareName": False, "findLibrary": None}, PROCESS),
    (judgement.nvml_view, NVML, SHARE),
    (judgement.nvml_view, NVML | {"nvidiaSmi": None, "processes": None}, SHARE),
    (
        judgement.nvml_view,
        NVML | {"total": [79 * GIB], "nvidiaSmi": SMI | {"totalMiB": {CARD: 81559}}},
        WHOLE,
    ),
    (judgement.processes, PROCESSES, SHARE),
    (judgement.processes, PROCESSES | {"forkedAfter": 0}, SHARE),
    (judgement.two_processes, TWO, SHARE),
    (judgement.two_processes, TWO | {"bytes": [0, 6 * GIB]}, SHARE),
    (judgement.every_kind, {"onCardBefore": GIB, "cuMemAlloc": KIND}, SHARE),
    (judgement.context_size, CONTEXT, WHOLE),
    (judgement.context_size, CONTEXT | {"used": [0, 9 * GIB]}, Expected(CARD, 80 * GIB)),
    (judgement.torch_tensors, TORCH | {"allocator": "of its own choice"}, SHARE),
    (native, TORCH, SHARE),
    (judgement.torch_compiled, COMPILED, SHARE),
    (judgement.cupy_arrays, CUPY, SHARE),
    (judgement.jax_arrays, JAX, SHARE),
    (judgement.jax_arrays, JAX | {"bytesLimit": None}, SHARE),
    (judgement.nccl_all_reduce, NCCL, SHARE),
]


@pytest.mark.parametrize(("judge", "said", "expected"), WELL)
def test_what_is_promised_is_ok(judge: Judge, said: Mapping[str, Any], expected: Expected) -> None:
    found = judge(said, expected)
    assert found.status is Status.OK, found
    assert found.found


WRONG: list[tuple[Judge, Mapping[str, Any], Mapping[str, Any], Expected, str]] = [
    (judgement.driver_api, DRIVER, {"uuids": [OTHER]}, SHARE, f"the claim's card is {CARD}"),
    (judgement.driver_api, DRIVER, {"uuids": [CARD, OTHER]}, SHARE, f"the claim's card is {CARD}"),
    (judgement.driver_api, DRIVER, {"total": 8 * GIB + 1}, SHARE, "total is"),
    (judgement.driver_api, DRIVER, {"deviceTotal": 80 * GIB}, SHARE, "deviceTotal is"),
    (judgement.driver_api, DRIVER, {"total": 60 * GIB}, WHOLE, "total is"),
    (judgement.driver_api, DRIVER, {"total": 90 * GIB}, WHOLE, "total is"),
    (judgement.driver_api, DRIVER, {"beyond": 0}, SHARE, "beyond the claim's memory: CUDA error 0"),
    (judgement.driver_api, DRIVER, {"asynchronousBeyond": 1}, SHARE, "asynchronousBeyond the claim's"),
    (judgement.driver_api, DRIVER, {"afterwards": 2}, SHARE, "afterwards: an allocation of 64 MiB"),
    (judgement.driver_api, DRIVER, {"asynchronous": 801}, SHARE, "CUDA error 801"),
    (judgement.library_search, SEARCH, {"loader": False}, PROCESS, "the loader finds no libcuda.so.1"),
    (judgement.library_search, SEARCH, {"triton": []}, PROCESS, "Triton would find no libcuda.so.1"),
    (judgement.library_search, SEARCH, {"findLibrary": None}, SHARE, "find_library('cuda') finds nothing"),
    (judgement.library_search, SEARCH, {"bareName": False}, SHARE, "no libcuda.so beside"),
    (judgement.library_search, SEARCH, {"cached": ["/a", "/b"]}, SHARE, "the ld cache has 2"),
    (judgement.nvml_view, NVML, {"uuids": [OTHER]}, SHARE, f"the claim's card {CARD} is missing"),
    (judgement.nvml_view, NVML, {"total": [80 * GIB]}, SHARE, "total is"),
    (judgement.nvml_view, NVML, {"processes": [[2, 1], [3, 1]]}, SHARE, "processes of others"),
    (judgement.nvml_view, NVML, {"nvidiaSmi": SMI | {"exit": 9}}, SHARE, "nvidia-smi ends with 9"),
    (
        judgement.nvml_view,
        NVML,
        {"nvidiaSmi": SMI | {"totalMiB": {CARD: 81559}}},
        SHARE,
        "nvidia-smi does not show the claim's 8192 MiB",
    ),
    *(
        (judgement.processes, PROCESSES, {field: 4}, SHARE, f"{field}: exit 4")
        for field in ("forkedBefore", "parent", "parentAgain", "spawned")
    ),
    (judgement.processes, PROCESSES, {"forkedAfter": -14}, SHARE, "was killed by signal 14"),
    (judgement.two_processes, TWO, {"bytes": [5 * GIB, 4 * GIB]}, SHARE, "of 8589934592"),
    (judgement.two_processes, TWO, {"bytes": [2 * GIB, GIB]}, SHARE, "they got only 3.00 GiB"),
    (judgement.two_processes, TWO, {"bytes": [7 * GIB, None]}, SHARE, "a process died"),
    (judgement.two_processes, TWO, {"ended": [0, -9]}, SHARE, "a process died"),
    (judgement.two_processes, TWO, {"refusedWith": [2, 1]}, SHARE, "refused with CUDA errors [2, 1]"),
    (judgement.every_kind, {}, {}, SHARE, "no kind of memory"),
    (judgement.every_kind, {}, {"a": KIND | {"refusedWith": 0}}, SHARE, "a: ends with CUDA error 0"),
    (judgement.every_kind, {}, {"a": KIND | {"granted": 9 * GIB}}, SHARE, "a: 9663676416 bytes"),
    (judgement.every_kind, {}, {"a": KIND | {"granted": 0}}, SHARE, "a: 0 bytes"),
    (judgement.every_kind, {}, {"a": KIND | {"halfAgain": False}}, SHARE, "cannot be had again"),
    (
        judgement.every_kind,
        {"onCardBefore": GIB},
        {"a": KIND | {"onCard": 12 * GIB}},
        SHARE,
        "11.00 GiB more on the card",
    ),
    (judgement.context_size, CONTEXT, {"used": [0, 6 * GIB]}, WHOLE, "larger than what is kept"),
    (judgement.context_size, CONTEXT, {"processes": [[7, GIB]]}, WHOLE, "1024 MiB (listed"),
    (native, TORCH, {"allocator": "cudaMallocAsync"}, SHARE, "memory comes from cudaMallocAsync"),
    (native, TORCH, {"matmulError": 1.0}, SHARE, "off by 1.0"),
    (native, TORCH, {"graph": 0.0}, SHARE, "CUDA graph computes 0.0"),
    (native, TORCH, {"total": 80 * GIB}, SHARE, "mem_get_info's total"),
    (native, TORCH, {"refused": ""}, SHARE, "was not refused"),
    (native, TORCH, {"most": 9 * GIB}, SHARE, "9663676416 bytes of"),
    (native, TORCH, {"most": 0}, SHARE, "0 bytes of"),
    (native, TORCH, {"most": 4 * GIB}, SHARE, "only 4.00 GiB"),
    (judgement.torch_compiled, COMPILED, {"error": 0.1}, SHARE, "off by 0.1"),
    (judgement.cupy_arrays, CUPY, {"sum": 1}, SHARE, "it computes 1, 42.0"),
    (judgement.cupy_arrays, CUPY, {"doubled": 41.0}, SHARE, "it computes 499500, 41.0"),
    (judgement.cupy_arrays, CUPY, {"total": 80 * GIB}, SHARE, "memGetInfo's total"),
    (judgement.cupy_arrays, CUPY, {"refused": ""}, SHARE, "was not refused"),
    (judgement.cupy_arrays, CUPY, {"again": 0}, SHARE, "nothing could be had afterwards"),
    (judgement.jax_arrays, JAX, {"product": 1.0}, SHARE, "a matrix product gives 1.0"),
    (judgement.jax_arrays, JAX, {"bytesLimit": 60 * GIB}, SHARE, "XLA counts on"),
    (judgement.jax_arrays, JAX, {"refused": ""}, SHARE, "was not refused"),
    (judgement.jax_arrays, JAX, {"again": 0.0}, SHARE, "nothing could be had afterwards"),
    (judgement.nccl_all_reduce, NCCL, {"alone": 0.0}, SHARE, "a group of one gets 0.0"),
    (judgement.nccl_all_reduce, NCCL, {"all": [2.0, 1.0]}, SHARE, "over 2 cards: [2.0, 1.0]"),
]


@pytest.mark.parametrize(("judge", "well", "change", "expected", "text"), WRONG)
def test_what_is_not_promised_is_a_problem_with_a_remedy(
    judge: Judge, well: Mapping[str, Any], change: Mapping[str, Any], expected: Expected, text: str
) -> None:
    found = judge({**well, **change}, expected)
    assert found.status is Status.PROBLEM, found
    assert text in found.found
    assert found.remedy


def test_what_the_limiter_costs_is_a_ratio_of_what_both_measured() -> None:
    found = judgement.overhead({"a_ns": 100, "b_ns": 0, "c_ns": 5}, {"a_ns": 150, "b_ns": 3})
    assert found.details["ratios"] == {"a_ns": 1.5}
    assert found.found == "a_ns 1.50x"

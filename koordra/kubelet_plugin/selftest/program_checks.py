"""Which programs run with which claim, in the order in which their answers matter: should the budget end
early, what is left out is what says least. Each row: the step's name, the program, its judge, its arguments
and variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.selftest import judgement
from koordra.kubelet_plugin.selftest.judgement import Expected, Judge

WHOLE_CARD, UNLIMITED, LIMITED = "whole", "unlimited-share", "share"
_COSTS: Final = ("costs", "200")


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """`arguments` may depend on the claim and on where the native programs are; `deadline` in seconds;
    `cuda`: it begins with CUDA, so that a limited claim has to show that its limiter is in force. `judge`
    None: the answer is kept, and judged together with another."""

    name: str
    program: str
    judge: Judge | None
    arguments: Callable[[Expected, Path], tuple[str, ...]] = lambda _expected, _native: ()
    settings: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 60.0
    cuda: bool = True


def _beyond(expected: Expected, native: Path) -> tuple[str, ...]:
    del native
    return (str(expected.most + 1),)


def _most(expected: Expected, native: Path) -> tuple[str, ...]:
    del native
    return (str(expected.most),)


def _bench(*arguments: str) -> Callable[[Expected, Path], tuple[str, ...]]:
    return lambda _expected, native: (str(native / "bench-gpu"), *arguments)


_DRIVER_API: Final = ProgramCheck("driver-api", "driver_api", judgement.driver_api, _beyond)
_LIBRARY_SEARCH: Final = ProgramCheck(
    "library-search", "library_search", judgement.library_search, cuda=False
)
_NVML_VIEW: Final = ProgramCheck("nvml", "nvml", judgement.nvml_view)
_COMPILED: Final = ProgramCheck("torch-compile", "torch_compiled", judgement.torch_compiled, deadline=120.0)
_NCCL: Final = ProgramCheck(
    "nccl", "nccl_all_reduce", judgement.nccl_all_reduce, settings={"NCCL_DEBUG": "WARN"}
)
_OVERHEAD: Final = ProgramCheck("costs", "native_bench", None, _bench(*_COSTS), deadline=40.0)


def _torch(name: str, setting: str, allocator: str) -> ProgramCheck:
    judge = partial(judgement.torch_tensors, allocator=allocator)
    return ProgramCheck(name, "torch_tensors", judge, _most, {"PYTORCH_CUDA_ALLOC_CONF": setting})


WHOLE: Final = (
    _DRIVER_API,
    _LIBRARY_SEARCH,
    _NVML_VIEW,
    ProgramCheck("context-size", "nvml", judgement.context_size),
    ProgramCheck("processes", "processes", judgement.processes),
    _OVERHEAD,
)
"""With the whole card, quick."""

UNLIMITED_SHARE: Final = (_DRIVER_API,)
"""With a share that nothing limits."""

SHARE: Final = (
    _DRIVER_API,
    _LIBRARY_SEARCH,
    _NVML_VIEW,
    ProgramCheck("every-kind-of-memory", "native_bench", judgement.every_kind, _bench("limit")),
    ProgramCheck("two-processes", "two_processes", judgement.two_processes),
    ProgramCheck("processes", "processes", judgement.processes),
    _torch("torch", "expandable_segments:False", "native"),
    _COMPILED,
    _torch("torch-expandable-segments", "expandable_segments:True", "expandable segments"),
    _torch("torch-cudaMallocAsync", "backend:cudaMallocAsync", "cudaMallocAsync"),
    ProgramCheck("jax", "jax_arrays", judgement.jax_arrays, _beyond, deadline=90.0),
    ProgramCheck("cupy", "cupy_arrays", judgement.cupy_arrays, _beyond),
    _NCCL,
    _OVERHEAD,
)
"""With a share that the limiter keeps."""

WHOLE_LATER: Final = (
    ProgramCheck("torch", "torch_tensors", judgement.torch_tensors),
    _COMPILED,
    ProgramCheck("cupy", "cupy_arrays", judgement.cupy_arrays),
    ProgramCheck(
        "jax",
        "jax_arrays",
        judgement.jax_arrays,
        settings={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"},
        deadline=90.0,
    ),
    _NCCL,
)
"""With the whole card, those that take long to begin."""

IN_ORDER: Final = (
    (WHOLE_CARD, WHOLE),
    (UNLIMITED, UNLIMITED_SHARE),
    (LIMITED, SHARE),
    (WHOLE_CARD, WHOLE_LATER),
)
"""Names of claims, each with what runs in it."""


def step_name(claim: str, check: ProgramCheck) -> str:
    return f"{claim}: {check.name}"


CORE_LOADS: Final = ("small", "gemm", "graph")
"""Of core_shares, each a step."""


def cores_step(load: str) -> str:
    return f"cores: {load}"


STEPS: Final = (
    *dict.fromkeys(step_name(claim, check) for claim, checks in IN_ORDER for check in checks),
    *map(cores_step, CORE_LOADS),
)

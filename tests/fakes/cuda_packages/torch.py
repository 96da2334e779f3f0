"""Stands for PyTorch in the self test's programs: what they call of it, on CUDA's driver as the loader
finds it.

Tensors compute with numpy and hold memory of the card. Strict: a call or an argument that the programs do
not make is an error. `PYTORCH_CUDA_ALLOC_CONF` chooses between the driver's ways to allocate, as the real
one does."""

from __future__ import annotations

import ctypes
import math
import os
import types
from typing import Any, ClassVar

import numpy

from koordra.kubelet_plugin.selftest.programs.cuda_driver import OUT_OF_MEMORY, CudaDriver

__version__ = "2.11.0+fake"
uint8 = "uint8"
LARGEST = 1 << 20
"""Numbers that are computed with; what has more is not looked at."""
SMALL, LARGE = b"spin 20000", b"spin 1000000"
"""Kernels by the nanoseconds they take; a product of large matrices is a large one."""
version = types.SimpleNamespace(cuda="13.0")


class OutOfMemoryError(RuntimeError):
    pass


_setting = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
_backend = "cudaMallocAsync" if _setting == "backend:cudaMallocAsync" else "native"


class _Card:
    driver: CudaDriver | None = None

    @classmethod
    def begun(cls) -> CudaDriver:
        if cls.driver is None:
            cls.driver = CudaDriver()
            cls.driver.begin()
        return cls.driver


class Memory:
    def __init__(self, size: int) -> None:
        self._pool = _backend == "cudaMallocAsync"
        driver = _Card.begun()
        code, self._address = (driver.allocate_async if self._pool else driver.allocate)(size)
        if code == OUT_OF_MEMORY:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        assert code == 0, code
        self._driver = driver

    def __del__(self) -> None:
        if hasattr(self, "_driver"):
            (self._driver.free_async if self._pool else self._driver.free)(self._address)


class Kernels:
    """What an operation on the card launches: a kernel that takes as long as its name says."""

    functions: ClassVar[dict[bytes, Any]] = {}
    replayed: list[bytes] | None = None

    @classmethod
    def launch(cls, driver: CudaDriver, name: bytes) -> None:
        if cls.replayed is not None:
            cls.replayed.append(name)
            return
        if name not in cls.functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            driver.need("cuModuleLoadData", ctypes.byref(module), b"")
            driver.need("cuModuleGetFunction", ctypes.byref(function), module, name)
            cls.functions[name] = function
        driver.need("cuLaunchKernel", cls.functions[name], 1, 1, 1, 64, 1, 1, 0, None, None, None)


class Tensor:
    def __init__(self, value: Any, *, count: int | None = None, size: int | None = None) -> None:
        self.value = value
        self.count = count if count is not None else value.size
        self.memory = Memory(size) if size is not None else None

    @property
    def on_card(self) -> bool:
        return self.memory is not None

    def _made(self, value: Any, kernel: bytes = SMALL) -> Tensor:
        if self.on_card:
            Kernels.launch(_Card.begun(), kernel)
        return Tensor(
            numpy.asarray(value), size=max(1, numpy.asarray(value).nbytes) if self.on_card else None
        )

    def cuda(self) -> Tensor:
        return Tensor(self.value, size=self.value.nbytes)

    def cpu(self) -> Tensor:
        return Tensor(self.value)

    def _other(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            assert other.on_card == self.on_card, "tensors on different devices"
            return other.value
        return other

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.value.size > LARGEST:  # nobody looks at the product of such
            return self._made(self.value[:1, :1], LARGE)
        return self._made(self.value @ self._other(other))

    def __mul__(self, other: Any) -> Tensor:
        return self._made(self.value * self._other(other))

    def __add__(self, other: Any) -> Tensor:
        return self._made(self.value + self._other(other))

    def __sub__(self, other: Any) -> Tensor:
        return self._made(self.value - self._other(other))

    def __getitem__(self, index: int) -> Tensor:
        return self._made(self.value[index])

    def __float__(self) -> float:
        return float(self.value)

    def abs(self) -> Tensor:
        return self._made(numpy.abs(self.value))

    def max(self) -> Tensor:
        return self._made(self.value.max())

    def sin(self) -> Tensor:
        return self._made(numpy.sin(self.value))

    def numel(self) -> int:
        return int(self.count)


def randn(*shape: int, device: str = "cpu") -> Tensor:
    if math.prod(shape) > LARGEST:
        value = numpy.zeros(shape, numpy.float32)
    else:
        value = numpy.random.default_rng(1).standard_normal(shape, dtype=numpy.float32)
    return Tensor(value, size=value.nbytes if device.startswith("cuda") else None)


def empty(count: int, *, dtype: str, device: str) -> Tensor:
    assert (dtype, device) == (uint8, "cuda")
    return Tensor(numpy.zeros(1), count=count, size=count)


def zeros(count: int, *, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(numpy.zeros(count, dtype=numpy.float32), size=4 * count)


def ones(count: int, *, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(numpy.ones(1), count=count, size=4 * count)


def full(shape: tuple[int], value: float, *, device: str) -> Tensor:
    assert device in ("cuda", "cuda:0")
    return Tensor(numpy.full(shape, value, dtype=numpy.float32), size=4 * shape[0])


def compile(function: Any) -> Any:  # noqa: A001  (the real one's name)
    return function


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5


nn = types.SimpleNamespace(functional=types.SimpleNamespace(gelu=_gelu))


class _Graph:
    """Records by running once, without its kernels; replaying launches these one by one, and changes nothing
    of what was computed."""

    def __init__(self) -> None:
        self._kernels: list[bytes] = []

    def replay(self) -> None:
        for kernel in self._kernels:
            Kernels.launch(_Card.begun(), kernel)

    def __enter__(self) -> None:
        Kernels.replayed = self._kernels

    def __exit__(self, *_error: object) -> None:
        Kernels.replayed = None


def _mem_get_info() -> tuple[int, int]:
    return _Card.begun().memory()


cuda = types.SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    get_allocator_backend=lambda: _backend,
    memory_snapshot=lambda: [{"is_expandable": _setting == "expandable_segments:True"}],
    init=_Card.begun,
    mem_get_info=_mem_get_info,
    device_count=lambda: _Card.begun().count(),
    get_device_name=lambda card: _Card.begun().name(card),
    get_device_properties=lambda card: types.SimpleNamespace(total_memory=_Card.begun().total(card)),
    set_device=lambda card: None,
    empty_cache=lambda: None,
    synchronize=lambda: _Card.begun().need("cuCtxSynchronize"),
    CUDAGraph=_Graph,
    graph=lambda graph: graph,
    nccl=types.SimpleNamespace(version=lambda: (2, 28, 9), all_reduce=lambda tensors: None),
)


_world = 1


def _init(backend: str, *, init_method: str, rank: int, world_size: int) -> None:
    global _world
    assert backend == "nccl"
    assert rank in range(world_size)
    assert init_method.startswith("file:///" if world_size == 1 else "tcp://")
    _world = world_size
    if world_size > 1 and os.environ.get("NCCL_DEBUG") == "INFO":
        print("NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA")


def _all_reduce(tensor: Tensor) -> None:
    """The sum over ranks that all hold the same."""
    tensor.value = tensor.value * _world


distributed = types.SimpleNamespace(
    is_available=lambda: True,
    is_nccl_available=lambda: True,
    init_process_group=_init,
    all_reduce=_all_reduce,
    destroy_process_group=lambda: None,
)

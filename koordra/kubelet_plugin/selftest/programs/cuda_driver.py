"""CUDA's driver API through ctypes: the calls that the programs make."""

from __future__ import annotations

import ctypes
import uuid
from typing import Any

OUT_OF_MEMORY = 2
MIB = 1 << 20


class CudaError(Exception):
    """A call that has to succeed did not."""


class CudaDriver:
    """libcuda.so.1 as the loader finds it, with the primary context of a card."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> int:
        """CUDA's error code, 0 for success. Integers that are addresses or sizes are to be given as
        c_size_t."""
        return int(getattr(self._library, name)(*arguments))

    def need(self, name: str, *arguments: Any) -> None:
        code = self.call(name, *arguments)
        if code != 0:
            raise CudaError(f"{name} ends with CUDA error {code}")

    def begin(self, ordinal: int = 0) -> None:
        """cuInit, and the card's primary context as the current one."""
        context = ctypes.c_void_p()
        self.need("cuInit", 0)
        self.need("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device(ordinal))
        self.need("cuCtxSetCurrent", context)

    def count(self) -> int:
        number = ctypes.c_int()
        self.need("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.need("cuDeviceGet", ctypes.byref(device), ordinal)
        return device

    def uuid(self, ordinal: int) -> str:
        """As nvidia-smi writes it, but for the prefix of a MIG instance."""
        raw = (ctypes.c_ubyte * 16)()
        self.need("cuDeviceGetUuid_v2", raw, self.device(ordinal))
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def name(self, ordinal: int) -> str:
        text = ctypes.create_string_buffer(256)
        self.need("cuDeviceGetName", text, 256, self.device(ordinal))
        return text.value.decode(errors="replace")

    def total(self, ordinal: int) -> int:
        size = ctypes.c_size_t()
        self.need("cuDeviceTotalMem_v2", ctypes.byref(size), self.device(ordinal))
        return size.value

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the current context's card."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.need("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> tuple[int, ctypes.c_void_p]:
        """The error code, and the address where it is 0."""
        address = ctypes.c_void_p()
        return self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size)), address

    def free(self, address: ctypes.c_void_p) -> None:
        self.need("cuMemFree_v2", address)

    def allocate_async(self, size: int) -> tuple[int, ctypes.c_void_p]:
        """Of the card's memory pool, in the default stream."""
        address = ctypes.c_void_p()
        code = self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), None)
        return code, address

    def free_async(self, address: ctypes.c_void_p) -> None:
        self.need("cuMemFreeAsync", address, None)
        self.need("cuStreamSynchronize", None)

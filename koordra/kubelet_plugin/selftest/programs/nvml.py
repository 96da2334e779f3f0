"""NVML through ctypes: what a program in a container sees of cards and of processes on them."""

from __future__ import annotations

import ctypes
from typing import Any


class NvmlError(Exception):
    """A call that has to succeed did not."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


_NO_FIGURE = (1 << 64) - 1


class Nvml:
    """libnvidia-ml.so.1, as the loader finds it unless it is named with its folder."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        self._library = ctypes.CDLL(library)
        self._need("nvmlInitWithFlags", 0)

    def _need(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code != 0:
            raise NvmlError(f"{name} ends with NVML error {code}")

    def cards(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._need("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._need("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            found.append(handle)
        return found

    def uuid(self, card: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._need("nvmlDeviceGetUUID", card, text, 96)
        return text.value.decode(errors="replace")

    def memory(self, card: ctypes.c_void_p) -> tuple[int, int]:
        """Total and used bytes."""
        found = _Memory()
        self._need("nvmlDeviceGetMemoryInfo", card, ctypes.byref(found))
        return found.total, found.used

    def processes(self, card: ctypes.c_void_p) -> list[tuple[int, int | None]]:
        """Pid and bytes of those that compute; None where the driver does not say how many."""
        count = ctypes.c_uint(256)
        listed = (_Process * count.value)()
        self._need("nvmlDeviceGetComputeRunningProcesses_v3", card, ctypes.byref(count), listed)
        return [(each.pid, None if each.used == _NO_FIGURE else each.used) for each in listed[: count.value]]

"""What do NVML and nvidia-smi show in the container, before and while this process has a context? The
difference is what a context takes of the card. `Nvml` is NVML through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer
from koordra.kubelet_plugin.selftest.programs.cuda_driver import CudaDriver

QUERY = ("--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits")


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


def nvidia_smi() -> dict[str, Any] | None:
    """UUID and memory of each card by nvidia-smi; None where the container has none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run([program, *QUERY], capture_output=True, text=True, check=False, timeout=60)
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return {
        "exit": done.returncode,
        "said": (done.stdout + done.stderr).strip()[-500:],
        "totalMiB": {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdecimal()},
    }


def ask() -> dict[str, Any]:
    nvml = Nvml()
    cards = nvml.cards()
    before = [nvml.memory(card)[1] for card in cards]
    CudaDriver().begin()
    try:
        processes: list[tuple[int, int | None]] | None = [
            one for card in cards for one in nvml.processes(card)
        ]
    except NvmlError:
        processes = None
    return {
        "uuids": [nvml.uuid(card) for card in cards],
        "total": [nvml.memory(card)[0] for card in cards],
        "usedBefore": before,
        "used": [nvml.memory(card)[1] for card in cards],
        "pid": os.getpid(),
        "processes": processes,
        "nvidiaSmi": nvidia_smi(),
    }


if __name__ == "__main__":
    answer(ask)

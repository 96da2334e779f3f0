"""What do NVML and nvidia-smi show in the container, before and while this process has a context? The
difference is what a context takes of the card."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer
from koordra.kubelet_plugin.selftest.programs.cuda_driver import CudaDriver
from koordra.kubelet_plugin.selftest.programs.nvml import Nvml, NvmlError

QUERY = ("--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits")


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

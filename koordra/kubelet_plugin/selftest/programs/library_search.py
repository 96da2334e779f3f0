"""Do programs that look for libcuda find it? Each searches in its own way:

- the loader, for `libcuda.so.1` and for the bare `libcuda.so`;
- Python's ctypes.util.find_library, which asks the ld cache and then the compiler;
- Triton (torch.compile, vLLM): the folder of TRITON_LIBCUDA_PATH, else those of `/sbin/ldconfig -p`, else
  those of LD_LIBRARY_PATH; one of them has to hold libcuda.so.1."""

from __future__ import annotations

import ctypes
import os
import subprocess
from ctypes.util import find_library
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer


def cached() -> list[str]:
    """The paths of libcuda.so.1 in the ld cache, in its order."""
    try:
        listed = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except OSError:
        return []
    return in_listing(listed)


def in_listing(listed: str) -> list[str]:
    """Of 64-bit programs (`libc6,x86-64`, `libc6,AArch64`); the driver may bring one for 32-bit programs
    too."""
    lines = [line for line in listed.splitlines() if line.split()[:1] == ["libcuda.so.1"]]
    return [line.split()[-1] for line in lines if "64" in "".join(line.split("(")[1].split(",")[1:2])]


def triton_folders() -> list[str]:
    """Those that Triton would use, empty where it gives up."""
    told = os.environ.get("TRITON_LIBCUDA_PATH")
    if told:
        return [told]
    folders = [str(Path(path).parent) for path in cached()]
    if not folders:
        folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return folders if any((Path(folder) / "libcuda.so.1").exists() for folder in folders) else []


def opens(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def ask() -> dict[str, Any]:
    return {
        "loader": opens("libcuda.so.1"),
        "bareName": opens("libcuda.so"),
        "findLibrary": find_library("cuda"),
        "cached": cached(),
        "triton": triton_folders(),
        "nvml": opens("libnvidia-ml.so.1"),
    }


if __name__ == "__main__":
    answer(ask)

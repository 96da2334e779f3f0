"""torch.compile: Triton finds libcuda, builds its launcher with the C compiler, and the kernel computes."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import (
    LackingError,
    answer,
    library,
    torch_with_cuda,
)


def require_compiler() -> None:
    """What Triton's launcher is built with (triton/runtime/build.py)."""
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        raise LackingError("there is no C compiler (gcc, clang or CC), which Triton needs")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise LackingError(f"there is no {header}, which Triton needs (python3-dev)")


def ask() -> dict[str, Any]:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch, triton = torch_with_cuda(), library("triton")
    require_compiler()
    compiled = torch.compile(lambda x, y: torch.nn.functional.gelu(x) * y + x.sin())
    x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    wrong = float((compiled(x, y) - (torch.nn.functional.gelu(x) * y + x.sin())).abs().max())
    return {"version": torch.__version__, "triton": triton.__version__, "error": wrong}


if __name__ == "__main__":
    answer(ask)

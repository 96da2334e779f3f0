"""torch.compile: Triton finds libcuda, builds its launcher with the C compiler, and the kernel computes."""

from __future__ import annotations

import os
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer, library


def ask() -> dict[str, Any]:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch = library("torch")
    triton = library("triton")
    compiled = torch.compile(lambda x, y: torch.nn.functional.gelu(x) * y + x.sin())
    x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    wrong = float((compiled(x, y) - (torch.nn.functional.gelu(x) * y + x.sin())).abs().max())
    return {"version": torch.__version__, "triton": triton.__version__, "error": wrong}


if __name__ == "__main__":
    answer(ask)

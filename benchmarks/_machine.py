"""The processor, cores and Python that figures were measured with."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model
        )
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"

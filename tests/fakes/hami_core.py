"""HAMi's folder on a node, with a double of its library (hami_core.c)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.hami_core import LIBRARY


def install(folder: Path) -> Path:
    """Fill the folder as HAMi's DaemonSet does; skips where there is no compiler."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler: the double of HAMi's library needs cc")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = Path(__file__).with_suffix(".c"), folder / "libvgpu.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", source, "-o", library], check=True)
    library.chmod(0o755)
    (folder / "ld.so.preload").write_text(f"{LIBRARY}\n")
    return folder

"""Building native programs for tests: by one process at a time, since tests that run side by side share what
is built."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BUILT: Final = ROOT / "build" / "native"


def make(source: Path, *targets: str, out: Path) -> None:
    """`make` below `source` into `out`; skips where there is no compiler."""
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("no C compiler: native programs need make and cc")
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "-s", "-j2", "-C", str(source), f"OUT={out}", *targets],
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr

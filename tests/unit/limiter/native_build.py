"""The limiter and its fake driver, built on the spot for the tests in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "native"


def build() -> Path:
    """The folder with the libraries and test programs; skips where there is no compiler."""
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("no C compiler: the limiter needs make and cc")
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(ROOT / "native"), f"OUT={OUT}", "python-programs"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return OUT


def environment(built: Path, *, regions: Path, world: Path) -> dict[str, str]:
    """What makes a program find the limiter, the fake driver behind it, and its region."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(built / "cuda"),
        "KOORDRA_DRIVER_FOLDER": str(built / "test" / "driver"),
        "KOORDRA_LIMITER_FOLDER": str(regions),
        "KOORDRA_FAKE_CUDA": str(world),
        "KOORDRA_TEST_FOLDER": str(world),
        "KOORDRA_OUT": str(built),
    }

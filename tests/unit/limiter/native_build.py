"""The limiter and its fake driver, built on the spot for the tests in Python."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fakes.native import BUILT, ROOT, make


def build() -> Path:
    """The folder with the libraries and test programs; skips where there is no compiler."""
    make(ROOT / "native", "python-programs", out=BUILT)
    return BUILT


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

"""The fast part of `make -C native test`: unit tests of the limiter in C, and a short run of the property."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.limiter.native_build import environment


@pytest.mark.long
def test_the_unit_tests_in_c(built: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(built / "test" / "limiter-tests")],
        env=environment(built, regions=tmp_path / "regions", world=tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" passed, 0 failed\n")


def test_the_limit_holds_while_processes_are_killed(built: Path, tmp_path: Path) -> None:
    """`make -C native test` does 100,000 operations and more."""
    done = subprocess.run(
        [str(built / "test" / "property"), "10000", "4"],
        env=environment(built, regions=tmp_path / "regions", world=tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert "property: " in done.stderr

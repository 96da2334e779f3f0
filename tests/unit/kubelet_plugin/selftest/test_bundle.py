"""The folder that is brought to a machine which has a GPU and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.native import ROOT

pytestmark = pytest.mark.long


def test_the_bundle_runs_with_a_python_that_has_no_packages(gpu: GpuMachine, tmp_path: Path) -> None:
    folder = tmp_path / "selftest"
    subprocess.run([sys.executable, ROOT / "scripts" / "selftest_bundle.py", folder], check=True)
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.base_prefix) / "bin" / "python3"} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        [
            "sh",
            moved / "run",
            "--root",
            gpu.root,
            "--container",
            "process",
            "-o",
            "json",
            "--only",
            "*: driver-api",
        ],
        env=gpu.environment | {"PYTHON": str(bare)},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps["share: driver-api"]["details"]["limiter"]["processes"] == 1
    mapped = steps["share: driver-api"]["details"]["mapped"]
    assert not [path for path in mapped if path.startswith(str(ROOT))]

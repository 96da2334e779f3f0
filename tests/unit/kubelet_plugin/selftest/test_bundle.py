"""The folder that is brought to a machine which has a GPU and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.native import ROOT
from tests.unit.kubelet_plugin.selftest.conftest import Steps

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made, and moved elsewhere."""
    folder = tmp_path_factory.mktemp("bundle")
    subprocess.run([sys.executable, ROOT / "scripts" / "selftest_bundle.py", folder / "made"], check=True)
    (folder / "made").rename(folder / "moved")
    return folder / "moved"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


BARE = f'exec {Path(sys.base_prefix) / "bin" / "python3"} -S "$@"'
"""Without site-packages."""


def run(bundle: Path, gpu: GpuMachine, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", bundle / "run", "--root", gpu.root, "--container", "process", "-o", "json"]
    return subprocess.run(
        [*command, "--only", "*: driver-api"],
        env=gpu.environment | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )


def steps(done: subprocess.CompletedProcess[str]) -> Steps:
    assert done.returncode == 0, done.stderr
    return {step["name"]: step for step in json.loads(done.stdout)["steps"]}


def test_the_bundle_runs_with_a_python_that_has_no_packages(
    bundle: Path, gpu: GpuMachine, tmp_path: Path
) -> None:
    script(tmp_path / "bare", BARE)
    found = steps(run(bundle, gpu, PYTHON=str(tmp_path / "bare")))["share: driver-api"]["details"]
    assert found["limiter"]["processes"] == 1
    assert not [path for path in found["mapped"] if path.startswith(str(ROOT))]


def test_an_older_python_runs_the_programs_and_a_newer_one_koordra(
    bundle: Path, gpu: GpuMachine, tmp_path: Path
) -> None:
    """And the programs do not see the bundle's packages in place of their own."""
    said = tmp_path / "said"
    script(tmp_path / "bin/python3", f'case "$2" in *version_info*) exit 1;; esac\nenv > {said}\n{BARE}')
    script(tmp_path / "bin/python3.12", BARE)
    found = steps(run(bundle, gpu, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin", PYTHONPATH="/own"))
    assert found["share: driver-api"]["status"] == "ok"
    assert f"PYTHONPATH={bundle / 'lib'}:/own\n" in said.read_text()


def test_without_a_python_that_is_new_enough_it_says_so(
    bundle: Path, gpu: GpuMachine, tmp_path: Path
) -> None:
    for version in ("", ".11", ".12", ".13", ".14"):
        script(tmp_path / f"bin/python3{version}", "exit 1")
    done = run(bundle, gpu, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (
        2,
        "koordra needs Python 3.11 or newer; name one with PYTHON=...\n",
    )

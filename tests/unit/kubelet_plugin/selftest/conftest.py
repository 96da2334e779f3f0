"""A made-up machine with one H200, and runs of the self test on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import gpu_machine
from tests.fakes.gpu_machine import GpuMachine

Steps = dict[str, dict[str, Any]]
Run = Callable[..., Steps]


@pytest.fixture(scope="session")
def _built() -> None:
    gpu_machine.build()


@pytest.fixture
def gpu(tmp_path: Path, _built: None) -> GpuMachine:
    return GpuMachine.make(tmp_path / "m")


def selftest_of(machine: GpuMachine, *, before: Sequence[str] = ()) -> Run:
    """`koordra node selftest` in a process of its own: the steps by name. `before`: a command that starts
    it."""

    def run(*arguments: str, **environment: str) -> Steps:
        command = [sys.executable, "-m", "koordra", "node", "selftest", "--root", str(machine.root)]
        done = subprocess.run(
            [*before, *command, "-o", "json", *arguments],
            env=machine.environment | environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode in (0, 1), done.stderr
        document = json.loads(done.stdout)
        assert done.returncode == int(document["problems"] > 0)
        return {step["name"]: step for step in document["steps"]}

    return run


@pytest.fixture
def selftest(gpu: GpuMachine) -> Run:
    return selftest_of(gpu)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

_OVERLAY = (
    "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/r && "
    "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
)


def namespaces_can_be_made() -> bool:
    """Whether root here may make the namespaces of a container, with an overlay."""
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", _OVERLAY]
    done = subprocess.run(command, check=False, capture_output=True)
    return os.geteuid() == 0 and done.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not namespaces_can_be_made(), reason="this machine lets nobody mount an overlay"
)

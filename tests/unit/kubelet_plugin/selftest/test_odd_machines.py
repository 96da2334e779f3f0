"""The self test where a machine is not as a node is: in a container that has some of the cards, in a sandbox,
without capabilities, with a broken nvidia-smi; and where it is cut off."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import gpu_machine
from tests.fakes.gpu_machine import GpuMachine
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.selftest.conftest import Run, needs_namespaces, needs_root, selftest_of
from tests.unit.kubelet_plugin.selftest.test_selftest import problems

pytestmark = pytest.mark.long
GIB = 1 << 30


@pytest.fixture
def fourth_of_eight(tmp_path: Path, _built: None) -> GpuMachine:
    """A container on a host of eight cards that was given the fourth: sysfs shows all, NVML and /dev one."""
    gpu_machine.build()
    machine = GpuMachine.make(tmp_path / "m", "hgx-h100")
    given = machine.machine.gpus[3]
    recording = machine.root / "nvml.json"
    said = json.loads(recording.read_text())
    said["gpus"] = [gpu for gpu in said["gpus"] if gpu["uuid"] == given.uuid]
    recording.write_text(json.dumps(said))
    machine.give(given)
    return machine


def test_cards_that_a_container_was_not_given_are_set_aside(fourth_of_eight: GpuMachine) -> None:
    steps = selftest_of(fourth_of_eight)("--container", "process", "--only", "*: driver-api")
    assert problems(steps) == {}
    assert "7 more on the PCI bus are not given to this container" in steps["discovery"]["found"]
    given = fourth_of_eight.machine.gpus[3].uuid
    assert steps["whole: driver-api"]["details"]["uuids"] == [given]


def test_a_card_that_only_nvml_knows_is_tried(selftest: Run, gpu: GpuMachine) -> None:
    """A sandbox without a PCI tree (gVisor)."""
    shutil.rmtree(gpu.root / "sys")
    shutil.rmtree(gpu.root / "proc")
    steps = selftest("--container", "process", "--only", "*: driver-api")
    assert problems(steps) == {}
    assert "by NVML alone" in steps["discovery"]["found"]
    assert steps["share: driver-api"]["details"]["total"] == 8 * GIB


def test_a_machine_without_card_and_driver_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:00:1f.0").mkdir(parents=True)
    command = [sys.executable, "-m", "koordra", "node", "selftest", "--root", str(tmp_path), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps["discovery"]["found"] == "no driver: no GPU; 0 RDMA NICs"


def test_a_card_with_little_free_memory_is_tried_with_less(selftest: Run, gpu: GpuMachine) -> None:
    program = gpu.root / "usr/bin/nvidia-smi"
    program.write_text(program.read_text().replace("(handle).used // MIB", "(handle).total // MIB - 5000"))
    steps = selftest("--container", "process", "--only", "share: driver-api")
    assert steps["share: driver-api"]["details"]["total"] == 2 * GIB
    assert "in use" in steps["nvidia-smi"]["found"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo Driver/library version mismatch; exit 18", "ends with 18: Driver/library version mismatch"),
        ("printf '\\033[2J\\377 no\\n'", "lists no card"),
        (None, "there is no nvidia-smi"),
    ],
)
def test_an_nvidia_smi_that_does_not_answer_is_told_apart_from_one_that_is_not_there(
    selftest: Run, gpu: GpuMachine, text: str | None, found: str
) -> None:
    program = gpu.root / "usr/bin/nvidia-smi"
    program.unlink()
    if text:
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    elif shutil.which("nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi of its own")
    step = selftest("--container", "process", "--only", "whole: driver-api")["nvidia-smi"]
    assert step["status"] == ("problem" if text else "skipped")
    assert found in step.get("found", step.get("reason"))


@needs_root
def test_root_that_may_not_mount_tries_in_a_plain_process(gpu: GpuMachine) -> None:
    """As in most containers: root without CAP_SYS_ADMIN."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    before = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    steps = selftest_of(gpu, before=before)("--only", "*: driver-api")
    assert problems(steps) == {}
    assert steps["container"]["found"].startswith("a plain process")
    assert "Operation not permitted" in steps["container"]["found"]


def test_what_was_mistyped_is_said_at_once(selftest: Run, gpu: GpuMachine) -> None:
    for arguments, said in (
        (("--only", "share: tortch"), "no step is named like 'share: tortch'"),
        (("--memory", "-1Gi"), "-1Gi is no size of a share"),
        (("--memory", "much"), "'much' is not a quantity"),
        (("--python", "/nonexistent"), "/nonexistent"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "koordra", "node", "selftest", "--root", gpu.root, *arguments],
            env=gpu.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert said in done.stderr
    assert "there is no GPU-1 to be tried" in selftest("--device", "GPU-1")["claims"]["found"]


def test_the_interpreter_that_is_named_runs_the_programs(selftest: Run, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/run\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    asked = "--container", "process", "--only", "whole: driver-api"
    assert problems(selftest(*asked, "--python", str(python))) == {}
    assert "driver_api" in (tmp_path / "run").read_text()


@pytest.fixture
def hanging_torch(tmp_path: Path) -> str:
    (tmp_path / "site").mkdir()
    text = f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(600)\n"
    (tmp_path / "site" / "torch.py").write_text(text)
    return str(tmp_path / "site")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("container", ["process", pytest.param("namespace", marks=needs_namespaces)])
def test_a_run_that_is_cut_off_leaves_its_report_and_nothing_else(
    gpu: GpuMachine, tmp_path: Path, hanging_torch: str, container: str, number: int
) -> None:
    """No mounts, no processes, and but for SIGKILL no files."""
    (tmp_path / "work").mkdir()
    bundle = tmp_path / "r.tar.gz"
    command = [sys.executable, "-m", "koordra", "node", "selftest", "--root", str(gpu.root)]
    command += ["--container", container, "--only", "share: torch", "--report", str(bundle)]
    begun = tmp_path / "begun"
    # A suite that runs in the background of a script ignores SIGINT, and so would what it starts.
    with (
        _handled(signal.SIGINT),
        subprocess.Popen(
            command,
            env=gpu.environment | {"PYTHONPATH": hanging_torch, "TMPDIR": str(tmp_path / "work")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as running,
    ):
        _await(begun.exists)
        running.send_signal(number)
        running.wait(PATIENCE)
    _await(lambda: not _processes_of(tmp_path))
    assert str(tmp_path / "work") not in Path("/proc/mounts").read_text()
    assert bool(list((tmp_path / "work").iterdir())) == (number == signal.SIGKILL)
    said = _report(bundle)
    assert said["finished"] is False
    assert "share: spec" in [step["name"] for step in said["steps"]]


@contextlib.contextmanager
def _handled(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _await(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in environment:
            found.append(process.name)
    return found


def _report(bundle: Path) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(bundle.read_bytes())) as tar:
        file = tar.extractfile("koordra-selftest/report.json")
        assert file is not None
        return dict(json.load(file))

"""`koordra node release-driver` and `await-release`, against the plugin's files."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koordra.cli.node.release_driver import await_release, release_driver
from koordra.errors import NodeError
from koordra.kubelet_plugin.nvidia_driver.release import (
    REPORT,
    REPORT_FILE,
    REQUEST_FILE,
    Phase,
    ReleaseReport,
)
from koordra.kubelet_plugin.nvidia_driver.release_request import UNTOLD_FOR, ReleaseFolder, pods_on
from koordra.node_state.disk import Disk
from tests.fakes.clock import Clock
from tests.unit.kubelet_plugin.nvidia_driver.test_device_holders import UID, Proc


@pytest.fixture
def root(tmp_path: Path) -> Proc:
    (tmp_path / "root").mkdir()
    return Proc(tmp_path / "root")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def says(state: Path, report: ReleaseReport) -> None:
    (state / REPORT_FILE).write_text(json.dumps(REPORT.write(report)))


def run(state: Path, root: Proc, *options: str) -> Result:
    command = ["--state-dir", str(state), "--root", str(root.root), "--timeout", "0", *options]
    return CliRunner().invoke(release_driver, command)


def released(state: Path) -> None:
    (state / REQUEST_FILE).write_text("token")
    says(state, ReleaseReport(Phase.RELEASED, "asked", nvml_closed=True, request="token"))


def test_nobody_holds_it(state: Path, root: Proc) -> None:
    released(state)
    found = run(state, root)
    assert (found.exit_code, found.stdout) == (0, "Released: NVML is closed\n")


def test_who_holds_it_is_named_by_process_and_pod_and_is_an_error(state: Path, root: Proc) -> None:
    released(state)
    root.process(41, "/dev/null", cgroup=f"0::/kubepods/burstable/pod{UID}/abc", comm="dcgm-exporter")
    (root.root / "var/log/pods" / f"gpu-operator_dcgm-exporter-x2v_{UID}").mkdir(parents=True)

    found = run(state, root)
    assert found.exit_code == 1
    assert "dcgm-exporter (pid 41, pod gpu-operator/dcgm-exporter-x2v) holds /dev/null" in found.stdout

    found = run(state, root, "--output", "json")
    assert found.exit_code == 1
    (holder,) = json.loads(found.stdout)["holders"]
    assert (holder["pid"], holder["pod"]) == (41, "gpu-operator/dcgm-exporter-x2v")


def test_claims_that_are_left_are_named(state: Path, root: Proc) -> None:
    (state / REQUEST_FILE).write_text("token")
    claims = ("ResourceClaim team-a/train",)
    says(state, ReleaseReport(Phase.EVICTING, "asked", True, claims, request="token"))

    found = run(state, root)
    assert found.exit_code == 1
    assert "claim ResourceClaim team-a/train still has GPUs" in found.stdout


def test_a_report_about_something_else_is_no_answer(state: Path, root: Proc) -> None:
    says(state, ReleaseReport(Phase.RELEASED, "drain-required", nvml_closed=True))

    found = run(state, root)
    assert found.exit_code == 1
    assert "has not answered" in found.stdout
    assert (state / REQUEST_FILE).read_text().strip()


def test_resume_takes_the_request_back(state: Path, root: Proc) -> None:
    released(state)
    assert run(state, root, "--resume").exit_code == 0
    assert not (state / REQUEST_FILE).exists()
    assert run(state, root, "--resume").exit_code == 0


def test_a_directory_that_is_none_is_said(tmp_path: Path, root: Proc) -> None:
    found = run(tmp_path / "nowhere", root)
    assert found.exit_code != 0
    assert "name the plugin's state directory" in str(found.exception)


def test_names_of_pods_come_from_the_kubelets_folders(root: Proc) -> None:
    folder = root.root / "var/log/pods"
    for name in (f"team-a_train-0_{UID}", "garbage", "_x_"):
        (folder / name).mkdir(parents=True)
    assert pods_on(root.root) == {UID: "team-a/train-0"}


class Waiting:
    """The pod that driver-manager waits for, after its SIGTERM."""

    def __init__(self, state: Path, *reports: ReleaseReport) -> None:
        self.clock = Clock(1000.0)
        self.reports = list(reports)
        self.state = state
        says(state, self.reports.pop(0))

    def rest(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.reports:
            says(self.state, self.reports.pop(0))
        assert self.clock.now < 1000.0 + 100 * UNTOLD_FOR

    def seconds(self) -> float:
        stop = threading.Event()
        stop.set()
        ReleaseFolder(self.state, Disk(), self.clock.monotonic, self.rest).wait_at_end(stop)
        return self.clock.now - 1000.0


def test_the_waiting_pod_ends_once_the_driver_may_be_unloaded(state: Path) -> None:
    evicting = ReleaseReport(Phase.EVICTING, "pod-restart-required", nvml_closed=True)
    waiting = Waiting(
        state, ReleaseReport(), *[evicting] * 300, ReleaseReport(Phase.RELEASED, "x", nvml_closed=True)
    )
    waiting.seconds()
    assert not waiting.reports


def test_it_does_not_keep_a_driver_that_only_restarts_waiting_for_pods(state: Path) -> None:
    paused = ReleaseReport(Phase.CLOSING, "paused", nvml_closed=True, claims=("ResourceClaim a/b",))
    assert Waiting(state, paused).seconds() == 0


def test_without_an_upgrade_it_ends_soon(state: Path) -> None:
    assert UNTOLD_FOR <= Waiting(state, ReleaseReport()).seconds() < 2 * UNTOLD_FOR


def test_without_a_plugin_it_ends(state: Path) -> None:
    waiting = Waiting(state, ReleaseReport())
    (state / REPORT_FILE).unlink()
    assert waiting.seconds() == 0


def test_a_report_that_it_may_not_read_is_said_when_it_starts(state: Path) -> None:
    (state / REPORT_FILE).mkdir()
    with pytest.raises(NodeError, match="let this pod read"):
        ReleaseFolder(state, Disk()).wait_at_end(threading.Event())


def test_the_waiting_pod_reads_the_folder_that_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    over.set()
    monkeypatch.setattr("koordra.process.lifecycle.stop_on_signals", lambda: over)
    command = ["--state-dir", str(state)]
    assert CliRunner().invoke(await_release, command).exit_code == 0, "no plugin is there"
    (state / REPORT_FILE).mkdir()
    assert str(state / REPORT_FILE) in str(CliRunner().invoke(await_release, command).exception)

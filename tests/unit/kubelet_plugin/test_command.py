"""`koordra kubelet-plugin`: what the options decide."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra import kubeconfig, logs, process
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.cli.processes.kubelet_plugin import command
from koordra.errors import InvalidInput
from koordra.kubelet_plugin import driver
from koordra.kubelet_plugin.publish.resource_slices import Offering
from koordra.kubelet_plugin.settings import Settings
from koordra.metrics import Metrics


class RecordedDriver:
    """Stands for the driver, and remembers with which settings it ran."""

    ran: list[Settings]

    def __init__(self, settings: Settings, client: object, *, metrics: Metrics) -> None:
        del client, metrics
        self._settings = settings

    def answers(self) -> bool:
        return True

    def run(self, stop: threading.Event) -> None:
        del stop
        self.ran.append(self._settings)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Of every run of the command, which neither talks to a cluster nor touches this process's signals and
    logs."""
    RecordedDriver.ran = []
    monkeypatch.setattr(driver, "Driver", RecordedDriver)
    monkeypatch.setattr(kubeconfig, "new_client", lambda *_, **__: None)
    monkeypatch.setattr(process, "stop_on_signals", threading.Event)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    return RecordedDriver.ran


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Offering(slots_per_gpu=16, mig=False, vfs=False)),
        (["--mig"], Offering(mig=True)),
        (["--vfs"], Offering(vfs=True)),
        (["--allowed-isolation", "none"], Offering(isolation=IsolationPolicy(("none",)))),
        (
            ["--allowed-isolation", "mps,limiter", "--default-isolation", "limiter"],
            Offering(isolation=IsolationPolicy(("mps", "limiter"), "limiter")),
        ),
        (["--mig", "--no-mig", "--vfs", "--slots-per-gpu", "4"], Offering(slots_per_gpu=4, vfs=True)),
    ],
)
def test_what_is_offered(settings: list[Settings], options: list[str], expected: Offering) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", *options])
    assert ran.exit_code == 0, ran.output
    assert [each.offering for each in settings] == [expected]


def test_where_everything_is(settings: list[Settings], tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--kubelet-root", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    (found,) = settings
    assert found.paths.root == Path("/")
    assert found.paths.state == tmp_path / "plugins" / "koordra.io"
    assert found.mode is None


def test_pod_networks_and_another_driver_root(settings: list[Settings]) -> None:
    options = ["--pod-network", "--driver-root", "/driver", "--driver-root-on-host", "/run/nvidia/driver"]
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--health-address", "127.0.0.1:0", *options])
    assert ran.exit_code == 0, ran.output
    (found,) = settings
    assert found.pod_network
    assert (found.driver_root, found.driver_root_on_host) == (Path("/driver"), Path("/run/nvidia/driver"))


def test_an_address_that_cannot_be_is_refused(settings: list[Settings]) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--health-address", "nowhere"])
    assert isinstance(ran.exception, InvalidInput)
    assert not settings

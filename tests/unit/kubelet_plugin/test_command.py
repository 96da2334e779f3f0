"""`koordra kubelet-plugin`: what the options decide."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra import logs
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.cli.processes.kubelet_plugin import command
from koordra.errors import InvalidInput
from koordra.kube import kubeconfig
from koordra.kubelet_plugin import driver
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot
from koordra.kubelet_plugin.publish.drain_policy import DrainPolicy
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import Settings
from koordra.metrics import Metrics
from koordra.process import lifecycle
from tests.cluster.installation import free_port
from tests.patience import PATIENCE


class RecordedDriver:
    """Stands for the driver, and remembers with which settings it ran."""

    ran: list[Settings]
    sockets_answer = True
    profiles = staticmethod(lambda: b"")
    at_run: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, settings: Settings, client: object, *, metrics: Metrics) -> None:
        del client, metrics
        self._settings = settings

    def answers(self) -> bool:
        return self.sockets_answer

    def run(self, stop: threading.Event) -> None:
        del stop
        self.ran.append(self._settings)
        self.at_run()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Of every run of the command, which neither talks to a cluster nor touches this process's signals and
    logs."""
    RecordedDriver.ran = []
    monkeypatch.setattr(driver, "Driver", RecordedDriver)
    monkeypatch.setattr(kubeconfig, "new_client", lambda *_, **__: None)
    monkeypatch.setattr(lifecycle, "stop_on_signals", threading.Event)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    return RecordedDriver.ran


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Offering(slots_per_gpu=16, mig=False, vfs=False)),
        (["--mig"], Offering(mig=True)),
        (["--vfs"], Offering(vfs=True)),
        (["--mig-on-demand"], Offering(mig=True, mig_on_demand=True)),
        (["--drain-on", "GpuLost, Xid79"], Offering(drain=DrainPolicy(frozenset({"GpuLost", "Xid79"})))),
        (["--allowed-isolation", "none"], Offering(isolation=IsolationPolicy(("none",)))),
        (
            ["--allowed-isolation", "hami-core,limiter", "--default-isolation", "limiter"],
            Offering(isolation=IsolationPolicy(("hami-core", "limiter"), "limiter")),
        ),
        (["--mig", "--no-mig", "--vfs", "--slots-per-gpu", "4"], Offering(slots_per_gpu=4, vfs=True)),
    ],
)
def test_what_is_offered(settings: list[Settings], options: list[str], expected: Offering) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", *options])
    assert ran.exit_code == 0, ran.output
    assert [each.offering for each in settings] == [expected]


def test_how_many_shares_a_card_takes_is_first_the_word_of_the_list_of_nodes(
    settings: list[Settings], tmp_path: Path
) -> None:
    (tmp_path / "nodes").write_text("nodeconfig: [{name: node-a, devicesplitcount: 4}]")
    options = ["--slots-per-gpu", "8", "--node-modes", str(tmp_path / "nodes")]
    for name in ("node-a", "node-b"):
        assert CliRunner().invoke(command, ["--node-name", name, *options]).exit_code == 0
    assert [each.offering.slots_per_gpu for each in settings] == [4, 8]


def test_where_everything_is(settings: list[Settings], tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--kubelet-root", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    (found,) = settings
    assert found.paths.root == Path("/")
    assert found.paths.state == tmp_path / "plugins" / "koordra.io"
    assert found.mode is None


def test_pod_networks(settings: list[Settings]) -> None:
    options = ["--pod-network", "--metrics-address", "127.0.0.1:0"]
    ran = CliRunner().invoke(command, ["--node-name", "node-a", *options])
    assert ran.exit_code == 0, ran.output
    assert settings[0].pod_network


def test_probes_hear_whether_the_plugins_sockets_answer(
    settings: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liveness and readiness alike: one whose sockets are lost is started anew."""
    port, codes = free_port(), []

    def probe() -> None:
        for sockets_answer in (True, False):
            monkeypatch.setattr(RecordedDriver, "sockets_answer", sockets_answer)
            for path in ("healthz", "readyz"):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE).close()
                    codes.append(200)
                except urllib.error.HTTPError as error:
                    codes.append(error.code)
                    error.close()

    monkeypatch.setattr(RecordedDriver, "at_run", staticmethod(probe))
    options = ["--metrics-address", f"127.0.0.1:{port}"]
    ran = CliRunner().invoke(command, ["--node-name", "node-a", *options])
    assert ran.exit_code == 0, ran.output
    assert codes == [200, 200, 503, 503]
    assert len(settings) == 1


def test_where_the_driver_is_looked_for(settings: list[Settings]) -> None:
    for options in ([], ["--host-root", "/host"]):
        ran = CliRunner().invoke(command, ["--node-name", "node-a", *options])
        assert ran.exit_code == 0, ran.output
    on_the_host, in_a_pod = settings
    assert on_the_host.host == HostRoot(Path("/"), Path("/"))
    assert in_a_pod.host == HostRoot(Path("/host"), Path("/"))
    assert in_a_pod.driver_root is None


@pytest.mark.parametrize(
    ("options", "root", "on_host", "dev_on_host"),
    [
        (["--driver-root", "/driver"], "/driver", "/driver", "/dev"),
        (["--driver-root", "/host/srv/driver"], "/host/srv/driver", "/srv/driver", "/dev"),
        (["--driver-root", "/driver", "--driver-root-on-host", "/srv"], "/driver", "/srv", "/dev"),
        (["--driver-root", "/driver", "--dev-root", "/host/srv"], "/driver", "/driver", "/srv/dev"),
    ],
)
def test_an_operators_word_about_the_driver(
    settings: list[Settings], options: list[str], root: str, on_host: str, dev_on_host: str
) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--host-root", "/host", *options])
    assert ran.exit_code == 0, ran.output
    assert settings[0].driver_root is not None
    found = settings[0].driver_root()
    assert (found.root, found.on_host, found.dev_on_host) == (Path(root), Path(on_host), Path(dev_on_host))


def test_more_about_a_driver_root_that_is_not_named_is_refused(settings: list[Settings]) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--dev-root", "/host"])
    assert ran.exit_code == 2
    assert "DRIVER_ROOT" in ran.output
    assert not settings


def test_an_address_that_cannot_be_is_refused(settings: list[Settings]) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--metrics-address", "nowhere"])
    assert isinstance(ran.exception, InvalidInput)
    assert not settings


@pytest.mark.parametrize("word", ["Sneezing", "Xid13"])
def test_a_fault_that_never_comes_is_refused_at_the_start(settings: list[Settings], word: str) -> None:
    ran = CliRunner().invoke(command, ["--node-name", "node-a", "--drain-on", word])
    assert isinstance(ran.exception, InvalidInput)
    assert word in str(ran.exception)
    assert "--drain-on" in str(ran.exception)
    assert not settings

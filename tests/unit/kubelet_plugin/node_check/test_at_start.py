"""What the plugin says of its node when it starts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra import logs
from koordra.cli.processes.kubelet_plugin import command
from koordra.kube import kubeconfig
from koordra.kubelet_plugin import driver
from koordra.kubelet_plugin.node_check import at_start
from koordra.kubelet_plugin.node_check.at_start import NodeCheckAtStart
from koordra.metrics import Metrics
from koordra.process import lifecycle
from tests.fakes import node_files


def test_problems_are_logged_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node, metrics = node_files.healthy(tmp_path), Metrics()
    node.nvml({"migPending": True})
    node.write("proc/locks", "")
    NodeCheckAtStart(metrics, tmp_path, cdi_folder="/var/run/cdi").run(live=node.live())
    shown = capsys.readouterr().err
    assert shown.count("node_check_problem") == 1
    assert "check=mig" in shown
    counted = {line for line in metrics.text().splitlines() if line.startswith("koordra_node_check_problem")}
    assert 'koordra_node_check_problem{check="mig"} 1.0' in counted
    assert 'koordra_node_check_problem{check="driver"} 0.0' in counted
    assert 'koordra_node_check_problem{check="imex"} 0.0' in counted, "it is about nothing that is here"
    assert not [line for line in counted if "koordra-" in line]
    assert 'koordra_node_check_problem{check="cdi"} 0.0' in counted
    elsewhere = Metrics()
    NodeCheckAtStart(elsewhere, tmp_path, cdi_folder="/nobody/reads").run(live=node.live())
    assert 'koordra_node_check_problem{check="cdi"} 1.0' in elsewhere.text()


@pytest.mark.parametrize("given", [True, False])
def test_only_where_the_node_s_files_are_known(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[Path, str]] = []

    class Recorded:
        def __init__(self, metrics: Metrics, root: Path, *, cdi_folder: str) -> None:
            del metrics
            checked.append((root, cdi_folder))

        def run(self) -> None:
            pass

    class IdleDriver:
        answers = True
        profiles = None

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def run(self, stop: object) -> None:
            pass

    monkeypatch.setattr(at_start, "NodeCheckAtStart", Recorded)
    monkeypatch.setattr(driver, "Driver", IdleDriver)
    monkeypatch.setattr(kubeconfig, "new_client", lambda *_, **__: None)
    monkeypatch.setattr(lifecycle, "stop_on_signals", threading.Event)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    environment = {"KOORDRA_HOST_ROOT": str(tmp_path)} if given else {}
    ran = CliRunner().invoke(command, ["--node-name", "n", "--cdi-dir", "/cdi"], env=environment)
    assert ran.exit_code == 0, ran.output
    assert checked == ([(tmp_path, "/cdi")] if given else [])

"""The two processes of the development cluster, started as the demo starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.api import kinds
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.cli import command
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.manifests import claim, pod


class Processes:
    """koordra processes over one short folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "koordra", "devcluster", *arguments], stdout=log, stderr=log
            )
        self.running.append(process)
        return process

    def control_plane(self) -> subprocess.Popen[bytes]:
        return self.start(
            "control-plane", "--dir", str(self.folder / "c"), "--kubeconfig", str(self.kubeconfig)
        )

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def client(self) -> KubeClient:
        eventually(self.kubeconfig.exists)
        found = new_client(str(self.kubeconfig))
        eventually(lambda: self._answers(found))
        return found

    def _answers(self, client: KubeClient) -> bool:
        try:
            client.get(kinds.SERVICE_ACCOUNTS, "default", namespace="default")
        except ApiError:
            return False
        return True


@pytest.fixture
def processes() -> Iterator[Processes]:
    folder = Path(tempfile.mkdtemp(prefix="kp-"))
    made = Processes(folder)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_kill_9_of_the_control_plane_loses_nothing_acknowledged(processes: Processes) -> None:
    first = processes.control_plane()
    client = processes.client()
    acknowledged: dict[str, str] = {}
    for number in range(60):
        made = client.create(kinds.RESOURCE_CLAIMS, claim(f"c{number}"))
        acknowledged[f"c{number}"] = made["metadata"]["resourceVersion"]
        if number % 3 == 0:
            client.delete(kinds.RESOURCE_CLAIMS, f"c{number}", namespace="default")
            del acknowledged[f"c{number}"]
    first.send_signal(signal.SIGKILL)
    first.wait()
    processes.control_plane()
    again = processes.client()
    found, version = again.list(kinds.RESOURCE_CLAIMS)
    assert {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found} == acknowledged
    assert int(version) >= max(map(int, acknowledged.values()))


@pytest.mark.long
def test_a_node_joins_runs_a_pod_and_both_end_on_sigterm(processes: Processes) -> None:
    plane = processes.control_plane()
    client = processes.client()
    folder = processes.folder / "n"
    kubelet = processes.start(
        "kubelet", "--node-name", "n1", "--dir", str(folder), "--kubeconfig", str(processes.kubeconfig),
        "--cpu", "4", "--memory", "8Gi", "--label", "zone=a",
    )  # fmt: skip
    client.create(kinds.PODS, pod("p", nodeSelector={"zone": "a"}))

    def running() -> bool:
        return bool(client.get(kinds.PODS, "p", namespace="default")["status"]["phase"] == "Running")

    eventually(running)
    assert client.get(kinds.NODES, "n1")["status"]["capacity"]["cpu"] == "4"
    assert list((folder / "containers").glob("*.json"))
    assert (folder / "nri.sock").is_socket()
    for process in (kubelet, plane):
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--help"], "development double"),
        (["control-plane", "--help"], "Double of kube-apiserver"),
        (["kubelet", "--help"], "nothing is executed"),
    ],
)
def test_help_says_what_this_is(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0
    assert text in " ".join(result.output.split())


def test_a_label_has_to_be_one(tmp_path: Path) -> None:
    arguments = [
        "kubelet",
        "--node-name",
        "n",
        "--dir",
        str(tmp_path),
        "--kubeconfig",
        "k",
        "--label",
        "zone",
    ]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert "is not key=value" in result.output

"""Instances of the plugin as real processes: an update in which two overlap, a kill, and an API server that
is away.

The API server and the part of the kubelet that finds and calls drivers are the development cluster's, in this
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.publish.publisher import own_slices_selector
from koordra.process.lifecycle import PARENT_VARIABLE
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.kubelet.drivers import Drivers
from koordra_devcluster.kubelet.registry import PluginRegistry
from tests.fakes.node_claims import GPU_0, GPU_1, NODE, gpu
from tests.patience import PATIENCE
from tests.unit.devcluster import manifests
from tests.unit.kubelet_plugin.running_plugin import wait_for

pytestmark = pytest.mark.slow

DRIVER = "koordra.io"


class UpdatedNode:
    """A node whose plugin is updated: `start` makes one more instance, `kubelet` sees the sockets of all."""

    def __init__(self, folder: Path, machine_root: Path) -> None:
        self._folder = folder
        self._machine_root = machine_root
        self.kubelet_root = folder / "k"
        self.cdi = folder / "cdi"
        self._kubeconfig = folder / "kubeconfig"
        self.server: ApiServer | None = None
        self.instances: dict[str, subprocess.Popen[bytes]] = {}
        self.kubelet = Drivers(on_connected=lambda driver: None, wipe=lambda driver: None)
        self.registry_folder.mkdir(parents=True)

    @property
    def registry_folder(self) -> Path:
        return self.kubelet_root / "plugins_registry"

    @property
    def plugin_folder(self) -> Path:
        return self.kubelet_root / "plugins" / DRIVER

    def api_up(self) -> None:
        """Over what it has kept, on the port that it had."""
        self.server = ApiServer(self._folder / "api")
        self.server.start()
        self.server.write_kubeconfig(self._kubeconfig)
        self.client = new_client(str(self._kubeconfig))

    def api_down(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def start(self, pod_uid: str) -> None:
        """Returns once the kubelet calls this instance."""
        arguments = ("--node-name", NODE, "--root", str(self._machine_root), "--pod-uid", pod_uid)
        places = (
            "--kubelet-root",
            str(self.kubelet_root),
            "--cdi-dir",
            str(self.cdi),
            "--kubeconfig",
            str(self._kubeconfig),
        )
        with (self._folder / f"log-{pod_uid}").open("ab") as log:
            self.instances[pod_uid] = subprocess.Popen(
                [sys.executable, "-m", "koordra", "kubelet-plugin", *arguments, *places],
                stdout=log,
                stderr=log,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            )
        assert wait_for(lambda: self.called() == f"dra-{pod_uid}.sock", PATIENCE), self.log(pod_uid)

    def end(self, pod_uid: str, *, killed: bool = False) -> int:
        process = self.instances.pop(pod_uid)
        process.kill() if killed else process.terminate()
        return process.wait(PATIENCE)

    def called(self) -> str:
        """The socket that the kubelet's next call goes to."""
        found = [one for one in self.kubelet._connections if one.connected]
        return Path(found[-1].endpoint).name if found else ""

    def sockets(self) -> set[str]:
        return {
            path.name
            for folder in (self.registry_folder, self.plugin_folder)
            for path in folder.iterdir()
            if path.is_socket()
        }

    def log(self, pod_uid: str) -> str:
        return (self._folder / f"log-{pod_uid}").read_text()

    def claim(self, name: str, device: str) -> tuple[str, str, str]:
        made = self.client.create(kinds.RESOURCE_CLAIMS, manifests.claim(name))
        allocation = {"devices": {"results": [gpu("gpu", device)]}, "nodeSelector": NODE_SELECTOR}
        self.client.update(
            kinds.RESOURCE_CLAIMS, {**made, "status": {"allocation": allocation}}, subresource="status"
        )
        return "default", name, made["metadata"]["uid"]

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        return dict(self.kubelet.get(DRIVER).prepare(claims))

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        return dict(self.kubelet.get(DRIVER).unprepare(claims))

    def slices(self) -> list[Object]:
        return self.client.list(kinds.RESOURCE_SLICES, field_selector=own_slices_selector(NODE))[0]

    def cdi_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.cdi.iterdir()}


NODE_SELECTOR = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
}


@pytest.fixture
def node(machine_root: Path) -> Iterator[UpdatedNode]:
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        made = UpdatedNode(Path(folder), machine_root)
        made.api_up()
        made.client.create(kinds.NODES, manifests.node(NODE))
        registry = PluginRegistry(made.registry_folder, made.kubelet)
        watching = threading.Thread(target=lambda: registry.run(stop))
        watching.start()
        try:
            yield made
        finally:
            for process in made.instances.values():
                process.kill()
                process.wait()
            stop.set()
            (made.registry_folder / "wakes-the-watch").touch()
            watching.join(PATIENCE)
            made.kubelet.close()
            made.api_down()


def devices(answers: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    return {
        uid: (answer.error, [device.device_name for device in answer.devices])
        for uid, answer in answers.items()
    }


def ids(answers: dict[str, Any]) -> list[str]:
    return [
        name for answer in answers.values() for device in answer.devices for name in device.cdi_device_ids
    ]


def test_two_instances_overlap_one_ends_one_is_killed_and_a_third_takes_over(node: UpdatedNode) -> None:
    first, second = node.claim("one", GPU_0), node.claim("two", GPU_1)
    node.start("a")
    assert wait_for(node.slices, PATIENCE)
    answered = node.prepare(first)
    assert devices(answered) == {first[2]: ("", [GPU_0])}

    node.start("b")
    assert node.sockets() == {"koordra.io-a-reg.sock", "dra-a.sock", "koordra.io-b-reg.sock", "dra-b.sock"}
    # The new instance answers as the old one did, and both still write one state.
    again = node.prepare(first, second)
    assert devices(again) == {first[2]: ("", [GPU_0]), second[2]: ("", [GPU_1])}
    assert set(ids(answered)) < set(ids(again))
    files = node.cdi_files()
    published = [(one["metadata"]["uid"], one["spec"]) for one in node.slices()]

    assert node.end("a") == 0
    assert node.sockets() == {"koordra.io-b-reg.sock", "dra-b.sock"}
    assert node.called() == "dra-b.sock"
    assert devices(node.prepare(first, second)) == devices(again)

    node.end("b", killed=True)
    node.start("c")
    # What the killed one could not remove itself goes once the new one serves.
    assert wait_for(lambda: node.sockets() == {"koordra.io-c-reg.sock", "dra-c.sock"}, PATIENCE)
    locks = {"koordra.io-c-reg.sock.lock"}
    assert wait_for(lambda: {path.name for path in node.plugin_folder.glob("*-reg.sock.lock")} == locks)
    assert devices(node.prepare(first, second)) == devices(again)
    assert node.cdi_files() == files
    # Three instances with one content: nobody wrote over the other.
    assert [(one["metadata"]["uid"], one["spec"]) for one in node.slices()] == published

    assert {answer.error for answer in node.unprepare(first, second).values()} == {""}
    assert node.cdi_files() == {}


def test_the_api_server_is_away_while_an_instance_starts(node: UpdatedNode) -> None:
    first, second = node.claim("one", GPU_0), node.claim("two", GPU_1)
    node.start("a")
    assert wait_for(node.slices, PATIENCE)
    assert devices(node.prepare(first)) == {first[2]: ("", [GPU_0])}
    files, url = node.cdi_files(), node.client.server

    node.api_down()
    refused = node.prepare(second)[second[2]]
    assert "cannot be read from the API" in refused.error
    assert url in refused.error
    node.end("a", killed=True)
    node.start("b")
    assert url in node.prepare(second)[second[2]].error
    assert node.cdi_files() == files

    node.api_up()
    for one in node.slices():
        node.client.delete(kinds.RESOURCE_SLICES, one["metadata"]["name"])
    assert wait_for(node.slices, PATIENCE), node.log("b")
    assert devices(node.prepare(second)) == {second[2]: ("", [GPU_1])}
    node.api_down()
    # Giving back needs no API server.
    assert {answer.error for answer in node.unprepare(first, second).values()} == {""}
    assert node.cdi_files() == {}

"""An upgrade by NVIDIA's driver-manager: it waits for koordra's pod, which ends once the kubelet plugin has
let go of NVML, and unloads the driver only then."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import kinds, objects
from koordra.kubelet_plugin.nvidia_driver.release_wanted import POLICY_ANNOTATION
from koordra.process.lifecycle import PARENT_VARIABLE
from tests.fakes.driver_manager import CLIENT, PROGRAM, ModelDriverManager, RealDriverManager
from tests.fakes.node_claims import NODE
from tests.patience import PATIENCE
from tests.unit.devcluster import manifests
from tests.unit.kubelet_plugin.running_plugin import wait_for
from tests.unit.native.test_release_driver import Node, node

__all__ = ["node"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
_, SHIPPED = yaml.safe_load_all((ROOT / "deploy/kustomize/gpu-operator/daemonset.yaml").read_text())


class DaemonSetPod:
    """The pod of the shipped DaemonSet: its process, and what the DaemonSet controller and the kubelet do
    when the node's label is another than it selects."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.starts = self.ends = 0
        self.node_when_it_ended: list[list[int]] = []

    def __enter__(self) -> DaemonSetPod:
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        spec = SHIPPED["spec"]["template"]["spec"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "koordra-driver-client", "uid": "d"}
        pod = manifests.pod("koordra-driver-client-x")
        pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        pod["spec"].update(nodeSelector=spec["nodeSelector"], nodeName=NODE, terminationGracePeriodSeconds=0)
        self._node.client.create(kinds.PODS, pod)
        (container,) = spec["containers"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "koordra", *container["args"], "--state-dir", str(self._node.state)],
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )
        assert wait_for(self._listens, PATIENCE)
        self.starts += 1

    def _listens(self) -> bool:
        """Whether the process takes SIGTERM itself: before, it would end of it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (blocked,) = re.findall(r"^SigBlk:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)

    def _follow(self) -> None:
        (selected,) = SHIPPED["spec"]["template"]["spec"]["nodeSelector"].items()
        while not self._stop.wait(0.1):
            labels = objects.labels_of(self._node.client.get(kinds.NODES, NODE))
            runs = self._process.poll() is None
            if selected not in labels.items() and runs:
                self._process.terminate()
                self._process.wait(PATIENCE)
                self.node_when_it_ended.append(self._node.fake.holders())
                self._node.client.delete(kinds.PODS, "koordra-driver-client-x", namespace="default")
                self.ends += 1
            elif selected in labels.items() and not runs:
                self._start()


@pytest.fixture(params=["its rules", "the program"])
def driver_manager(request: pytest.FixtureRequest, node: Node) -> Any:
    if request.param == "its rules":
        return ModelDriverManager(node.client, NODE)
    if PROGRAM is None or os.geteuid() != 0:
        pytest.skip("KOORDRA_DRIVER_MANAGER names no driver-manager, or this is not root")
    return RealDriverManager(node.folder, node.folder / "kubeconfig", NODE)


@pytest.fixture
def client_pod(node: Node) -> Iterator[DaemonSetPod]:
    node.label(CLIENT, "true")
    with DaemonSetPod(node) as pod:
        yield pod


@pytest.fixture
def policy(node: Node) -> None:
    """The node's upgrades go by the Operator's policy: driver-manager itself neither cordons nor evicts."""
    node.client.patch(kinds.NODES, NODE, {"metadata": {"annotations": {POLICY_ANNOTATION: "true"}}})


@pytest.mark.usefixtures("policy")
def test_an_upgrade_finds_nobody_at_the_driver(
    node: Node, client_pod: DaemonSetPod, driver_manager: Any
) -> None:
    at_unload: list[list[int]] = []

    assert driver_manager.run(digest="new", unloading=lambda: at_unload.append(node.fake.holders())) == 0

    assert at_unload == [[]]
    assert client_pod.node_when_it_ended[0] == []
    assert wait_for(node.holds, PATIENCE)
    assert objects.labels_of(node.client.get(kinds.NODES, NODE))[CLIENT] == "true"


@pytest.mark.usefixtures("policy")
def test_a_driver_that_stays_is_taken_up_again(
    node: Node, client_pod: DaemonSetPod, driver_manager: Any
) -> None:
    at_unload: list[list[int]] = []

    assert driver_manager.run(digest="as-it-is", unloading=lambda: at_unload.append([])) == 0

    assert at_unload == []
    assert client_pod.ends == 1
    assert wait_for(node.holds, PATIENCE)


def test_without_a_policy_the_node_is_emptied_for_the_next_attempt(
    node: Node, client_pod: DaemonSetPod, driver_manager: Any
) -> None:
    """driver-manager knows no pod of koordra's: it cordons, finds the driver in use, and takes all back at
    once. Until it tries again nothing may start."""
    assert driver_manager.run(digest="new", unloading=lambda: None, error=errno.EBUSY) == 1
    assert wait_for(lambda: node.report()["phase"] == "Released", PATIENCE)
    found = node.client.get(kinds.NODES, NODE)
    assert (objects.labels_of(found)[CLIENT], bool(objects.spec_of(found).get("unschedulable"))) == (
        "true",
        False,
    )

    assert wait_for(lambda: client_pod.starts == 2, PATIENCE)
    at_unload: list[list[int]] = []
    assert driver_manager.run(digest="new", unloading=lambda: at_unload.append(node.fake.holders())) == 0
    assert at_unload == [[]]
    assert wait_for(lambda: client_pod.ends == 2, PATIENCE)

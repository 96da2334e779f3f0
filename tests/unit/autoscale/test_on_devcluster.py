"""`koordra controller --autoscale-settings` as a process on the development cluster: nodes come as an
autoscaler would bring them (tests/fakes/growing_groups), also when the controller is killed in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.what_if.node_groups import settings_from_file
from koordra.controller.autoscale.asks import PRIORITY_CLASS
from koordra.controller.autoscale.left_out import NAME
from koordra.controller.cache.placeholders import ASKED_FOR, NAMESPACE
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.cluster.waiting import eventually
from tests.fakes.growing_groups import GrowingGroups
from tests.fakes.joint_cluster import claim, device_class, pod
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

SETTINGS = {
    "after": 0,
    "groups": [
        {
            "name": "g",
            "machine": "t4x4-1nic",
            "max": 4,
            "labels": {"pool": "g"},
            "resources": {"cpu": "16", "memory": "64Gi", "pods": "32"},
        }
    ],
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    stop = threading.Event()
    plane = ControlPlane(tmp_path / "cluster", first_backoff=0.1)
    plane.start(stop)
    found = new_client(str(plane.kubeconfig))
    found.create(kinds.DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    priority = kinds.Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
    found.create(priority, {"metadata": {"name": PRIORITY_CLASS}, "value": -10})
    found.create(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    found.create(CONFIG_MAPS, {"metadata": {"name": NAME}}, namespace=NAMESPACE)
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(SETTINGS))
    yield found
    stop.set()
    plane.close()


def controller(tmp_path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "koordra", "controller", "--leader-elect=false"]
    command += ["--kubeconfig", str(tmp_path / "cluster" / "kubeconfig")]
    command += ["--autoscale-settings", str(tmp_path / "settings.yaml")]
    with (tmp_path / "log").open("ab") as log:
        return subprocess.Popen(command, stderr=log)


def placeholders(client: KubeClient) -> list[Object]:
    return client.list(kinds.PODS, namespace=NAMESPACE)[0]


def test_nodes_come_for_a_gang_although_the_controller_is_killed(tmp_path: Path, client: KubeClient) -> None:
    growing = GrowingGroups(client, settings_from_file(tmp_path / "settings.yaml").groups)
    for name in ("a", "b"):
        client.create(kinds.RESOURCE_CLAIMS, claim(name, count=4))
        made = pod(name, [name], gates=[names.JOINT_GATE])
        made["metadata"]["annotations"] = {"koordra.io/gang": "both", "koordra.io/gang-min": "2"}
        client.create(kinds.PODS, made)
    process = controller(tmp_path)
    try:
        eventually(lambda: len(placeholders(client)) == 2, "two placeholders", timeout=PATIENCE)
        asked = {objects.uid(one): objects.annotations_of(one)[ASKED_FOR] for one in placeholders(client)}
        assert sorted(asked.values()) == ["default/a", "default/b"]
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        came = eventually(growing.grow, "that the scheduler finds no node for them", timeout=PATIENCE)
        process = controller(tmp_path)
        assert len(came) == 2
        eventually(
            lambda: all(objects.spec_of(one).get("nodeName") for one in placeholders(client)),
            "both bound",
            timeout=PATIENCE,
        )
        assert {objects.uid(one) for one in placeholders(client)} == asked.keys()
        for name in came:
            growing.publish(name)
        bound = eventually(lambda: _bound(client), "the gang on the new nodes", timeout=PATIENCE)
        assert sorted(bound) == sorted(came)
        assert not placeholders(client)
        assert not growing.grow()
        assert "new-0000" not in (tmp_path / "log").read_text(), "what is only foretold is not logged"
    finally:
        process.kill()
        process.wait(PATIENCE)


def _bound(client: KubeClient) -> list[str]:
    nodes = [objects.spec_of(one).get("nodeName") for one in client.list(kinds.PODS, namespace="default")[0]]
    return [str(node) for node in nodes] if all(nodes) else []

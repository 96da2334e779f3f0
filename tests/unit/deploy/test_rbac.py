"""RBAC is exactly what is used: the controller runs with its ServiceAccount's rights, and what it asked for
is compared.

Nothing it asks for is refused, and nothing it is given goes unused. What is not an object
(resourceclaims/binding, the verb "decide") cannot be seen in requests; the API server asks for it by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import kinds, names
from koordra.api.resource_class import CONFIG_MAPS, RESOURCE_CLASSES
from koordra.controller.explain.question import TOKEN_HEADER, Question, Subject, path_of
from koordra.controller.webhook.cert_rotation import SECRETS
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import Installation, account_kubeconfig, free_port
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
USER = "system:serviceaccount:koordra-system:koordra-controller"
UNSEEN = {
    ("resource.k8s.io", "resourceclaims/binding", "patch"),
    ("resource.k8s.io", "resourceclaims/driver", "arbitrary-node:patch"),
    ("koordra.io", "allocations", "decide"),
    *(
        (("", f"persistentvolume{s}", verb)) for s in ("s", "claims") for verb in ("list", "watch")
    ),  # not served here
}
NOT_PLAYED = {("", "nodes", "patch"), ("", "configmaps", "patch"), ("", "pods", "get")}
"""Changing the mode of a living node takes longer than this test wants to; see the tests of modes. The
learned table is written after 32 claims; see tests/unit/controller/test_learned_order.py. The pod of a claim
is read where a class says so; see tests/unit/webhook/test_recommended.py."""
Right = tuple[str, str, str]


def granted(component: str = "controller") -> set[Right]:
    found = set()
    for obj in yaml.safe_load_all((ROOT / component / "rbac.yaml").read_text()):
        for rule in obj.get("rules") or ():
            found |= {
                (group, resource, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return found


class Cluster:
    """A devcluster with an audit log, koordra installed, one node with one card."""

    def __init__(self, folder: Path, *, more: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.audit = folder / "audit.log"
        self.kubeconfig = folder / "kubeconfig"
        command = [
            sys.executable,
            "-m",
            "koordra",
            "devcluster",
            "control-plane",
            "--dir",
            str(folder / "state"),
        ]
        command += ["--kubeconfig", str(self.kubeconfig), "--audit-log", str(self.audit)]
        self.server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(self.kubeconfig.exists, "the kubeconfig", timeout=240)
        self.client = new_client(str(self.kubeconfig))
        eventually(self._answers, "the API server", timeout=240)
        self.installation = Installation(self.client, free_port(), more=more)
        self.installation.apply()

    def _answers(self) -> bool:
        try:
            return bool(self.client.version())
        except ApiError:
            return False

    def requests(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line["user"] == USER]

    def used(self) -> set[Right]:
        return {(line["group"], line["resource"], line["verb"]) for line in self.requests()}

    def controller(self) -> subprocess.Popen[bytes]:
        path = account_kubeconfig(
            self.client, str(self.kubeconfig), self.folder / "own", account="koordra-controller"
        )
        command = [sys.executable, "-m", "koordra", "controller", "--kubeconfig", str(path)]
        command += [
            "--webhook-address",
            f"127.0.0.1:{self.installation.webhook_port}",
            "--webhook-host",
            "127.0.0.1",
        ]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stderr=log)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.server.terminate()
    cluster.server.wait(PATIENCE)


def a_claim(name: str, **exactly: Any) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU, **exactly}}
    spec = {"devices": {"requests": [request]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def a_pod(name: str, **reference: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "x"}],
            "resourceClaims": [{"name": "gpu", **reference}],
        },
    }


def play(cluster: Cluster) -> None:
    """Everything a controller does in its life."""
    client = cluster.client
    metadata = {"name": "parameters", "namespace": "koordra-system"}
    client.create(CONFIG_MAPS, {"metadata": metadata, "data": {"parameters": "{}"}})
    reference = {"kind": "ConfigMap", "name": "parameters"}
    body = {"metadata": {"name": "fast"}, "parametersRef": reference}
    client.create(RESOURCE_CLASSES, {**body, "driverName": "other.example.com"})
    eventually(lambda: _exists(client, "fast"), "the DeviceClass")
    client.patch(kinds.DEVICE_CLASSES, "fast", {"spec": {"selectors": []}})

    node = {"metadata": {"name": "node-1", "labels": {"kubernetes.io/hostname": "node-1"}}}
    client.create(kinds.NODES, node)
    room = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True"}
    client.patch(
        kinds.NODES,
        "node-1",
        {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}},
        subresource="status",
    )
    attributes = {"type": {"string": "gpu"}, "allocator": {"string": "controller"}, "uuid": {"string": "u"}}
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": attributes}]
    spec = {"driver": names.DRIVER, "nodeName": "node-1", "pool": pool, "devices": devices}
    client.create(kinds.RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": spec})

    attributes = {"type": {"string": "gpu"}, "allocator": {"string": names.ALLOCATOR_NOBODY}}
    client.create(kinds.NODES, {"metadata": {"name": "node-2"}})
    spec = {
        **spec,
        "nodeName": "node-2",
        "pool": {**pool, "name": "node-2"},
        "devices": [{"name": "g", "attributes": attributes}],
    }
    client.create(kinds.RESOURCE_SLICES, {"metadata": {"name": "quarantined"}, "spec": spec})

    client.create(kinds.RESOURCE_CLAIMS, a_claim("one"), namespace="default")
    client.create(kinds.PODS, a_pod("one", resourceClaimName="one"), namespace="default")
    eventually(lambda: _bound(client, "one"), "the pod bound")
    client.create(kinds.RESOURCE_CLAIMS, a_claim("two"), namespace="default")
    client.create(kinds.PODS, a_pod("two", resourceClaimName="two"), namespace="default")
    client.create(kinds.PODS, a_pod("lost", resourceClaimName="nobody"), namespace="default")
    client.create(kinds.PODS, a_pod("lost-too", resourceClaimTemplateName="nobody"), namespace="default")


def _exists(client: KubeClient, name: str) -> bool:
    try:
        return bool(client.get(kinds.DEVICE_CLASSES, name))
    except ApiError:
        return False


def _told(client: KubeClient, name: str) -> bool:
    found, _ = client.list(kinds.EVENTS, namespace="default")
    return any(event["involvedObject"].get("name") == name for event in found)


def _explained(cluster: Cluster, name: str) -> bool:
    """As the API server's proxy asks, with the administrator's token."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = cluster.installation.webhook_port
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
    header = {TOKEN_HEADER: cluster.client.authorization}
    connection.request("GET", path_of(Question(Subject.CLAIM, "default", name)), headers=header)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status == 200 and found["claim"]["status"] == "DoesNotFit"


def _bound(client: KubeClient, name: str) -> bool:
    return bool(client.get(kinds.PODS, name, namespace="default")["spec"].get("nodeName"))


def test_rbac_is_exactly_what_is_used(cluster: Cluster) -> None:
    later = {("", "secrets", "update"), ("", "events", "patch")}
    with running(cluster):
        eventually(cluster.installation.webhook_answers, "the webhook")
        play(cluster)
        eventually(lambda: _explained(cluster, "two"), "the controller's answer about the claim")
        used_up(cluster, granted() - UNSEEN - NOT_PLAYED - later)
        eventually(lambda: _told(cluster.client, "two"), "an Event on the claim that has to wait")
    damaged = cluster.client.get(SECRETS, "koordra-webhook-tls", namespace="koordra-system")
    cluster.client.update(SECRETS, {**damaged, "data": {"tls.crt": "", "tls.key": ""}})
    with running(cluster):  # it tells again what the first one told: the same Event, counted up
        used_up(cluster, granted() - UNSEEN - NOT_PLAYED)
    refused = {
        (line["group"], line["resource"], line["verb"]) for line in cluster.requests() if line["code"] == 403
    }
    assert refused == set(), "asked for, but not granted"
    assert cluster.used() - granted() - granted("gangs") - granted("reservations") == set()


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    process = cluster.controller()
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def used_up(cluster: Cluster, wanted: set[Right]) -> None:
    deadline = time.monotonic() + PATIENCE
    while wanted - cluster.used() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert wanted - cluster.used() == set(), "granted, but never used"

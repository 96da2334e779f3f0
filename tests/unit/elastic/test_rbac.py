"""The rights of deploy/kustomize/elastic are exactly what serving Elastic GPU's objects uses, both ways."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koordra.api import kinds, names, objects
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from tests.cluster.installation import ROOT, account_kubeconfig
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE
from tests.unit.deploy.test_rbac import Cluster, Right

pytestmark = pytest.mark.long


def granted(*files: Path) -> set[Right]:
    return {
        (group, resource, verb)
        for path in files
        for obj in yaml.safe_load_all(path.read_text())
        for rule in obj.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Elastic(Cluster):
    """With its Elastic GPU component installed; the controller serves it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, more=("elastic",))

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        path = account_kubeconfig(
            self.client, str(self.kubeconfig), self.folder / "own", account="koordra-controller"
        )
        command = [sys.executable, "-m", "koordra", "controller", "--kubeconfig", str(path)]
        command += ["--elastic-gpu", "--immediate-annotation"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Elastic]:
    cluster = Elastic(tmp_path)
    yield cluster
    cluster.server.terminate()
    cluster.server.wait(PATIENCE)


def play(client: KubeClient) -> None:
    """The life of a retained claim, a card that is published and goes, drift."""
    client.create(kinds.NODES, {"metadata": {"name": "node-1"}})
    room = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True"}
    status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
    client.patch(kinds.NODES, "node-1", status, subresource="status")
    attributes = {"type": {"string": "gpu"}, "allocator": {"string": "controller"}, "uuid": {"string": "u"}}
    capacity = {"memory": {"value": "8Gi"}, "cores": {"value": "100"}}
    device = {
        "name": "gpu-0",
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": True,
    }
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": names.DRIVER, "nodeName": "node-1", "pool": pool, "devices": [device]}
    client.create(kinds.RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": spec})
    provisioner = "gpushare.provisioner.elasticgpu.io"
    fields = {"reclaimPolicy": "Retain", "egpuBindingMode": "Immediate"}
    client.create(ELASTIC_CLASSES, {"metadata": {"name": "shares"}, "provisioner": provisioner, **fields})
    requests = {"elasticgpu.io/gpu-core": 100}
    spec = {"elasticGPUClassName": "shares", "resources": {"requests": requests}}
    client.create(ELASTIC_CLAIMS, {"metadata": {"name": "a"}, "spec": spec}, namespace="default")
    (binding,) = eventually(lambda: client.list(ELASTIC_GPUS)[0], "the ElasticGPU")
    client.patch(ELASTIC_GPUS, objects.name(binding), {"spec": {"nodeName": "elsewhere"}})
    eventually(lambda: client.list(GPUS)[0], "the GPU")
    client.patch(GPUS, "node-1-gpu-0", {"spec": {"index": 7}})
    eventually(lambda: client.get(GPUS, "node-1-gpu-0")["spec"]["index"] == 0, "the GPU put right")
    client.delete(ELASTIC_CLAIMS, "a", namespace="default")
    eventually(lambda: _phase(client, objects.name(binding)) == "Released", "the share Released")
    client.delete(ELASTIC_GPUS, objects.name(binding))
    eventually(lambda: not client.list(kinds.RESOURCE_CLAIMS)[0], "the share free")
    eventually(lambda: not client.list(ELASTIC_GPUS)[0], "its ElasticGPU gone")
    fields = {"egpuBindingMode": "Immediate"}
    client.create(ELASTIC_CLASSES, {"metadata": {"name": "loose"}, "provisioner": provisioner, **fields})
    spec = {"elasticGPUClassName": "loose", "resources": {"requests": requests}}
    client.create(ELASTIC_CLAIMS, {"metadata": {"name": "b"}, "spec": spec}, namespace="default")
    eventually(lambda: client.list(ELASTIC_GPUS)[0], "another ElasticGPU")
    client.delete(ELASTIC_CLAIMS, "b", namespace="default")
    eventually(lambda: not client.list(ELASTIC_GPUS)[0], "it gone")
    client.delete(kinds.RESOURCE_SLICES, "s")
    eventually(lambda: not client.list(GPUS)[0], "the GPU gone")


def _phase(client: KubeClient, name: str) -> str:
    try:
        return str((client.get(ELASTIC_GPUS, name).get("status") or {}).get("phase"))
    except NotFound:
        return ""


def test_the_rights_are_exactly_what_is_used(cluster: Elastic) -> None:
    own = granted(ROOT / "elastic" / "rbac.yaml") - {
        ("koordra.io", "allocations", "hold")
    }  # not seen in requests
    everything = own | granted(ROOT / "controller" / "rbac.yaml")
    with cluster.serving():
        play(cluster.client)
        deadline = time.monotonic() + PATIENCE
        while own - cluster.used() and time.monotonic() < deadline:
            time.sleep(0.2)
    assert own - cluster.used() == set(), "granted, but never used"
    refused = {
        (line["group"], line["resource"], line["verb"]) for line in cluster.requests() if line["code"] == 403
    }
    assert {right for right in refused if right[0] == "elasticgpu.io" or right in own} == set()
    assert {right for right in cluster.used() - everything if right[0] == "elasticgpu.io"} == set()

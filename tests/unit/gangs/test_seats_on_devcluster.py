"""A started gang keeps its seats, on a development cluster: the API server, the Job controller with its
back-off, the garbage collector, the scheduler, and koordra's controller as a process that is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import CRDS, JOBS
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node
from tests.patience import PATIENCE
from tests.unit.controller.test_killed_leaders import SHORT_LEASE, Controllers

pytestmark = pytest.mark.long

CRD = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "crds" / "deviceholds.yaml"
BACK_OFF = 6.0


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Two nodes of two GPUs each, a class, a template for a whole node."""
    stop = threading.Event()
    found = ControlPlane(tmp_path / "cluster", first_backoff=BACK_OFF)
    found.start(stop)
    client = new_client(str(found.kubeconfig))
    client.create(CRDS, yaml.safe_load(CRD.read_text()))
    eventually(lambda: _is_served(client))
    client.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    template = {"metadata": {"name": "pair"}, "spec": {"spec": claim("x", count=2)["spec"]}}
    client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    for name in ("n0", "n1"):
        made = client.create(NODES, node(name))
        client.update(NODES, {**made, "status": node(name)["status"]}, subresource="status")
        client.create(RESOURCE_SLICES, gpu_slice(name, 2))
    yield found
    stop.set()
    found.close()


@pytest.fixture
def client(plane: ControlPlane) -> KubeClient:
    return new_client(str(plane.kubeconfig))


@pytest.fixture
def controllers(plane: ControlPlane, tmp_path: Path) -> Iterator[Controllers]:
    found = Controllers(plane.kubeconfig, tmp_path, SHORT_LEASE)
    yield found
    found.end()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 3 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def _is_served(client: KubeClient) -> bool:
    try:
        client.list(DEVICE_HOLDS)
    except ApiError:
        return False
    return True


def start(client: KubeClient, job: str, size: int) -> None:
    template = {
        "metadata": {"annotations": {GANG: job, GANG_MIN: str(size)}, "labels": {"job": job}},
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": names.JOINT_GATE}],
            "containers": [{"name": "main", "image": "busybox"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "pair"}],
        },
    }
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "template": template}
    client.create(JOBS, {"metadata": {"name": job}, "spec": spec}, namespace="default")


def pods(client: KubeClient, job: str) -> list[Object]:
    found = client.list(PODS, namespace="default", label_selector=f"job={job}")[0]
    return [pod for pod in found if objects.status_of(pod).get("phase") != "Failed"]


def fail(client: KubeClient, pod: Object) -> None:
    """As a kubelet says it: a back-off counts from when the container ended, else from when the pod was
    made."""
    ended = {"exitCode": 1, "finishedAt": datetime.now(UTC).isoformat(timespec="seconds")}
    status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    client.patch(PODS, objects.name(pod), {"status": status}, namespace="default", subresource="status")


def bound(client: KubeClient, job: str) -> dict[str, str]:
    """Completion index -> node."""
    return {
        objects.annotations_of(pod)["batch.kubernetes.io/job-completion-index"]: str(node_name)
        for pod in pods(client, job)
        if (node_name := objects.spec_of(pod).get("nodeName")) and not objects.is_deleting(pod)
    }


def free(client: KubeClient) -> bool:
    """Whether kube-controller-manager has freed what a lost pod had."""
    claims = client.list(RESOURCE_CLAIMS, namespace="default")[0]
    return sum(bool(objects.status_of(one).get("allocation")) for one in claims) < 2


def held(client: KubeClient) -> int:
    return sum("until" in seat for hold in client.list(DEVICE_HOLDS)[0] for seat in hold["spec"]["seats"])


def test_a_seat_is_held_through_the_back_off_of_a_job(client: KubeClient, controllers: Controllers) -> None:
    controllers.start()
    start(client, "train", 2)
    eventually(lambda: len(bound(client, "train")) == 2)
    before = bound(client, "train")
    start(client, "waits", 1)
    lost = next(pod for pod in pods(client, "train") if objects.spec_of(pod)["nodeName"] == "n1")
    fail(client, lost)
    eventually(lambda: held(client) == 1)
    assert len(bound(client, "train")) == 1, "it is made anew after a while only"
    eventually(lambda: len(bound(client, "train")) == 2)
    assert bound(client, "train") == before
    assert not bound(client, "waits")
    eventually(lambda: held(client) == 0)
    client.delete(JOBS, "train", namespace="default")
    for pod in pods(client, "train"):
        client.delete(PODS, objects.name(pod), namespace="default", grace_period=0)
    eventually(lambda: bound(client, "waits"))


def test_the_whole_group_is_lost_while_nobody_leads(client: KubeClient, controllers: Controllers) -> None:
    """The leader is killed, the pods are deleted and their claims with them; the next leader knows."""
    controllers.start()
    start(client, "train", 2)
    eventually(lambda: len(bound(client, "train")) == 2)
    before = bound(client, "train")
    controllers.kill(controllers.leader())
    start(client, "waits", 1)
    gone = {objects.name(pod) for pod in pods(client, "train")}
    for name in gone:
        client.delete(PODS, name, namespace="default", grace_period=0)
    eventually(lambda: not gone & {objects.name(pod) for pod in pods(client, "train")})
    eventually(lambda: free(client))
    controllers.start()
    eventually(lambda: len(bound(client, "train")) == 2)
    assert bound(client, "train") == before
    assert not bound(client, "waits")

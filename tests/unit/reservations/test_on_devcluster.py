"""A reservation on a development cluster: the API server with the shipped CRDs, the scheduler, the garbage
collector, and koordra's controller as a process that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    NODES,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)
from koordra.api.objects import Object
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import CRDS
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node
from tests.unit.controller.test_killed_leaders import SHORT_LEASE, Controllers
from tests.unit.gangs.test_seats_on_devcluster import eventually
from tests.unit.reservations.test_reservations import reservation

pytestmark = pytest.mark.long

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "crds"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    """One node of two GPUs, and a template for one."""
    stop = threading.Event()
    plane = ControlPlane(tmp_path / "cluster")
    plane.start(stop)
    found = new_client(str(plane.kubeconfig))
    for name in ("deviceholds", "reservations"):
        found.create(CRDS, yaml.safe_load((SHIPPED / f"{name}.yaml").read_text()))
    eventually(lambda: _is_served(found))
    found.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    template = {"metadata": {"name": "one"}, "spec": {"spec": claim("x")["spec"]}}
    found.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    made = found.create(NODES, node("n0"))
    found.update(NODES, {**made, "status": node("n0")["status"]}, subresource="status")
    found.create(RESOURCE_SLICES, gpu_slice("n0", 2))
    yield found
    stop.set()
    plane.close()


@pytest.fixture
def controllers(client: KubeClient, tmp_path: Path) -> Iterator[Controllers]:
    found = Controllers(tmp_path / "cluster" / "kubeconfig", tmp_path, SHORT_LEASE)
    yield found
    found.end()


def _is_served(client: KubeClient) -> bool:
    try:
        return all(client.list(kind) is not None for kind in (DEVICE_HOLDS, RESERVATIONS))
    except ApiError:
        return False


def comes(client: KubeClient, name: str, team: str) -> None:
    spec = {
        "schedulingGates": [{"name": names.JOINT_GATE}],
        "containers": [{"name": "main", "image": "busybox"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
    }
    body = {"metadata": {"name": name, "labels": {"team": team}}, "spec": spec}
    client.create(PODS, body, namespace="default")


def is_bound(client: KubeClient, name: str) -> bool:
    return bool(objects.spec_of(client.get(PODS, name, namespace="default")).get("nodeName"))


def condition(client: KubeClient) -> Object:
    found = objects.status_of(client.get(RESERVATIONS, "r", namespace="default")).get("conditions") or [{}]
    first: Object = found[0]
    return first


def test_a_reservation_is_kept_through_a_change_of_leader_and_ends_when_it_is_deleted(
    client: KubeClient, controllers: Controllers
) -> None:
    controllers.start()
    asked = reservation(count=2)
    client.create(RESERVATIONS, {"metadata": {"name": "r"}, "spec": asked["spec"]}, namespace="default")
    eventually(lambda: condition(client).get("reason") == "Kept")
    comes(client, "other", "b")
    comes(client, "mine", "a")
    eventually(lambda: is_bound(client, "mine"))
    controllers.kill(controllers.leader())
    controllers.start()
    eventually(lambda: objects.status_of(client.get(RESERVATIONS, "r", namespace="default")).get("used") == 1)
    assert not is_bound(client, "other")
    client.delete(RESERVATIONS, "r", namespace="default")
    eventually(lambda: is_bound(client, "other"))
    eventually(lambda: client.list(DEVICE_HOLDS)[0] == [])

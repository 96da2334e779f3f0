"""A reservation on a cluster: its devices are kept for whom it names until it is deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import RESERVATIONS
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from tests.cluster.test_gangs import pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Iterator[Workload]:
    yield Workload(client, namespace)
    try:
        client.delete(RESERVATIONS, "seats", namespace=namespace)
    except NotFound:
        return


def test_what_is_reserved_is_for_its_owners_alone(workload: Workload) -> None:
    """All GPUs of both nodes; a pod that somebody else has waiting gets one when the reservation ends."""
    client, place = workload.client, workload.namespace
    workload.template("node", [request("gpu", names.CLASS_GPU, count=8)])

    def comes(name: str, **labels: str) -> None:
        meta = {"name": name, "labels": labels}
        client.create(kinds.PODS, {"metadata": meta, "spec": pod_spec("node")}, namespace=place)

    def status() -> Object:
        return objects.status_of(client.get(RESERVATIONS, "seats", namespace=place))

    requests = [request("gpus", names.CLASS_GPU, count=8)]
    spec = {
        "owners": [{"labelSelector": {"matchLabels": {"app": "release"}}}],
        "ttl": "1h",
        "seats": 2,
        "claims": [{"name": "node", "devices": {"requests": requests}}],
    }
    body = {**RESERVATIONS.type_meta, "metadata": {"name": "seats"}, "spec": spec}
    client.create(RESERVATIONS, body, namespace=place)
    eventually(lambda: [one["reason"] for one in status().get("conditions") or ()] == ["Kept"], "it is kept")
    comes("other", app="else")
    comes("mine", app="release")
    workload.bound("mine")
    eventually(lambda: status().get("used") == 1, "one of its seats in use")
    assert not objects.spec_of(client.get(kinds.PODS, "other", namespace=place)).get("nodeName")
    client.delete(RESERVATIONS, "seats", namespace=place)
    workload.bound("other")

"""PodGroups of Kubernetes on a server that has them (1.36: gates GenericWorkload, WorkloadAwarePreemption and
DRAWorkloadResourceClaims, all off by default)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.gangs.declared.disruption import Disruption, DisruptionMode, disruption_of
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from tests.cluster.test_gangs import PATIENCE, POD_GROUPS_ALPHA, grouped, members_of_group
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster

PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
ENTRY = {"name": "devices", "resourceClaimTemplateName": "pair"}


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Workload:
    return Workload(client, namespace)


def pod_group(workload: Workload, needed: str, **spec: Any) -> Object:
    """Skips where the server does not have the field `needed`."""
    body = {
        "apiVersion": POD_GROUPS_ALPHA.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": workload.namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}} | spec,
    }
    try:
        made = workload.client.create(POD_GROUPS_ALPHA, body)
    except ApiError as error:
        if error.code == 404 or "feature" in str(error) or "forbidden" in str(error).lower():
            pytest.skip(f"this cluster has no PodGroup with {needed}: {error}")
        raise
    if needed not in made["spec"]:
        workload.client.delete(POD_GROUPS_ALPHA, "train", namespace=workload.namespace)
        pytest.skip(f"this cluster's PodGroups have no {needed}")
    return made


@pytest.mark.parametrize(
    ("said", "mode"),
    [({}, DisruptionMode.SINGLE), ({"disruptionMode": "PodGroup"}, DisruptionMode.ALL)],
)
def test_what_the_server_fills_in_is_what_is_read(
    workload: Workload, said: dict[str, str], mode: DisruptionMode
) -> None:
    urgent = {"metadata": {"name": f"urgent-{uuid.uuid4().hex[:8]}"}, "value": 1000}
    workload.client.create(PRIORITY_CLASSES, urgent)
    try:
        made = pod_group(workload, "disruptionMode", priorityClassName=urgent["metadata"]["name"], **said)  # type: ignore[index]
        assert disruption_of(made["spec"]) == Disruption(mode, 1000)
        workload.client.delete(POD_GROUPS_ALPHA, "train", namespace=workload.namespace)
    finally:
        workload.client.delete(PRIORITY_CLASSES, urgent["metadata"]["name"])  # type: ignore[index]


def test_a_claim_of_a_pod_group_is_shared_by_its_pods(workload: Workload, client: KubeClient) -> None:
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
    group = pod_group(workload, "resourceClaims", resourceClaims=[ENTRY])
    try:
        for number in range(2):
            grouped(workload, f"w{number}")
        eventually(lambda: len(claims(workload)) == 1, "the claim of the group", timeout=PATIENCE)
        assert not any(objects.spec_of(pod).get("nodeName") for pod in members_of_group(workload))
        grouped(workload, "w2")
        eventually(
            lambda: all(objects.spec_of(pod).get("nodeName") for pod in members_of_group(workload)),
            "binding of the group",
            timeout=PATIENCE,
        )
        (claim,) = claims(workload)
        results = objects.status_of(claim)["allocation"]["devices"]["results"]
        assert len(results) == 2
        assert {result["driver"] for result in results} == {names.DRIVER}
        assert {objects.spec_of(pod)["nodeName"] for pod in members_of_group(workload)} == {
            results[0]["pool"]
        }
        (consumer,) = objects.status_of(claim)["reservedFor"]
        assert (consumer["resource"], consumer["uid"]) == ("podgroups", objects.uid(group))
    finally:
        for pod in members_of_group(workload):
            client.delete(kinds.PODS, objects.name(pod), namespace=workload.namespace, grace_period=0)
        client.delete(POD_GROUPS_ALPHA, "train", namespace=workload.namespace)
    eventually(lambda: not claims(workload), "the end of the claim with its group", timeout=PATIENCE)


def claims(workload: Workload) -> list[Object]:
    return workload.client.list(kinds.RESOURCE_CLAIMS, namespace=workload.namespace)[0]

"""Backends as claims name them, before a cluster's own API server and scheduler: who names one that no node
has is warned and bound to none until a node has it, and `Auto` is what the node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.opaque.isolation import node_policy
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.offering import Offering
from tests.cluster.nodes import OF_THE_SUITE, made_up
from tests.cluster.test_joint_allocation import Workload, request, results
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster

LATE = "koordra-test-late"


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Workload:
    return Workload(client, namespace)


def kept_by(word: str) -> list[Object]:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": word}
    return [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]


def warnings(client: KubeClient, namespace: str, word: str) -> str:
    """What the API server warns of where such a claim is made."""
    devices = {"requests": [request("gpu", names.CLASS_GPU, memory="10Gi")], "config": kept_by(word)}
    claim = {"metadata": {"generateName": "asked-"}, "spec": {"devices": devices}}
    path = kinds.RESOURCE_CLAIMS.path(namespace=namespace)
    body = {**kinds.RESOURCE_CLAIMS.type_meta, **claim}
    response = client._open("POST", path, {"dryRun": "All"}, body=body)
    response.release_conn()
    return " ".join(response.headers.getlist("Warning"))


def test_a_backend_that_no_node_has_is_admitted_with_a_warning_and_bound_to_none(
    workload: Workload, tmp_path: Path
) -> None:
    client, namespace = workload.client, workload.namespace
    eventually(
        lambda: "no node keeps shares by timeslicing now" in warnings(client, namespace, "timeslicing"),
        "the warning, once the webhook has read the slices",
    )
    assert "no node keeps" not in warnings(client, namespace, "limiter")
    assert "no node keeps" not in warnings(client, namespace, "Auto")
    asked = [request("gpu", names.CLASS_GPU, memory="10Gi")]
    workload.claim("late", asked, kept_by("timeslicing"))
    workload.pod("late", claim="late", gated=True)
    eventually(
        lambda: [one for one in workload.events("late") if one["reason"] == "BackendUnavailable"],
        "why it waits",
    )
    claim = client.get(kinds.RESOURCE_CLAIMS, "late", namespace=namespace)
    assert not objects.status_of(claim).get("allocation")
    pod = client.get(kinds.PODS, "late", namespace=namespace)
    assert not pod["spec"].get("nodeName")
    offering = Offering(isolation=node_policy(["timeslicing"]))
    with made_up(client, {LATE: OF_THE_SUITE}, tmp_path, offering=offering):
        assert {one["pool"] for one in results(workload.allocated("late"))} == {LATE}
        assert workload.bound("late") == LATE
        eventually(lambda: not warnings(client, namespace, "timeslicing"), "no warning any more")
        client.delete(kinds.PODS, "late", namespace=namespace, grace_period=0)


def test_auto_is_what_the_node_has_and_is_written(workload: Workload) -> None:
    workload.claim("auto", [request("gpu", names.CLASS_GPU, memory="10Gi")], kept_by("Auto"))
    workload.pod("auto", claim="auto", gated=True)
    claim = workload.allocated("auto")
    assert workload.bound("auto") in NODES
    said = [one["opaque"]["parameters"] for one in claim["status"]["allocation"]["devices"]["config"]]
    assert [one["isolation"] for one in said if one["kind"] == "GpuConfig"] == ["Auto", "limiter"]

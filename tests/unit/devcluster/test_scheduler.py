"""The scheduler double at work: what was measured on a real 1.36, one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from koordra_devcluster.scheduler import loop
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.manifests import allocation, claim, claiming_pod, device_class, node, pod

CLAIMS, PODS = kinds.RESOURCE_CLAIMS, kinds.PODS


@pytest.fixture
def cluster(tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeClient]:
    """A control plane with two nodes that no kubelet backs."""
    monkeypatch.setattr(
        loop, "FLUSH_PERIOD", 100 * PATIENCE
    )  # who is scheduled again owes it to an event or to its backoff
    plane = ControlPlane(tmp_path / "plane", first_backoff=0.05)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    for name in ("n1", "n2"):
        client.create(kinds.NODES, node(name))
    client.create(kinds.DEVICE_CLASSES, device_class())
    yield client
    stop.set()
    plane.close()


def get(client: KubeClient, name: str = "p") -> dict[str, Any]:
    return client.get(PODS, name, namespace="default")


def condition(client: KubeClient, name: str = "p") -> dict[str, Any]:
    conditions = get(client, name).get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def allocate(client: KubeClient, name: str = "c", **fields: Any) -> dict[str, Any]:
    found = client.get(CLAIMS, name, namespace="default")
    return client.update(
        CLAIMS, {**found, "status": {"allocation": allocation(**fields)}}, subresource="status"
    )


def waits(client: KubeClient, text: str, name: str = "p") -> dict[str, Any]:
    """The PodScheduled condition, once its message holds the text."""

    def check() -> dict[str, Any] | None:
        found = condition(client, name)
        return found if text in found.get("message", "") else None

    found: dict[str, Any] = eventually(check)
    return found


def test_a_pod_without_claims_gets_a_node(cluster: KubeClient) -> None:
    cluster.create(PODS, pod("p"))
    eventually(lambda: get(cluster)["spec"].get("nodeName"))
    assert condition(cluster)["status"] == "True"
    assigned = "Successfully assigned default/p to n"
    eventually(lambda: any(one["message"].startswith(assigned) for one in cluster.list(kinds.EVENTS)[0]))


def test_1_an_unallocated_claim_waits(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    cluster.create(PODS, claiming_pod("p", claim="c"))
    found = waits(cluster, "2 cannot allocate all claims")
    assert (found["status"], found["reason"], found["observedGeneration"]) == ("False", "Unschedulable", 1)
    events = eventually(
        lambda: [one for one in cluster.list(kinds.EVENTS)[0] if one["reason"] == "FailedScheduling"]
    )
    assert events[0]["type"] == "Warning"


def test_2_a_claim_allocated_by_somebody_else_is_honoured(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    share = allocation("n2")
    share["devices"]["results"][0] |= {
        "shareID": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
        "consumedCapacity": {"memory": "20Gi"},
    }
    found = cluster.get(CLAIMS, "c", namespace="default")
    cluster.update(CLAIMS, {**found, "status": {"allocation": share}}, subresource="status")
    made = cluster.create(PODS, claiming_pod("p", claim="c"))
    eventually(lambda: get(cluster)["spec"].get("nodeName") == "n2")
    status = cluster.get(CLAIMS, "c", namespace="default")["status"]
    assert status["allocation"] == share
    assert status["reservedFor"] == [{"resource": "pods", "name": "p", "uid": made["metadata"]["uid"]}]


def test_3_without_a_timestamp_the_pod_stays_with_an_error(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    allocate(cluster, timestamp=False)
    cluster.create(PODS, claiming_pod("p", claim="c"))
    found = waits(cluster, "field is immutable")
    assert found["reason"] == "SchedulerError"
    assert "reservedFor" not in cluster.get(CLAIMS, "c", namespace="default")["status"]
    assert "nodeName" not in get(cluster)["spec"]


def test_5_a_claim_is_moved_through_null(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    found = allocate(cluster, node="n1")
    found = cluster.update(CLAIMS, {**found, "status": {}}, subresource="status")
    cluster.update(CLAIMS, {**found, "status": {"allocation": allocation("n2")}}, subresource="status")
    cluster.create(PODS, claiming_pod("p", claim="c"))
    eventually(lambda: get(cluster)["spec"].get("nodeName") == "n2")


def test_7_on_another_node_than_its_claim_the_allocation_is_erased(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    allocate(cluster, node="n1")
    cluster.create(PODS, claiming_pod("p", claim="c", nodeSelector={"kubernetes.io/hostname": "n2"}))
    eventually(lambda: cluster.get(CLAIMS, "c", namespace="default")["status"] == {})
    waits(cluster, "cannot allocate all claims")


def test_7_when_an_earlier_filter_fails_the_allocation_stays(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    allocate(cluster, node="n1")
    body = claiming_pod("p", claim="c")
    body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "99"}
    cluster.create(PODS, body)
    found = waits(cluster, "2 Insufficient cpu")
    assert found["reason"] == "Unschedulable"
    assert cluster.get(CLAIMS, "c", namespace="default")["status"] == {"allocation": allocation("n1")}


def test_7_a_claim_that_another_pod_holds_is_not_erased(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    allocate(cluster, node="n1")
    cluster.create(PODS, claiming_pod("p", claim="c"))
    eventually(lambda: get(cluster)["spec"].get("nodeName"))
    cluster.create(PODS, claiming_pod("q", claim="c", nodeSelector={"kubernetes.io/hostname": "n2"}))
    waits(cluster, "resourceclaim not available on the node", "q")
    assert cluster.get(CLAIMS, "c", namespace="default")["status"]["allocation"]


def test_8_scheduling_follows_the_write(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    cluster.create(PODS, claiming_pod("p", claim="c"))
    waits(cluster, "cannot allocate all claims")
    allocate(cluster, node="n1")
    eventually(lambda: get(cluster)["spec"].get("nodeName") == "n1")


def test_9_a_gated_pod_is_not_tried_and_binds_at_once_afterwards(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    cluster.create(PODS, claiming_pod("p", claim="c", schedulingGates=[{"name": "example.com/gate"}]))
    assert condition(cluster)["reason"] == "SchedulingGated"
    allocate(cluster, node="n1")
    assert not [one for one in cluster.list(kinds.EVENTS)[0] if one["reason"] == "FailedScheduling"]
    # From here the scheduler may try once before its claim cache has seen the write, as the real one may:
    # the two watches are not ordered. The write, when seen, wakes the pod.
    cluster.patch(PODS, "p", {"spec": {"schedulingGates": None}}, namespace="default")
    eventually(lambda: get(cluster)["spec"].get("nodeName") == "n1")


def test_9_a_refusal_after_the_gate_has_a_newer_generation(cluster: KubeClient) -> None:
    cluster.create(CLAIMS, claim("c"))
    cluster.create(PODS, claiming_pod("p", claim="c", schedulingGates=[{"name": "example.com/gate"}]))
    gated = condition(cluster)
    cluster.patch(PODS, "p", {"spec": {"schedulingGates": None}}, namespace="default")
    found = waits(cluster, "cannot allocate all claims")
    assert (gated["observedGeneration"], found["observedGeneration"]) == (1, 2)
    assert found["lastTransitionTime"] == gated["lastTransitionTime"]


def test_an_unknown_class_is_said(cluster: KubeClient) -> None:
    body = claim("c", deviceClassName="nothing")
    cluster.create(CLAIMS, body)
    cluster.create(PODS, claiming_pod("p", claim="c"))
    waits(cluster, "request gpu: device class nothing does not exist")


def test_a_pod_that_leaves_makes_room(cluster: KubeClient) -> None:
    def large(name: str) -> dict[str, Any]:
        requests = {"requests": {"cpu": "5"}}
        return pod(name, containers=[{"name": "a", "image": "x", "resources": requests}])

    for name in ("a", "b", "c"):
        cluster.create(PODS, large(name))
        if name != "c":
            eventually(lambda name=name: get(cluster, name)["spec"].get("nodeName"))  # type: ignore[misc]
    waits(cluster, "2 Insufficient cpu", "c")
    cluster.delete(PODS, "a", namespace="default", grace_period=0)
    eventually(lambda: get(cluster, "c")["spec"].get("nodeName"))


def test_a_pod_of_another_scheduler_is_left_alone(cluster: KubeClient) -> None:
    cluster.create(PODS, pod("other", schedulerName="mine"))
    cluster.create(PODS, pod("p"))
    eventually(lambda: get(cluster)["spec"].get("nodeName"))
    assert "nodeName" not in get(cluster, "other")["spec"]


def test_two_claims_on_different_nodes_fit_nowhere(cluster: KubeClient) -> None:
    for name, place in (("c", "n1"), ("d", "n2")):
        cluster.create(CLAIMS, claim(name))
        allocate(cluster, name, node=place)
    body = claiming_pod("p", claim="c")
    body["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "d"})
    cluster.create(PODS, body)
    eventually(
        lambda: any(not cluster.get(CLAIMS, name, namespace="default")["status"] for name in ("c", "d"))
    )

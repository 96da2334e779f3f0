"""The life of claims: who gets devices, in which order, in which writes, and how they come back."""

from __future__ import annotations

import pytest

from koordra.api import names
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.reporting.claim_events import ALLOCATED
from tests.fakes.joint_cluster import JointCluster, claim, gpu_slice


def test_a_claim_is_allocated_in_two_conditional_writes_and_the_gate_is_lifted_last() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    before = len(cluster.api.writes)
    cluster.settle()
    assert [str(write) for write in cluster.api.writes[before:]] == [
        "patch resourceclaims/a",
        "patch resourceclaims/a/status",
        "patch pods/p",
    ]
    stored = cluster.api.get(RESOURCE_CLAIMS, "a")
    assert stored["metadata"]["finalizers"] == [names.DELETE_PROTECTION]
    allocation = stored["status"]["allocation"]
    assert allocation["allocationTimestamp"] == cluster.timestamp()
    assert allocation["nodeSelector"]["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [cluster.node_of("a")]}]}
    ]
    assert "reservedFor" not in stored["status"]
    assert cluster.api.get(PODS, "p")["spec"]["schedulingGates"] == []
    assert cluster.reasons() == [ALLOCATED]


def test_nothing_is_written_again_when_nothing_changes() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.claim("big", count=9)
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.pod("q", "big")
    cluster.settle()
    written, told = len(cluster.api.writes), len(cluster.told)
    cluster.settle(passes=5)
    assert (len(cluster.api.writes), len(cluster.told)) == (written, told)


def test_a_claim_without_a_pod_is_left_alone() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.settle()
    assert cluster.allocation("a") is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_gets_nothing(phase: str) -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.api.edit(PODS, "p", lambda pod: pod["status"].update(phase=phase))
    cluster.settle()
    assert cluster.allocation("a") is None


def test_a_deleting_pod_or_claim_gets_nothing() -> None:
    cluster = JointCluster()
    cluster.claim("a", finalizers=["example.org/hold"])
    cluster.claim("b")
    cluster.pod("p", "a")
    cluster.pod("q", "b")
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    cluster.api.edit(PODS, "q", lambda pod: pod["metadata"].update(deletionTimestamp="2026-11-21T00:00:00Z"))
    cluster.settle()
    assert cluster.allocation("a") is None
    assert cluster.allocation("b") is None


def test_a_pod_waits_until_all_its_claims_exist() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a", "b")
    cluster.settle()
    assert cluster.allocation("a") is None
    cluster.claim("b")
    cluster.settle()
    assert cluster.node_of("a") == cluster.node_of("b") is not None


def test_a_template_claim_of_an_earlier_pod_of_the_same_name_is_not_this_pods() -> None:
    cluster = JointCluster()
    old = cluster.pod("p")
    cluster.api.create(RESOURCE_CLAIMS, claim("p-gpu", owner=old))
    cluster.api.delete(PODS, "p")
    new = cluster.pod("p")
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    cluster.api.edit(PODS, "p", lambda pod: pod["spec"].update(resourceClaims=[entry]))
    status = [{"name": "gpu", "resourceClaimName": "p-gpu"}]
    cluster.api.edit(PODS, "p", lambda pod: pod["status"].update(resourceClaimStatuses=status))
    cluster.settle()
    assert cluster.allocation("p-gpu") is None
    cluster.api.delete(RESOURCE_CLAIMS, "p-gpu")
    cluster.api.create(RESOURCE_CLAIMS, claim("p-gpu", owner=new))
    cluster.settle()
    assert cluster.allocation("p-gpu") is not None


def test_somebody_elses_gate_is_waited_for_and_ours_is_lifted_where_there_is_nothing_to_wait_for() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("queued", "a", gates=[names.JOINT_GATE, "example.org/queue"])
    cluster.pod("idle", gates=[names.JOINT_GATE])
    cluster.settle()
    assert cluster.allocation("a") is None
    assert cluster.api.get(PODS, "idle")["spec"]["schedulingGates"] == []
    cluster.api.edit(PODS, "queued", lambda pod: pod["spec"]["schedulingGates"].pop())
    cluster.settle()
    assert cluster.allocation("a") is not None
    assert cluster.api.get(PODS, "queued")["spec"]["schedulingGates"] == []


def test_priority_then_age_decide_who_gets_the_last_devices() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    for name in ("young", "old", "urgent"):
        cluster.claim(name)
    cluster.pod("young", "young", created="2026-11-21T00:00:09Z")
    cluster.pod("old", "old", created="2026-11-21T00:00:01Z")
    cluster.pod("urgent", "urgent", created="2026-11-21T00:00:30Z", priority=10)
    cluster.settle()
    assert [name for name in ("young", "old", "urgent") if cluster.allocation(name)] == ["urgent"]
    cluster.scheduler_binds("urgent", "urgent")
    cluster.settle()
    cluster.pod_ends("urgent", "urgent")
    cluster.settle()
    assert [name for name in ("young", "old") if cluster.allocation(name)] == ["old"]


def test_all_claims_of_a_pod_or_none() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    cluster.claim("a", count=2)
    cluster.claim("b", count=1)
    cluster.pod("p", "a", "b")
    cluster.settle()
    assert (cluster.allocation("a"), cluster.allocation("b")) == (None, None)
    assert cluster.reasons()


def test_a_stale_cache_never_gives_a_device_out_twice() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number in range(4):
        cluster.claim(f"c{number}")
        cluster.pod(f"p{number}", f"c{number}")
        cluster.caches.deliver(PODS)
        cluster.caches.deliver(RESOURCE_CLAIMS, events=1 if number == 0 else None)
        cluster.reconciler.reconcile()
        cluster.assert_no_device_twice()
    assert sum(cluster.allocation(f"c{number}") is not None for number in range(4)) == 2


def test_assumed_writes_hold_while_the_claim_cache_shows_nothing_at_all() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number in range(3):
        cluster.claim(f"c{number}")
        cluster.pod(f"p{number}", f"c{number}")
    cluster.caches.deliver()
    for _ in range(4):
        cluster.reconciler.reconcile()
    cluster.assert_no_device_twice()
    assert sum(cluster.allocation(f"c{number}") is not None for number in range(3)) == 2


def test_devices_of_a_deleted_pod_that_was_never_bound_come_back() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.claim("b")
    cluster.pod("p", "a", created="2026-11-21T00:00:01Z")
    cluster.pod("q", "b", created="2026-11-21T00:00:02Z")
    cluster.settle()
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", None)
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert (cluster.node_of("a"), cluster.node_of("b")) == (None, "n0")


def test_an_immediate_claim_keeps_its_devices_without_a_pod() -> None:
    cluster = JointCluster()
    cluster.claim("a", annotations={names.MODE_LABEL: "Immediate"})
    cluster.pod("p", "a")
    cluster.settle()
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert cluster.allocation("a") is not None


def test_waiting_claims_are_planned_again_when_slices_appear() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a", count=2)
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.allocation("a") is None
    bigger = gpu_slice("n0", 4)
    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", lambda entry: entry.update(spec=bigger["spec"]))
    cluster.settle()
    assert cluster.allocation("a") is not None


def asking(cpu: int) -> list[Object]:
    return [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]


def test_a_pod_that_is_resized_to_less_makes_room() -> None:
    cluster = JointCluster(nodes=1)
    cluster.pod("big", nodeName="n0", containers=asking(60))
    cluster.claim("a")
    cluster.pod("p", "a", containers=asking(10))
    cluster.settle()
    assert cluster.node_of("a") is None
    cluster.api.edit(PODS, "big", lambda big: big["spec"].update(containers=asking(50)))
    cluster.settle()
    assert cluster.node_of("a") == "n0"


def test_a_pod_that_never_came_makes_room_although_others_keep_its_claim() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    cluster.pod("runs", "shared")
    cluster.pod("comes", "shared", containers=asking(60))
    cluster.settle()
    cluster.scheduler_binds("runs", "shared")
    cluster.claim("a")
    cluster.pod("p", "a", containers=asking(10))
    cluster.settle()
    assert cluster.node_of("a") is None
    cluster.api.delete(PODS, "comes")
    cluster.settle()
    assert cluster.node_of("a") == "n0"


def test_room_that_comes_and_goes_between_two_passes_is_noticed() -> None:
    """`a` gets the card, `b` is told to wait in the same pass, and `a` is gone before the next one."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.claim("b")
    cluster.pod("p", "a", priority=1)
    cluster.pod("q", "b")
    cluster.settle(passes=1)
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", None)
    cluster.scheduler_erases("a")
    cluster.api.delete(PODS, "p")
    cluster.settle(passes=1)
    assert cluster.node_of("b") == "n0"


def test_devices_of_native_nodes_are_never_given_out() -> None:
    cluster = JointCluster(nodes=0)
    cluster.api.create(RESOURCE_SLICES, gpu_slice("n9", 2, allocator="scheduler"))
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.allocation("a") is None


def test_another_drivers_claim_is_left_alone_and_does_not_keep_ours_waiting() -> None:
    cluster = JointCluster()
    foreign = {"metadata": {"name": "tpu.example.org"}, "spec": {}}
    cluster.api.create(DEVICE_CLASSES, foreign)
    cluster.claim("a")
    cluster.claim("t", device_class="tpu.example.org")
    cluster.pod("p", "a", "t", gates=[names.JOINT_GATE])
    cluster.settle()
    assert cluster.allocation("a") is not None
    assert cluster.allocation("t") is None
    assert "finalizers" not in cluster.api.get(RESOURCE_CLAIMS, "t")["metadata"]
    assert cluster.api.get(PODS, "p")["spec"]["schedulingGates"] == []

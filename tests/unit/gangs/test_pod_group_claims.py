"""Claims of a PodGroup (KEP 5729) are allocated once and shared by its pods. What kube-controller-manager
and kube-scheduler do is played as Kubernetes 1.36 does it: the claim is made for the group, its pods name it
in their statuses, and it is reserved for the group."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.cache.consumers import consumer_of, first_consumers
from koordra.placement.request.claim_groups import MAX_CONSUMERS
from tests.fakes.joint_cluster import JointCluster, claim
from tests.unit.controller.test_driver_release import OWNER, taint
from tests.unit.gangs.test_gang_course import gates, let_go, told
from tests.unit.gangs.test_gangs_preempt import evicted, gang
from tests.unit.gangs.test_pod_groups import ALPHA, SHRINKS, pod_group, single

SHARED = {"name": "gpu", "resourceClaimTemplateName": "one"}


def grouped(
    cluster: JointCluster, name: str, *, group: str = "train", claim: str = "train-gpu", **spec: Any
) -> None:
    cluster.pod(
        name,
        gates=[names.JOINT_GATE],
        schedulingGroup={"podGroupName": group},
        **{"resourceClaims": [SHARED], **spec},
    )
    named = [{"name": "gpu", "resourceClaimName": claim}]
    cluster.api.edit(PODS, name, lambda found: found["status"].update(resourceClaimStatuses=named))


def shared(cluster: JointCluster, *, size: int = 2, **spec: Any) -> list[str]:
    group = pod_group(cluster, "train", least=size, resourceClaims=[SHARED])
    body = claim("train-gpu")
    owner = {"apiVersion": ALPHA.api_version, "kind": "PodGroup", "name": "train", "uid": objects.uid(group)}
    body["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    body["metadata"]["annotations"] = {names.POD_CLAIM_NAME: "gpu"}
    cluster.api.create(RESOURCE_CLAIMS, body)
    pods = [f"w{number}" for number in range(size)]
    for name in pods:
        grouped(cluster, name, **spec)
    return pods


def scheduled(cluster: JointCluster, *pods: str, by_group: bool = True) -> None:
    """They run where the claim is, and it is reserved for their group."""
    node = cluster.node_of("train-gpu")
    group = cluster.api.get(ALPHA, "train")
    entry = {
        "apiGroup": "scheduling.k8s.io",
        "resource": "podgroups",
        "name": "train",
        "uid": objects.uid(group),
    }
    entries = [entry]
    if not by_group:
        uids = {name: objects.uid(cluster.api.get(PODS, name)) for name in pods}
        entries = [{"resource": "pods", "name": name, "uid": uid} for name, uid in uids.items()]
    cluster.api.edit(RESOURCE_CLAIMS, "train-gpu", lambda found: found["status"].update(reservedFor=entries))

    def run(pod: Object) -> None:
        pod["spec"]["nodeName"] = node
        pod["status"]["phase"] = "Running"
        pod["metadata"]["ownerReferences"] = [OWNER]

    for name in pods:
        cluster.api.edit(PODS, name, run)
    cluster.settle()


def test_the_pods_of_the_group_get_the_claim_together() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    pods = shared(cluster, size=3)
    cluster.settle()
    assert let_go(cluster) == pods
    assert len(cluster.devices("train-gpu")) == 1
    assert "3 members on 1 node" in told(cluster, "GangStarts")[0]
    scheduled(cluster, *pods)
    assert len(cluster.devices("train-gpu")) == 1


def test_nobody_starts_before_all_are_there() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    shared(cluster, size=3)
    cluster.api.delete(PODS, "w2", namespace="default")
    cluster.settle()
    assert cluster.allocation("train-gpu") is None
    assert let_go(cluster) == []


@pytest.mark.parametrize("group", ["train", "other", None])
def test_the_claim_is_the_groups_alone(group: str | None) -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    pod_group(cluster, "other", least=1)
    pods = shared(cluster)
    for name in pods:
        cluster.api.delete(PODS, name, namespace="default")
    grouped(cluster, "x", group=group or "", claim="train-gpu")
    grouped(cluster, "y", group=group or "", claim="train-gpu")
    cluster.settle()
    assert (cluster.allocation("train-gpu") is not None) == (group == "train")
    assert (gates(cluster, "x") == []) == (group == "train")


def test_the_claim_without_devices_of_a_group_without_pods_is_taken_back() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    pods = shared(cluster)
    cluster.settle()
    assert cluster.allocation("train-gpu") is not None
    for name in pods:
        cluster.api.delete(PODS, name, namespace="default")
    cluster.settle()
    assert cluster.allocation("train-gpu") is None


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("by", ["pod", "gang"])
def test_nobody_is_evicted_for_what_the_group_keeps(by: str, by_group: bool) -> None:
    """The devices would be the group's still."""
    cluster = JointCluster(nodes=1, gpus=1, preemption=True)
    pods = shared(cluster, priority=1)
    cluster.settle()
    scheduled(cluster, *pods, by_group=by_group)
    if by == "pod":
        single(cluster, priority=5)
    else:
        pod_group(cluster, "u", least=1)
        cluster.claim("u")
        cluster.pod("u", "u", gates=[names.JOINT_GATE], schedulingGroup={"podGroupName": "u"}, priority=5)
        cluster.settle()
    assert evicted(cluster) == ([] if by_group else pods)


@pytest.mark.parametrize("by_group", [True, False])
def test_a_group_does_not_shrink_for_what_it_keeps(by_group: bool) -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    shared(cluster, size=1)
    cluster.claim("v")
    cluster.pod("v", "v", gates=[names.JOINT_GATE], schedulingGroup={"podGroupName": "train"}, priority=1)
    for name in ("v", "w0"):
        cluster.api.edit(PODS, name, lambda found: found["metadata"].update(annotations=dict(SHRINKS)))
    cluster.settle()
    cluster.scheduler_binds("v", "v")
    scheduled(cluster, "w0", by_group=by_group)
    gang(cluster, "u", 1, priority=1)
    cluster.settle()
    assert evicted(cluster) == ([] if by_group else ["w0"])


def test_a_node_is_emptied_of_the_pods_of_the_group() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    pods = shared(cluster)
    cluster.settle()
    scheduled(cluster, *pods)
    taint(cluster, cluster.node_of("train-gpu") or "")
    cluster.settle()
    assert evicted(cluster) == pods


# whom reservedFor names

PODS_OF_GROUP = MAX_CONSUMERS + 20


def pod_of(number: int, group: str | None = "train", **entry: str) -> Object:
    named = entry or {"name": "gpu", "resourceClaimName": "c"}
    spec: Object = {"resourceClaims": [named]}
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": group}
    metadata = {"name": f"p{number:03d}", "namespace": "team", "uid": f"u{number:03d}"}
    return {"metadata": metadata, "spec": spec}


def groups(domain: str = "scheduling.k8s.io", **entry: str) -> dict[str, Object]:
    named = entry or {"name": "gpu", "resourceClaimName": "c"}
    group = {"metadata": {"name": "train", "uid": "g"}, "spec": {"resourceClaims": [named]}}
    return {f"{domain}/team/train": group}


@pytest.mark.parametrize(
    ("pod", "pod_groups", "consumer"),
    [
        (pod_of(1), groups(), "g"),
        (pod_of(1), {}, "u001"),
        (pod_of(1, None), groups(), "u001"),
        (pod_of(1, "other"), groups(), "u001"),
        (pod_of(1), groups("scheduling.x-k8s.io"), "u001"),
        (pod_of(1), groups(name="nic", resourceClaimName="c"), "u001"),
        (pod_of(1), groups(name="gpu", resourceClaimTemplateName="c"), "u001"),
        (pod_of(1), groups(name="gpu", resourceClaimName="d"), "u001"),
    ],
)
def test_an_entry_means_the_groups_claim_where_all_of_it_is_the_same(
    pod: Object, pod_groups: dict[str, Object], consumer: str
) -> None:
    assert consumer_of("team/c", pod, pod_groups) == consumer


def test_however_many_pods_a_group_has_it_is_one_consumer() -> None:
    claim_ = {"metadata": {"name": "c", "namespace": "team"}}
    pods = [pod_of(number) for number in range(PODS_OF_GROUP)]
    assert len(first_consumers(claim_, pods, groups())) == PODS_OF_GROUP
    assert len(first_consumers(claim_, pods, {})) == MAX_CONSUMERS


def test_pods_beside_the_group_are_counted_one_by_one() -> None:
    claim_ = {"metadata": {"name": "c", "namespace": "team"}, "status": {"reservedFor": [{"uid": "g"}]}}
    own = [pod_of(number, None) for number in range(MAX_CONSUMERS)]
    theirs = [pod_of(900 + number) for number in range(2)]
    found = first_consumers(claim_, [*own, *theirs], groups())
    assert {"u900", "u901"} <= found
    assert len(found) == MAX_CONSUMERS - 1 + 2

"""Who gets devices when there are not enough: the starving, the more urgent, the many; and claims without
pods."""

from __future__ import annotations

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from koordra.controller.reporting.claim_events import PREEMPTED
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster, claim


def fill(cluster: JointCluster, *claim_names: str, priority: int | None = None) -> None:
    for name in claim_names:
        cluster.claim(name)
        cluster.pod(name, name, priority=priority, created=f"2026-11-21T00:00:0{len(name)}Z")
    cluster.settle()
    for name in claim_names:
        cluster.scheduler_binds(name, name)


def test_small_claims_do_not_starve_a_large_one_for_ever() -> None:
    cluster = JointCluster(nodes=1, gpus=2, starves_after=300.0)
    fill(cluster, "a", "bb")
    cluster.claim("large", count=2)
    cluster.pod("large", "large", created="2026-11-21T00:01:00Z")
    cluster.settle()
    cluster.pod_ends("a", "a")
    cluster.claim("small")
    cluster.pod("small", "small", created="2026-11-21T00:02:00Z")
    cluster.settle()
    assert cluster.node_of("small") == "n0", "before the bound small claims fill the gaps"
    cluster.scheduler_binds("small", "small")
    cluster.pass_time(301)
    cluster.settle()
    cluster.pod_ends("small", "small")
    cluster.claim("later")
    cluster.pod("later", "later", created="2026-11-21T00:03:00Z")
    cluster.settle()
    assert cluster.allocation("later") is None
    told = [entry.message for entry in cluster.told if objects.name(entry.about[0]) == "later"]
    assert "kept free" in told[-1]
    assert "default/large" in told[-1]
    cluster.pod_ends("bb", "bb")
    cluster.settle()
    assert cluster.devices("large") == ["n0/gpu-0", "n0/gpu-1"]


def test_a_more_urgent_pod_is_not_held_back_by_a_reservation() -> None:
    cluster = JointCluster(nodes=1, gpus=2, starves_after=300.0)
    fill(cluster, "a", "bb")
    cluster.claim("large", count=2)
    cluster.pod("large", "large")
    cluster.settle()
    cluster.pass_time(301)
    cluster.settle()
    cluster.pod_ends("a", "a")
    cluster.claim("urgent")
    cluster.pod("urgent", "urgent", priority=100)
    cluster.settle()
    assert cluster.node_of("urgent") == "n0"


def test_a_reservation_ends_when_the_node_never_gets_free() -> None:
    cluster = JointCluster(nodes=1, gpus=2, starves_after=300.0)
    fill(cluster, "a", "bb")
    cluster.claim("large", count=2)
    cluster.pod("large", "large")
    cluster.settle()
    cluster.pass_time(301)
    cluster.settle()
    cluster.pod_ends("a", "a")
    cluster.claim("small")
    cluster.pod("small", "small", created="2026-11-21T00:03:00Z")
    cluster.settle()
    assert cluster.allocation("small") is None
    cluster.pass_time(1201)
    cluster.settle()
    assert cluster.node_of("small") == "n0"


def evicted(cluster: JointCluster) -> list[str]:
    return [write.name for write in cluster.api.writes if write.subresource == "eviction"]


def test_preemption_is_off_unless_asked_for() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    fill(cluster, "low")
    cluster.claim("high")
    cluster.pod("high", "high", priority=10)
    cluster.settle()
    assert evicted(cluster) == []


def test_preemption_takes_the_fewest_of_the_least_urgent() -> None:
    cluster = JointCluster(nodes=2, gpus=2, preemption=True)
    fill(cluster, "a", "bb", "ccc", priority=5)
    fill(cluster, "dddd", priority=1)
    cluster.claim("high")
    cluster.pod("high", "high", priority=10)
    cluster.settle()
    assert evicted(cluster) == ["dddd"]
    assert PREEMPTED in cluster.reasons()
    cluster.claim("quick")
    cluster.pod("quick", "quick")
    cluster.pod_ends("dddd", "dddd")
    cluster.settle()
    assert cluster.node_of("high") is not None
    assert cluster.allocation("quick") is None


@pytest.mark.parametrize("spec", [{"priority": 5}, {"priority": 10, "preemptionPolicy": "Never"}])
def test_equals_and_the_modest_preempt_nobody(spec: dict[str, object]) -> None:
    cluster = JointCluster(nodes=1, gpus=1, preemption=True)
    fill(cluster, "low", priority=5)
    cluster.claim("high")
    cluster.pod("high", "high", **spec)
    cluster.settle()
    assert evicted(cluster) == []


def test_a_budget_that_says_no_is_asked_again_later() -> None:
    cluster = JointCluster(nodes=1, gpus=1, preemption=True)
    fill(cluster, "low")
    cluster.claim("high")
    cluster.pod("high", "high", priority=10)

    def refuse(write: object) -> None:
        if getattr(write, "subresource", None) == "eviction":
            raise ApiUnreachable("Cannot evict pod as it would violate the pod's disruption budget", code=429)

    cluster.api.before = refuse
    pause = cluster.settle()
    assert pause is not None
    assert PREEMPTED not in cluster.reasons()


def test_an_immediate_claim_needs_no_pod_and_keeps_its_devices() -> None:
    cluster = JointCluster()
    immediate = {names.MODE_LABEL: "Immediate"}
    cluster.api.create(RESOURCE_CLAIMS, claim("now", annotations=immediate))
    cluster.settle()
    node = cluster.node_of("now")
    assert node is not None
    cluster.pod("p", "now")
    cluster.settle()
    cluster.scheduler_binds("p", "now")
    cluster.pod_ends("p", "now")
    cluster.settle()
    assert cluster.allocation("now") is not None


def test_an_immediate_claim_that_cannot_be_is_told() -> None:
    cluster = JointCluster()
    immediate = {names.MODE_LABEL: "Immediate"}
    cluster.api.create(RESOURCE_CLAIMS, claim("lost", device_class="no.koordra.io", annotations=immediate))
    cluster.api.create(RESOURCE_CLAIMS, claim("large", memory="200Gi", annotations=immediate))
    cluster.settle()
    assert sorted(cluster.reasons()) == ["ExceedsDevice", "SelectorMismatch"]
    cluster.api.delete(DEVICE_CLASSES, names.CLASS_GPU)
    cluster.settle()
    assert cluster.reasons().count("SelectorMismatch") == 2


def test_a_shared_claim_serves_256_pods_and_the_others_are_told() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("shared")
    tiny = [{"name": "main", "image": "busybox"}]
    for number in range(258):
        cluster.pod(
            f"p{number:03d}",
            "shared",
            containers=tiny,
            created=f"2026-11-21T01:{number // 60:02d}:{number % 60:02d}Z",
        )
    from koordra.api.kinds import NODES

    cluster.api.edit(NODES, "n0", lambda found: found["status"]["allocatable"].update(pods="300"))
    cluster.settle()
    assert cluster.node_of("shared") == "n0"
    full = [entry for entry in cluster.told if entry.reason == "ReservedForFull"]
    assert sorted(objects.name(entry.about[0]) for entry in full) == ["p256", "p257"]


def test_a_consumer_that_a_shared_claim_pins_to_a_node_it_cannot_use_is_told() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    cluster.claim("shared")
    cluster.pod("first", "shared")
    cluster.settle()
    cluster.scheduler_binds("first", "shared")
    assert cluster.node_of("shared") == "n0"
    cluster.pod("second", "shared", nodeSelector={"kubernetes.io/hostname": "n1"})
    cluster.settle()
    cluster.scheduler_says_no("second")
    cluster.settle()
    pinned = [entry for entry in cluster.told if entry.reason == "SharedClaimPinned"]
    assert len(pinned) == 1
    assert objects.name(pinned[0].about[0]) == "second"
    assert "nodeSelector kubernetes.io/hostname: required n1" in pinned[0].message
    assert cluster.api.get(PODS, "second")["spec"].get("nodeName") is None

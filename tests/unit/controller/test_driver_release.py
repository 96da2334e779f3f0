"""A node whose GPU driver is to be free is emptied: whoever holds a GPU there goes, under the budgets, gangs
whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_SLICES, Kind
from koordra.api.objects import Object
from koordra.controller.allocation.eviction.disruption_budgets import refusing_budget
from koordra.controller.allocation.eviction.driver_release import ASK_AGAIN, places_to_empty
from koordra.errors import ApiUnreachable, Forbidden
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import Write
from tests.unit.gangs.test_gang_course import member

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}


def taint(cluster: JointCluster, node: str, value: str = names.RELEASE_EVICTING) -> None:
    """The plugin of a node says how far its driver is free; empty: it is in use again."""

    def change(one: Object) -> None:
        for device in one["spec"]["devices"]:
            kept = [each for each in device["taints"] if each["key"] != names.RELEASE_TAINT]
            new = {"key": names.RELEASE_TAINT, "value": value, "effect": "NoSchedule"}
            device["taints"] = [*kept, new] if value else kept

    cluster.api.edit(RESOURCE_SLICES, f"{node}-koordra", change)


def runs(cluster: JointCluster, *pods: str, bare: bool = False, **labels: str) -> None:
    """The scheduler binds the pods, each with the claim of its name, and the kubelet runs them."""
    cluster.settle()
    for name in pods:
        cluster.scheduler_binds(name, name)

        def change(pod: Object) -> None:
            pod["status"]["phase"] = "Running"
            pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **labels}
            if not bare:
                pod["metadata"]["ownerReferences"] = [OWNER]

        cluster.api.edit(PODS, name, change)
    cluster.settle()


def runs_beside(cluster: JointCluster, name: str, claim: str) -> None:
    """A pod of a controller that shares a claim."""
    cluster.scheduler_binds(name, claim)
    cluster.api.edit(PODS, name, lambda found: found["metadata"].update(ownerReferences=[OWNER]))
    cluster.settle()


def pod(cluster: JointCluster, name: str, **spec: Any) -> None:
    cluster.claim(name)
    cluster.pod(name, name, **spec)


def gang(cluster: JointCluster, *members: str) -> None:
    for name in members:
        member(cluster, name)
    runs(cluster, *members, job="train")


def evicted(cluster: JointCluster) -> list[str]:
    return [write.name for write in cluster.api.writes if write.subresource == "eviction"]


def told(cluster: JointCluster, reason: str) -> list[str]:
    return [event.message for event in cluster.told if event.reason == reason]


def budget(cluster: JointCluster, allowed: int, **labels: str) -> None:
    cluster.api.create(
        POD_DISRUPTION_BUDGETS,
        {
            "metadata": {"name": "budget", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        },
    )


@pytest.fixture
def cluster() -> JointCluster:
    return JointCluster(nodes=2, gpus=2)


def test_pods_on_the_node_go_and_others_stay(cluster: JointCluster) -> None:
    for name in ("a", "b", "c"):
        pod(cluster, name)
    runs(cluster, "a", "b", "c")
    emptied = cluster.node_of("a")
    there = [name for name in ("a", "b", "c") if cluster.node_of(name) == emptied]

    taint(cluster, emptied or "")
    cluster.settle()

    assert sorted(evicted(cluster)) == there
    assert "GPU driver there is to be free" in told(cluster, "DriverUpgrade")[0]


def test_a_pod_goes_whose_extended_resource_is_a_gpu(cluster: JointCluster) -> None:
    """The scheduler made the claim; the pod's spec does not name it."""
    pod(cluster, "a")
    runs(cluster, "a")
    cluster.api.edit(PODS, "a", lambda found: found["spec"].pop("resourceClaims"))
    taint(cluster, cluster.node_of("a") or "")
    cluster.settle()

    assert evicted(cluster) == ["a"]


@pytest.mark.parametrize("value", ["Closing", "Released", ""])
def test_nobody_goes_before_it_is_asked(cluster: JointCluster, value: str) -> None:
    pod(cluster, "a")
    runs(cluster, "a")
    taint(cluster, cluster.node_of("a") or "", value)
    cluster.settle()

    assert evicted(cluster) == []


def test_a_gang_goes_whole_also_from_other_nodes() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    gang(cluster, "w0", "w1")
    assert cluster.node_of("w0") != cluster.node_of("w1")

    taint(cluster, "n0")
    cluster.settle()

    assert sorted(evicted(cluster)) == ["w0", "w1"]


def test_a_gang_that_its_budget_would_tear_stays_whole_and_goes_when_it_may() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    gang(cluster, "w0", "w1")
    budget(cluster, 1, job="train")
    taint(cluster, "n0")
    cluster.settle()

    assert evicted(cluster) == []
    assert (
        "PodDisruptionBudget budget covers 2 of them and lets 1 go" in told(cluster, "DriverUpgradeWaits")[0]
    )

    cluster.api.edit(
        POD_DISRUPTION_BUDGETS, "budget", lambda found: found["status"].update(disruptionsAllowed=2)
    )
    cluster.pass_time(ASK_AGAIN)
    cluster.settle()
    assert sorted(evicted(cluster)) == ["w0", "w1"]


def test_a_gang_of_which_the_first_may_not_go_stays_whole(cluster: JointCluster) -> None:
    """A budget may have become less since it was read, and a webhook has none."""
    gang(cluster, "w0", "w1")

    def refuses(write: Write) -> None:
        if write.subresource == "eviction":
            raise ApiUnreachable("Cannot evict pod as it would violate the pod's disruption budget", code=429)

    cluster.api.before = refuses
    taint(cluster, cluster.node_of("w0") or "")
    cluster.settle()

    assert len(evicted(cluster)) == 1


def test_a_gang_whose_budgets_cannot_be_read_stays_whole(
    cluster: JointCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang(cluster, "w0", "w1")
    lists = cluster.api.list

    def refuses(kind: Kind, **named: Any) -> Any:
        if kind is POD_DISRUPTION_BUDGETS:
            raise Forbidden("poddisruptionbudgets is forbidden", code=403)
        return lists(kind, **named)

    monkeypatch.setattr(cluster.api, "list", refuses)
    taint(cluster, cluster.node_of("w0") or "")
    cluster.settle()

    assert evicted(cluster) == []
    assert "budgets of namespace default cannot be read: " in told(cluster, "DriverUpgradeWaits")[0]


def test_a_controller_that_ends_between_two_evictions_evicts_the_rest_when_it_starts() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    gang(cluster, "w0", "w1")
    taint(cluster, "n0")

    def ends(write: Write) -> None:
        if write.subresource == "eviction" and evicted(cluster)[1:]:
            raise SystemExit

    cluster.api.before = ends
    with pytest.raises(SystemExit):
        cluster.settle()
    cluster.api.before = lambda write: None
    first = evicted(cluster)[0]
    cluster.api.edit(
        PODS, first, lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z")
    )
    cluster.start_again()
    cluster.settle()

    assert set(evicted(cluster)) == {"w0", "w1"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (429, "Cannot evict pod as it would violate the pod's disruption budget."),
        (
            500,
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ),
    ],
)
def test_a_pod_that_its_budget_keeps_is_asked_again(cluster: JointCluster, code: int, message: str) -> None:
    pod(cluster, "a")
    runs(cluster, "a")

    def refuses(write: Write) -> None:
        if write.subresource == "eviction":
            raise ApiUnreachable(message, code=code)

    cluster.api.before = refuses
    taint(cluster, cluster.node_of("a") or "")
    pause = cluster.settle()
    assert evicted(cluster) == ["a"]
    assert message in told(cluster, "DriverUpgradeWaits")[0]
    assert pause is not None
    assert pause <= ASK_AGAIN

    cluster.pass_time(ASK_AGAIN)
    cluster.api.before = lambda write: None
    cluster.settle()
    assert evicted(cluster) == ["a", "a"]


def test_pods_that_come_again_and_again_are_not_evicted_as_fast_as_they_come(cluster: JointCluster) -> None:
    """A claim that one pod keeps has its place, and whoever shares it is made anew there at once."""
    pod(cluster, "a")
    runs(cluster, "a", bare=True)
    taint(cluster, cluster.node_of("a") or "")
    cluster.settle()
    for name in ("b", "c"):
        cluster.pod(name, "a")
        runs_beside(cluster, name, "a")
    assert evicted(cluster) == []

    cluster.pass_time(ASK_AGAIN)
    cluster.settle()
    assert sorted(evicted(cluster)) == ["b", "c"]


def test_without_the_right_to_evict_everything_else_goes_on(cluster: JointCluster) -> None:
    pod(cluster, "a")
    runs(cluster, "a")

    def refuses(write: Write) -> None:
        if write.subresource == "eviction":
            raise Forbidden("pods is forbidden: cannot create resource pods/eviction", code=403)

    cluster.api.before = refuses
    taint(cluster, cluster.node_of("a") or "")
    pod(cluster, "b")
    cluster.settle()

    assert "forbidden" in told(cluster, "DriverUpgradeWaits")[0]
    assert cluster.allocation("b") is not None


def test_a_pod_that_nobody_makes_anew_stays_and_is_told(cluster: JointCluster) -> None:
    pod(cluster, "a")
    runs(cluster, "a", bare=True)
    taint(cluster, cluster.node_of("a") or "")
    cluster.settle()

    assert evicted(cluster) == []
    assert "no controller that would make it anew" in told(cluster, "DriverUpgradeWaits")[0]


def test_nothing_new_comes_to_the_node_and_after_the_upgrade_it_does(cluster: JointCluster) -> None:
    for node in ("n0", "n1"):
        taint(cluster, node)
    pod(cluster, "a")
    cluster.settle()
    assert cluster.allocation("a") is None

    taint(cluster, "n1", "")
    cluster.settle()
    assert cluster.node_of("a") == "n1"
    runs(cluster, "a")
    cluster.pass_time(ASK_AGAIN)
    cluster.settle()
    assert evicted(cluster) == []


def test_the_node_says_how_far_its_driver_is_free(cluster: JointCluster) -> None:
    seen = []
    for value in ("Closing", "Evicting", "Released", ""):
        taint(cluster, "n0", value)
        cluster.settle()
        node = cluster.api.get(NODES, "n0")
        seen.append(objects.annotations_of(node).get(names.RELEASE_ANNOTATION))
    assert seen == ["Closing", "Evicting", "Released", None]
    assert told(cluster, "DriverRelease")[-2:] == [
        "the GPU driver is to be free: Released",
        "the GPU driver is in use again",
    ]
    assert names.RELEASE_ANNOTATION not in objects.annotations_of(cluster.api.get(NODES, "n1"))


def test_a_controller_that_starts_puts_right_what_the_node_says(cluster: JointCluster) -> None:
    taint(cluster, "n0", "Released")
    cluster.settle()
    taint(cluster, "n0", "")
    cluster.start_again()
    cluster.settle()

    assert names.RELEASE_ANNOTATION not in objects.annotations_of(cluster.api.get(NODES, "n0"))


def test_only_the_drivers_own_taint_empties() -> None:
    devices = [
        {"name": "gpu-0", "taints": [{"key": names.RELEASE_TAINT, "value": "Evicting"}]},
        {"name": "gpu-1", "taints": [{"key": names.RELEASE_TAINT, "value": "Released"}]},
        {"name": "gpu-2", "taints": [{"key": "koordra.io/cordoned", "value": "Evicting"}]},
        {"name": "nic-0"},
    ]

    assert places_to_empty({"spec": {"pool": {"name": "n0"}, "devices": devices}}) == {("n0", "gpu-0")}


def named(name: str, phase: str = "Running") -> Object:
    return {"metadata": {"name": name, "labels": {"job": "train"}}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("selector", "allowed", "fits"),
    [
        ({"matchLabels": {"job": "train"}}, 2, True),
        ({"matchLabels": {"job": "train"}}, 1, False),
        ({"matchLabels": {"job": "other"}}, 0, True),
        ({}, 0, False),  # an empty selector means all
        (None, 0, True),
    ],
)
def test_a_budget_counts_those_that_run(selector: Mapping[str, Any] | None, allowed: int, fits: bool) -> None:
    found = {
        "metadata": {"name": "b"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }
    pods = [named("w0"), named("w1"), named("w2", phase="Pending")]

    assert (refusing_budget(pods, [found]) == "") is fits
    assert objects.name(pods[0]) == "w0"


@pytest.mark.parametrize(
    ("policy", "fits"), [(None, False), ("IfHealthyBudget", False), ("AlwaysAllow", True)]
)
def test_members_that_crash_again_and_again_go_where_the_budget_says_so(
    policy: str | None, fits: bool
) -> None:
    budget = {"selector": {"matchLabels": {"job": "train"}}, "unhealthyPodEvictionPolicy": policy}
    crashing, ready = named("w0"), named("w1")
    crashing["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    ready["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    found = {"metadata": {"name": "b"}, "spec": budget, "status": {"disruptionsAllowed": 1}}

    assert (refusing_budget([crashing, ready], [found]) == "") is fits


def test_a_pod_with_two_budgets_keeps_its_gang() -> None:
    """Kubernetes evicts no such pod, whatever they let go."""
    budgets = [
        {
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"job": "train"}}},
            "status": {"disruptionsAllowed": 2},
        }
        for name in ("other", "own")
    ]
    pods = [named("w0"), named("w1")]

    assert "two PodDisruptionBudgets, other and own" in refusing_budget(pods, budgets)
    assert refusing_budget(pods, budgets[:1]) == ""

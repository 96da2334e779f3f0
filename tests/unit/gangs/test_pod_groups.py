"""PodGroups of Kubernetes say more than how many members start together: how they are disrupted, and how
urgent they are."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra.controller.cache.changes import POD_GROUPS
from koordra.controller.gangs.declared.disruption import Disruption, DisruptionMode, disruption_of
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.terms import terms_of
from tests.fakes.joint_cluster import JointCluster
from tests.unit.gangs.test_gang_course import let_go
from tests.unit.gangs.test_gangs_preempt import evicted, gang, go, running

ALPHA = next(kind for kind in POD_GROUPS if kind.version == "v1alpha2")
SHRINKS = {"koordra.io/gang-shrink": "ForOthers"}
LEAST = {"gang": {"minCount": 2}}
ALONE: Any = ("Pod", {"single": {}})
TOGETHER: Any = ("PodGroup", {"all": {}})


def pod_group(cluster: JointCluster, name: str, *, least: int = 2, **spec: Any) -> Object:
    body = {
        "apiVersion": ALPHA.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}} | spec,
    }
    return cluster.api.create(ALPHA, body)


def members(cluster: JointCluster, group: str, size: int, **spec: Any) -> list[str]:
    pods = [f"{group}{number}" for number in range(size)]
    for name in pods:
        cluster.claim(name)
        cluster.pod(name, name, gates=[names.JOINT_GATE], schedulingGroup={"podGroupName": group}, **spec)
    return pods


def single(cluster: JointCluster, priority: int) -> None:
    cluster.claim("single")
    cluster.pod("single", "single", priority=priority)
    cluster.settle()


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, Disruption()),
        ({"disruptionMode": "Pod", "priority": -7}, Disruption(DisruptionMode.SINGLE, -7)),
        ({"disruptionMode": "PodGroup"}, Disruption(DisruptionMode.ALL)),
        ({"disruptionMode": {"single": {}}, "priority": 0}, Disruption(DisruptionMode.SINGLE, 0)),
        ({"disruptionMode": {"all": {}}}, Disruption(DisruptionMode.ALL)),
        ({"disruptionMode": "Whole", "priority": True}, Disruption()),
        ({"preemptionPolicy": "Never"}, Disruption(preempts=False)),
        ({"preemptionPolicy": "PreemptLowerPriority"}, Disruption()),
    ],
)
def test_what_a_pod_group_says_of_its_disruption(spec: dict[str, Any], found: Disruption) -> None:
    assert disruption_of(spec) == found


@pytest.mark.parametrize(("domain", "counts"), [("scheduling.k8s.io", True), ("scheduling.x-k8s.io", False)])
def test_only_the_groups_of_kubernetes_say_it(domain: str, counts: bool) -> None:
    named = {"schedulingGroup": {"podGroupName": "train"}} if counts else {}
    labels = {} if counts else {"scheduling.x-k8s.io/pod-group": "train"}
    pod = {"metadata": {"name": "w", "namespace": "team", "labels": labels}, "spec": named}
    group = {"spec": {"schedulingPolicy": LEAST, "minMember": 2, "priority": 5}}
    ref = gang_of(pod)
    assert ref is not None
    terms = terms_of(ref, [pod], {f"{domain}/team/train": group})
    assert terms is not None
    assert terms.least == 2
    assert terms.disruption.priority == (5 if counts else None)


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        (None, ["w0", "w1", "w2"]),
        *((one, ["w2"]) for one in ALONE),
        *((one, ["w0", "w1", "w2"]) for one in TOGETHER),
    ],
)
def test_a_single_pod_takes_the_group_or_who_may_go_alone(said: Any, gone: list[str]) -> None:
    cluster = JointCluster(nodes=3, gpus=1, preemption=True)
    pod_group(cluster, "w", **({} if said is None else {"disruptionMode": said}))
    running(cluster, *members(cluster, "w", 3, priority=1))
    single(cluster, priority=5)
    assert evicted(cluster) == gone


@pytest.mark.parametrize("said", ALONE)
def test_who_the_others_cannot_do_without_is_not_taken_alone(said: Any) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    pod_group(cluster, "w", disruptionMode=said)
    running(cluster, *members(cluster, "w", 2, priority=1))
    single(cluster, priority=5)
    assert evicted(cluster) == ["w0", "w1"]


@pytest.mark.parametrize(
    ("said", "gone"), [(None, ["w2"]), (ALONE[0], ["w2"]), (TOGETHER[0], ["w0", "w1", "w2"])]
)
def test_a_gang_takes_who_is_beyond_the_least_unless_all_end_together(said: Any, gone: list[str]) -> None:
    cluster = JointCluster(nodes=3, gpus=1, preemption=True)
    pod_group(cluster, "w", **({} if said is None else {"disruptionMode": said}))
    running(cluster, *members(cluster, "w", 3, priority=1))
    gang(cluster, "u", 1, priority=5)
    cluster.settle()
    assert evicted(cluster) == gone


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_group_whose_members_end_together_does_not_shrink(shrinks: bool) -> None:
    cluster = JointCluster(nodes=3, gpus=1)
    pod_group(cluster, "w", disruptionMode=ALONE[0] if shrinks else TOGETHER[0])
    pods = members(cluster, "w", 3)
    for name in pods:
        cluster.api.edit(PODS, name, lambda found: found["metadata"].update(annotations=dict(SHRINKS)))
    running(cluster, *pods)
    gang(cluster, "u", 1)
    cluster.settle()
    assert evicted(cluster) == (["w2"] if shrinks else [])


@pytest.mark.parametrize("by", ["pod", "gang"])
@pytest.mark.parametrize(
    ("group", "pods", "is_taken"), [(9, 0, False), (0, 9, True), (None, 0, True), (None, 9, False)]
)
def test_the_priority_of_the_group_counts_instead_of_its_pods(
    by: str, group: int | None, pods: int, is_taken: bool
) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    pod_group(cluster, "w", **({} if group is None else {"priority": group}))
    running(cluster, *members(cluster, "w", 2, priority=pods))
    if by == "pod":
        single(cluster, priority=5)
    else:
        gang(cluster, "u", 1, priority=5)
        cluster.settle()
    assert evicted(cluster) == (["w0", "w1"] if is_taken else [])


@pytest.mark.parametrize(("said", "takes"), [({}, True), ({"preemptionPolicy": "Never"}, False)])
def test_a_group_that_preempts_nobody(said: dict[str, Any], takes: bool) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    running(cluster, *gang(cluster, "w", 2, priority=1))
    pod_group(cluster, "u", priority=7, **said)
    members(cluster, "u", 2)
    cluster.settle()
    assert evicted(cluster) == (["w0", "w1"] if takes else [])


def test_the_more_urgent_group_is_placed_first() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    pod_group(cluster, "a", priority=1)
    pod_group(cluster, "b", priority=2)
    members(cluster, "a", 2, priority=9)
    members(cluster, "b", 2)
    cluster.settle()
    assert let_go(cluster) == ["b0", "b1"]


def test_the_least_of_a_group_may_change() -> None:
    """1.37; 1.36 does not let it."""
    cluster = JointCluster(nodes=2, gpus=1)
    pod_group(cluster, "w", least=3)
    pods = members(cluster, "w", 2)
    cluster.settle()
    assert let_go(cluster) == []
    cluster.api.edit(ALPHA, "w", lambda found: found["spec"]["schedulingPolicy"]["gang"].update(minCount=2))
    cluster.settle()
    assert let_go(cluster) == pods
    cluster.api.edit(ALPHA, "w", lambda found: found["spec"]["schedulingPolicy"]["gang"].update(minCount=1))
    running(cluster, *pods)
    go(cluster, "w1")
    cluster.settle()
    cluster.pass_time(1000)
    cluster.settle()
    assert evicted(cluster) == []


BASIC: Any = {"basic": {}}


@pytest.mark.parametrize("said", TOGETHER)
def test_the_pods_of_a_basic_group_start_one_by_one_and_end_together(said: Any) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    pod_group(cluster, "w", schedulingPolicy=BASIC, disruptionMode=said)
    pods = members(cluster, "w", 3, priority=1)
    cluster.settle()
    assert let_go(cluster) == pods[:2], "there is no room for the third"
    running(cluster, *pods[:2])
    single(cluster, priority=5)
    assert evicted(cluster) == pods[:2]


@pytest.mark.parametrize("said", [None, *ALONE])
def test_a_basic_group_that_says_no_more_is_no_gang(said: Any) -> None:
    pod = {
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"schedulingGroup": {"podGroupName": "train"}},
    }
    spec = {"schedulingPolicy": BASIC} | ({} if said is None else {"disruptionMode": said})
    ref = gang_of(pod)
    assert ref is not None
    assert terms_of(ref, [pod], {"scheduling.k8s.io/team/train": {"spec": spec}}) is None


def test_a_basic_group_with_a_domain_is_kept_in_it() -> None:
    pod = {
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"schedulingGroup": {"podGroupName": "train"}},
    }
    spec = {"schedulingPolicy": BASIC, "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]}}
    ref = gang_of(pod)
    assert ref is not None
    terms = terms_of(ref, [pod], {"scheduling.k8s.io/team/train": {"spec": spec}})
    assert terms is not None
    assert terms.least == 1
    assert "example.com/rack" in str(terms.topology)

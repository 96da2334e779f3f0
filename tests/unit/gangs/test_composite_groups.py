"""CompositePodGroups (1.37, alpha, KEP 6012): groups of PodGroups. No server that could be had has them."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import COMPOSITE, PODS
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import COMPOSITES
from tests.unit.gangs.test_gang_course import gates, let_go, told
from tests.unit.gangs.test_gang_roles import cluster_of
from tests.unit.gangs.test_gangs_preempt import evicted, running
from tests.unit.gangs.test_pod_groups import BASIC, LEAST, members, pod_group, single

ALL: dict[str, Any] = {"disruptionMode": {"all": {}}}


def composite(cluster: JointCluster, name: str, least: int = 0, **spec: Any) -> None:
    """`least`: groups that start together, 0 for each by itself."""
    policy = {"gang": {"minGroupCount": least}} if least else BASIC
    body = {
        **COMPOSITES.type_meta,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": policy} | spec,
    }
    cluster.api.create(COMPOSITES, body)


def groups(cluster: JointCluster, *named: str, least: int = 2, around: str = "all", **spec: Any) -> None:
    for name in named:
        pod_group(cluster, name, least=least, parentCompositePodGroupName=around, **spec)


def at(key: str) -> dict[str, Any]:
    return {"schedulingConstraints": {"topology": [{"key": key}]}}


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("mode", [{}, {"disruptionMode": {"single": {}}}])
@pytest.mark.parametrize("policy", [LEAST, BASIC])
@pytest.mark.parametrize("deep", [False, True])
def test_a_group_starts_by_itself_where_those_around_want_no_more(
    least: int, mode: dict[str, Any], policy: dict[str, Any], deep: bool
) -> None:
    if least and policy is BASIC:
        pytest.skip("a gang has no basic group")
    cluster = JointCluster(nodes=2, gpus=1)
    pod_group(cluster, "w", schedulingPolicy=policy, parentCompositePodGroupName="inner")
    composite(cluster, "inner", least, **mode, **({"parentCompositePodGroupName": "w"} if deep else {}))
    if deep:
        composite(cluster, "w")  # of the PodGroup's own name
    pods = members(cluster, "w", 2)
    cluster.settle()
    assert [name for name in pods if not gates(cluster, name)] == pods


def test_groups_start_together_or_not_at_all() -> None:
    cluster = JointCluster(nodes=3, gpus=1)
    composite(cluster, "all", 2)
    groups(cluster, "a", "b")
    members(cluster, "a", 2)
    cluster.settle()
    assert let_go(cluster) == []
    (said,) = set(told(cluster, "GangGathering"))
    assert (
        f"gang default/all/{COMPOSITE} (kubernetes): 2 of 3 members are there, of role the groups that"
        in said
    )
    members(cluster, "b", 2)
    cluster.settle()
    assert let_go(cluster) == []
    assert "3 of 4 members fit" in told(cluster, "GangWaiting")[-1]
    roomy = JointCluster(nodes=4, gpus=1)
    composite(roomy, "all", 2)
    groups(roomy, "a", "b")
    pods = [*members(roomy, "a", 2), *members(roomy, "b", 2)]
    roomy.settle()
    assert let_go(roomy) == pods


def test_of_groups_that_are_there_as_many_start_as_are_said_each_whole() -> None:
    """Three groups of two, of which two are needed, and five places: the third starts with both of its
    members, once there is room."""
    cluster = JointCluster(nodes=6, gpus=1)
    cluster.claim("other")
    cluster.pod("other", "other")
    cluster.settle()
    cluster.scheduler_binds("other", "other")
    composite(cluster, "all", 2)
    groups(cluster, "a", "b", "c")
    pods = [name for group in "abc" for name in members(cluster, group, 2)]
    cluster.settle()
    assert len(let_go(cluster)) == 4
    assert {let_go(cluster).count(f"{group}0") for group in "abc"} == {0, 1}
    assert all(let_go(cluster).count(f"{group}0") == let_go(cluster).count(f"{group}1") for group in "abc")
    cluster.pod_ends("other", "other")
    cluster.settle()
    assert sorted(let_go(cluster)) == pods


def test_groups_within_groups_have_their_own_least_and_their_own_domain() -> None:
    """Two replicas, each in one row, of a prefill and a decode group, each in one rack."""
    cluster = cluster_of("aabbAABB")
    composite(cluster, "serve", 2)
    for replica in ("r0", "r1"):
        composite(cluster, replica, 2, parentCompositePodGroupName="serve", **at("dc/row"))
        groups(cluster, f"{replica}-p", f"{replica}-d", around=replica, **at("dc/rack"))
    pods = [one for name in ("r0-p", "r0-d", "r1-p", "r1-d") for one in members(cluster, name, 2)]
    cluster.settle()
    assert sorted(let_go(cluster)) == sorted(pods)
    labels = {
        one: objects.labels_of(node)
        for node in cluster.reconciler.cache.nodes.values()
        for one in pods
        if cluster.node_of(one) == objects.name(node)
    }
    for part, key in (("r0", "dc/row"), ("r1", "dc/row"), ("r0-p", "dc/rack"), ("r1-d", "dc/rack")):
        assert len({own[key] for one, own in labels.items() if one.startswith(part)}) == 1
    tight = cluster_of("aabbAAbB")
    composite(tight, "serve", 2)
    for replica in ("r0", "r1"):
        composite(tight, replica, 2, parentCompositePodGroupName="serve", **at("dc/row"))
        groups(tight, f"{replica}-p", f"{replica}-d", around=replica, **at("dc/rack"))
        members(tight, f"{replica}-p", 2)
        members(tight, f"{replica}-d", 2)
    tight.settle()
    assert let_go(tight) == []


def test_a_domain_for_all_whose_groups_start_by_themselves() -> None:
    cluster = cluster_of("aaab")
    composite(cluster, "all", **at("dc/rack"))
    groups(cluster, "a", "b")
    members(cluster, "a", 2)
    members(cluster, "b", 2)
    cluster.settle()
    assert let_go(cluster) == ["a0", "a1"], "the other group has one place in that rack"


@pytest.mark.parametrize("on", ["the composite group", "a group"])
def test_groups_that_end_together_are_taken_together(on: str) -> None:
    cluster = JointCluster(nodes=4, gpus=1, preemption=True)
    whole = on == "the composite group"
    composite(cluster, "all", 0 if whole else 2, **(ALL if whole else {}))
    groups(cluster, "a", "b", **ALL)
    pods = [*members(cluster, "a", 2), *members(cluster, "b", 2)]
    cluster.settle()
    running(cluster, *pods)
    single(cluster, priority=5)
    assert evicted(cluster) == pods


def test_a_group_waits_for_those_around_it_and_joins_the_others_when_they_come() -> None:
    cluster = JointCluster(nodes=4, gpus=1)
    groups(cluster, "a", "b")
    pods = [*members(cluster, "a", 2), *members(cluster, "b", 2)]
    cluster.settle()
    assert let_go(cluster) == []
    assert f"{COMPOSITE} all, which is not there" in told(cluster, "GangRefused")[0]
    composite(cluster, "all", 2)
    cluster.settle()
    assert let_go(cluster) == pods
    assert set(cluster.reconciler.allocation.gangs.all) == {f"default/all/{COMPOSITE} (kubernetes)"}


def test_when_the_tree_is_gone_each_group_counts_for_itself() -> None:
    cluster = JointCluster(nodes=4, gpus=1)
    composite(cluster, "all", 2)
    groups(cluster, "a")
    pods = members(cluster, "a", 2)
    cluster.settle()
    assert let_go(cluster) == []
    cluster.api.delete(COMPOSITES, "all")
    composite(cluster, "all", 1)
    cluster.settle()
    assert let_go(cluster) == pods


def test_groups_in_a_circle_are_refused() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    groups(cluster, "w", around="a")
    composite(cluster, "a", 2, parentCompositePodGroupName="b")
    composite(cluster, "b", 2, parentCompositePodGroupName="a")
    members(cluster, "w", 2)
    cluster.settle()
    assert let_go(cluster) == []
    assert f"more than 4 {COMPOSITE}s deep" in told(cluster, "GangRefused")[0]


def test_a_gang_with_a_group_that_is_none_is_refused_as_kubernetes_does() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    composite(cluster, "all", 2)
    pod_group(cluster, "w", schedulingPolicy=BASIC, parentCompositePodGroupName="all")
    members(cluster, "w", 2)
    cluster.settle()
    assert let_go(cluster) == []
    assert (
        f"PodGroup w is basic, and part of {COMPOSITE} all, which is a gang"
        in told(cluster, "GangRefused")[0]
    )


@pytest.mark.parametrize("number", [2**31 - 1, -1, True, "two", None])
def test_any_number_of_groups_may_be_written(number: Any) -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    policy = {"schedulingPolicy": {"gang": {"minGroupCount": number}}}
    composite(cluster, "all", **policy)
    groups(cluster, "w")
    pods = members(cluster, "w", 2)
    cluster.settle()
    assert let_go(cluster) == ([] if number == 2**31 - 1 else pods)
    assert all(names.JOINT_GATE in gates(cluster, name) for name in pods if name not in let_go(cluster))
    assert len(cluster.api.all(PODS)) == 2


@pytest.mark.parametrize("policy", [None, 3, [], "x", {"gang": 3}, {"gang": {"minGroupCount": [1]}}])
@pytest.mark.parametrize("constraints", [None, "x", {"topology": 3}, {"topology": [1, {"key": 3}]}])
def test_fields_of_the_wrong_type_end_no_pass(policy: Any, constraints: Any) -> None:
    """No server takes them; a cache may have been filled by another one."""
    cluster = JointCluster(nodes=2, gpus=1)
    composite(cluster, "all", schedulingPolicy=policy, schedulingConstraints=constraints)
    groups(cluster, "w")
    pods = members(cluster, "w", 2)
    cluster.settle()
    assert let_go(cluster) in ([], pods)

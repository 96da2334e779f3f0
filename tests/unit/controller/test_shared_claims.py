"""Pods that share claims, and pods whose claims have to come together."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.allocator.reasons import Cause
from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.allocation.node_backoff import FIRST
from koordra.controller.allocation.pass_context import RESERVES_WITHIN
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache.cluster_cache import AUDIT_PERIOD
from koordra.controller.cache.groups import Group
from koordra.controller.reconcile.allocation_step import UNDECIDED_PAUSE
from koordra.controller.reporting.claim_events import ALLOCATED, ALLOCATION_REFUSED, GIVEN_BACK
from koordra.placement import plan
from koordra.placement.decide import Excluded
from tests.fakes.joint_cluster import JointCluster
from tests.unit.forecast.test_forecast import foretold

PORT = [{"name": "main", "image": "x", "ports": [{"containerPort": 1, "hostPort": 80}]}]


def objects_of(cluster: JointCluster) -> list[Object]:
    return [
        obj
        for kind in (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, PODS)
        for obj in cluster.api.all(kind)
    ]


def gated(cluster: JointCluster, *pods: str) -> list[str]:
    return [name for name in pods if cluster.api.get(PODS, name)["spec"].get("schedulingGates")]


def two_of_whom_one_cannot_come() -> JointCluster:
    """The only node has free cards, and a pod on the port that q wants; p shares a claim with q."""
    cluster = JointCluster(nodes=1)
    cluster.claim("own")
    cluster.pod("there", "own", containers=PORT)
    cluster.settle()
    cluster.scheduler_binds("there", "own")
    cluster.claim("shared")
    cluster.pod("p", "shared")
    cluster.pod("q", "shared", containers=PORT, priority=5)
    return cluster


def test_a_shared_claim_is_placed_where_all_its_pods_can_go() -> None:
    cluster = JointCluster(nodes=2)
    cluster.claim("shared")
    for name in ("p", "q"):
        cluster.pod(name, "shared", nodeSelector={"kubernetes.io/hostname": "n1"} if name == "q" else {})
    cluster.settle()
    assert cluster.node_of("shared") == "n1"


def test_when_no_node_suits_all_consumers_the_most_urgent_one_is_served() -> None:
    cluster = JointCluster(nodes=2)
    cluster.claim("shared")
    cluster.pod("p", "shared", nodeSelector={"kubernetes.io/hostname": "n0"}, priority=1)
    cluster.pod("q", "shared", nodeSelector={"kubernetes.io/hostname": "n1"}, priority=5)
    cluster.settle()
    assert cluster.node_of("shared") == "n1"


def test_a_consumer_that_has_no_place_there_keeps_its_gate_until_another_one_is_safe() -> None:
    """kube-scheduler would try it first, find no node, and erase the allocation, again and again."""
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    gates = [names.JOINT_GATE]
    elsewhere = {"kubernetes.io/hostname": "elsewhere"}
    cluster.pod("first", "shared", gates=gates, nodeSelector=elsewhere, priority=5)
    cluster.pod("second", "shared", gates=gates)
    cluster.settle()
    assert cluster.node_of("shared") == "n0"
    assert gated(cluster, "first", "second") == ["first"]
    cluster.scheduler_binds("second", "shared")
    cluster.settle()
    assert gated(cluster, "first", "second") == []


def test_a_consumer_keeps_its_gate_for_nobody_who_is_gone() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    gates = [names.JOINT_GATE]
    elsewhere = {"kubernetes.io/hostname": "elsewhere"}
    cluster.pod("first", "shared", gates=gates, nodeSelector=elsewhere, priority=5)
    cluster.pod("second", "shared")
    cluster.settle()
    assert gated(cluster, "first") == ["first"]
    cluster.api.delete(PODS, "second")
    cluster.settle()
    assert gated(cluster, "first") == []


def test_what_keeps_one_consumer_off_a_node_keeps_no_other_off() -> None:
    cluster = two_of_whom_one_cannot_come()
    ahead = foretold(cluster)
    cluster.settle()
    assert cluster.node_of("shared") == ahead.planned["default/shared"].node == "n0"


def test_consumers_that_cannot_be_on_one_node_are_not_given_devices_together() -> None:
    """kube-scheduler would refuse the later one, and take its own claim back, time and again."""
    cluster = JointCluster(nodes=2)
    for name in ("shared", "own-p", "own-q"):
        cluster.claim(name)
    cluster.pod("p", "shared", "own-p", containers=PORT)
    cluster.pod("q", "shared", "own-q", containers=PORT)
    cluster.settle()
    assert cluster.node_of("shared") == cluster.node_of("own-p")
    assert cluster.allocation("own-q") is None
    assert any("host port TCP/80 is taken by pod default/p" in one.message for one in cluster.told)


def test_the_same_is_planned_where_one_consumer_is_told_to_stay_off() -> None:
    cluster = two_of_whom_one_cannot_come()
    found = plan(objects_of(cluster), exclude={"default/q": {"n0": "the port is taken"}})
    assert found.nodes["default/shared"] == "n0"


def test_a_bad_claim_of_one_consumer_stops_no_other() -> None:
    cluster = JointCluster(nodes=1)
    for name, asked in (("shared", names.CLASS_GPU), ("bad", "nobodys")):
        cluster.claim(name, device_class=asked)
    cluster.pod("p", "shared")
    cluster.pod("q", "shared", "bad", priority=5)
    before = objects_of(cluster)
    cluster.settle()
    assert cluster.node_of("shared") == "n0"
    for report_errors in (False, True):
        found = plan(before, report_errors=report_errors)
        assert found.nodes == {"default/shared": "n0"}
        assert [*found.unsatisfiable] == ["default/bad"]


def test_a_node_is_kept_free_for_one_consumer_where_all_cannot_come_together() -> None:
    cluster = JointCluster(starves_after=300.0)
    for name, host in (("small", "n0"), ("other", "n1")):
        cluster.claim(name)
        cluster.pod(name, name, nodeSelector={"kubernetes.io/hostname": host})
        cluster.settle()
        cluster.scheduler_binds(name, name)
    cluster.claim("shared", count=2)
    for name, host in (("p", "n0"), ("q", "n1")):
        cluster.pod(name, "shared", nodeSelector={"kubernetes.io/hostname": host}, priority=5)
    cluster.settle()
    cluster.pass_time(301.0)
    cluster.settle()
    cluster.claim("later")
    cluster.pod("later", "later", nodeSelector={"kubernetes.io/hostname": "n0"})
    cluster.settle()
    assert cluster.node_of("later") is None
    cluster.pod_ends("small", "small")
    cluster.settle()
    assert cluster.node_of("shared") == "n0"


def test_one_consumer_whose_search_ran_out_of_budget_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(_self: Placer, group: Group, _excluded: Excluded, **_why: bool) -> GroupPlacement:
        return GroupPlacement(undecided=group.pods[-1]["metadata"]["name"] == "q" and len(group.pods) == 1)

    monkeypatch.setattr(Placer, "place", place)
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    cluster.pod("p", "shared")
    cluster.pod("q", "shared", nodeSelector={"kubernetes.io/hostname": "n0"})
    assert cluster.settle() == UNDECIDED_PAUSE


def test_a_pod_that_may_come_back_first_wakes_its_group() -> None:
    """Of a group that waits, the node is closed to the first pod for longer than to the second, which fits
    alone."""
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    for name in ("p", "q"):
        cluster.pod(name, "shared")
    backoff = cluster.reconciler.allocation._context.node_backoff
    for name, at in (("p", cluster.now + 60), ("q", cluster.now)):
        backoff.exclude(objects.uid(cluster.api.get(PODS, name)), "n0", why="no room", now=at)
    assert cluster.settle() is not None
    assert cluster.node_of("shared") is None
    cluster.pass_time(FIRST + 1)
    cluster.settle()
    assert cluster.node_of("shared") == "n0"


def test_a_pinned_pod_gives_its_unused_claims_back_rather_than_hold_them_in_vain() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    held = cluster.node_of("a")
    cluster.claim("b", count=2)
    cluster.api.delete(PODS, "p")
    cluster.pod("p2", "a", "b")
    cluster.settle(passes=1)
    assert cluster.node_of("a") is None, "one card of n0 is held, so two more cannot be had there"
    cluster.settle()
    assert held is not None
    assert cluster.allocation("b") is None, "three cards fit on no node"
    assert cluster.reasons()[-1] != ALLOCATED


def test_a_gated_pod_that_cannot_be_served_stays_gated() -> None:
    cluster = JointCluster()
    cluster.claim("a", count=9)
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.settle()
    assert cluster.api.get(PODS, "p")["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]


def test_consumers_with_claims_of_their_own_are_served_in_order_as_far_as_possible() -> None:
    """q is first in line but fits nowhere, p fits: the shared claim follows p."""
    cluster = JointCluster(nodes=1, gpus=3)
    cluster.claim("shared")
    cluster.claim("p-own")
    cluster.claim("q-own", count=5)
    cluster.pod("p", "shared", "p-own")
    cluster.pod("q", "shared", "q-own", priority=5)
    ahead = foretold(cluster)
    assert ahead.planned["default/shared"].node == "n0"
    why = ahead.reasons_of("default/q-own").reasons["default/q-own"][0].reason
    assert why == "ExceedsDevice"
    cluster.settle()
    assert cluster.node_of("shared") == cluster.node_of("p-own") == "n0"
    assert cluster.allocation("q-own") is None


def test_a_claim_that_is_in_use_is_never_given_back_for_a_pod_that_waits_beside_it() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.claim("shared")
    cluster.pod("p", "shared")
    cluster.settle()
    cluster.scheduler_binds("p", "shared")
    cluster.claim("own", count=2)
    cluster.pod("q", "shared", "own")
    pause = cluster.settle()
    assert pause == AUDIT_PERIOD, "nothing to do before something changes, but for the full read"
    assert cluster.allocation("shared") is not None
    assert GIVEN_BACK not in cluster.reasons()


def test_a_refusal_of_one_consumer_is_not_held_against_the_other() -> None:
    cluster = JointCluster()
    cluster.claim("shared")
    cluster.pod("p", "shared", gates=[names.JOINT_GATE])
    cluster.pod("q", "shared", gates=[names.JOINT_GATE])
    cluster.settle()
    first = cluster.node_of("shared")
    cluster.scheduler_says_no("p")
    assert cluster.settle() == RESERVES_WITHIN
    assert cluster.node_of("shared") is None, "kube-scheduler may be about to reserve it for q on that node"
    cluster.pass_time(RESERVES_WITHIN)
    cluster.settle()
    assert cluster.node_of("shared") not in (None, first)
    assert cluster.reasons().count(ALLOCATION_REFUSED) == 1


def test_what_is_said_of_a_whole_pod_group_is_no_refusal_of_its_pods() -> None:
    """kube-scheduler has tried those whose gates were lifted first, and found places for them alone."""
    cluster = JointCluster()
    cluster.claim("shared")
    for name in ("p", "q"):
        cluster.pod(name, "shared", gates=[names.JOINT_GATE])
    cluster.settle()
    first, waits = cluster.node_of("shared"), "pod group is unschedulable, waiting for minCount pods"
    cluster.scheduler_says_no("p", message=waits)
    cluster.settle()
    assert cluster.node_of("shared") == first
    cluster.scheduler_binds("q", "shared")
    cluster.settle()
    assert Cause.SHARED_CLAIM_PINNED not in cluster.reasons()
    cluster.scheduler_says_no("p", message="0/2 nodes are available: 2 Insufficient cpu")
    cluster.settle()
    assert Cause.SHARED_CLAIM_PINNED in cluster.reasons()


def test_claims_of_one_pod_on_different_nodes_come_together_again() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.claim("b")
    cluster.pod("p", "a", "b")
    cluster.settle()
    first = cluster.node_of("a")
    other = "n1" if first == "n0" else "n0"

    def move(found: dict[str, Any]) -> None:
        allocation = found["status"]["allocation"]
        allocation["devices"]["results"][0]["pool"] = other
        allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] = [other]
        found["status"]["reservedFor"] = [{"resource": "pods", "name": "another", "uid": "another"}]

    cluster.api.edit(RESOURCE_CLAIMS, "a", move)
    cluster.settle()
    assert cluster.node_of("a") == cluster.node_of("b") == other


def test_claims_that_other_pods_can_start_with_are_not_taken_for_a_pod_that_needs_both() -> None:
    """They would be given to the same pods again, pass after pass."""
    cluster = JointCluster()
    for name, host in (("a", "n0"), ("b", "n1")):
        cluster.claim(name)
        cluster.pod(name, name, nodeSelector={"kubernetes.io/hostname": host})
    cluster.pod("both", "a", "b")
    assert cluster.settle(passes=6) == AUDIT_PERIOD
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", "n1")
    assert cluster.reasons().count(ALLOCATED) == 2
    assert GIVEN_BACK not in cluster.reasons()
    cluster.api.delete(PODS, "b")
    cluster.settle()
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", "n0"), "it goes where the other one is"


def test_a_refusal_is_not_read_twice_when_there_is_no_other_place() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("shared")
    cluster.pod("p", "shared", gates=[names.JOINT_GATE])
    cluster.pod("q", "shared", gates=[names.JOINT_GATE])
    cluster.settle()
    cluster.scheduler_says_no("p")
    cluster.settle()
    assert cluster.reasons().count(ALLOCATION_REFUSED) == 1


def test_a_claim_whose_last_user_is_just_being_released_is_left_to_kube_controller_manager() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.claim("shared")
    cluster.pod("p", "shared")
    cluster.settle()
    cluster.scheduler_binds("p", "shared")
    cluster.api.delete(PODS, "p")
    cluster.claim("own", count=2)
    cluster.pod("q", "shared", "own")
    before = len(cluster.api.writes)
    assert cluster.settle() == AUDIT_PERIOD
    assert len(cluster.api.writes) == before


def test_the_writer_itself_takes_nothing_that_is_reserved() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.scheduler_binds("p", "a")
    before = len(cluster.api.writes)
    assert cluster.writer.give_back(cluster.api.get(RESOURCE_CLAIMS, "a")).outcome is WriteOutcome.TAKEN
    assert len(cluster.api.writes) == before


def test_a_give_back_that_crosses_a_reservation_loses() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.settle()
    held = cluster.node_of("a")
    cluster.scheduler_says_no("p")
    cluster.caches.deliver()
    cluster.scheduler_binds("p", "a")
    cluster.reconciler.reconcile()
    cluster.settle()
    assert cluster.node_of("a") == held
    assert GIVEN_BACK not in cluster.reasons()


def test_a_pod_that_names_one_claim_twice_disturbs_nobody() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for name in ("twice", "other"):
        cluster.claim(name)
    entries = [{"name": entry, "resourceClaimName": "twice"} for entry in ("first", "second")]
    cluster.pod("p", resourceClaims=entries)
    cluster.settle()
    cluster.scheduler_binds("p", "twice")
    cluster.pod("q", "other")
    cluster.settle()
    assert cluster.node_of("twice") == cluster.node_of("other") == "n0"
    cluster.pod_ends("p", "twice")
    cluster.settle()
    assert not cluster.reconciler.audit.differences


def test_a_claim_that_names_one_owner_twice_disturbs_nobody() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u"} for name in ("a", "b")]
    cluster.claim("twice")
    cluster.api.edit(RESOURCE_CLAIMS, "twice", lambda one: one["metadata"].update(ownerReferences=owners))
    cluster.settle()
    cluster.api.delete(RESOURCE_CLAIMS, "twice")
    cluster.claim("other")
    cluster.pod("q", "other")
    cluster.settle()
    assert cluster.node_of("other") == "n0"

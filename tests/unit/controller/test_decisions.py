"""The small pure parts: owners of claims, groups, order, exclusions, assumptions, the inventory's epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.node_backoff import NodeBackoff
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.scheduler_feedback import FeedbackTracker
from koordra.controller.allocation.writes import dropped_fields
from koordra.controller.cache.assume_cache import AssumeCache, is_older
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.cache.slice_index import joint_slice
from koordra.controller.claims import Owner
from koordra.placement.request.claim_groups import urgency
from tests.fakes.cluster import Cluster
from tests.fakes.groups import groups
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod


def class_with(name: str, expression: str | None = None, **spec: Any) -> dict[str, Any]:
    if expression is not None:
        spec["selectors"] = [{"cel": {"expression": expression}}]
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        (class_with("gpu.koordra.io"), True),
        (class_with("koordra.io"), True),
        (class_with("gpu.notkoordra.io"), False),
        (class_with("mine", 'device.driver == "koordra.io"'), True),
        (class_with("mine", "device.driver=='koordra.io'"), True),
        (class_with("mine", 'device.attributes["koordra.io"].type == "gpu"'), True),
        (class_with("theirs", 'device.driver == "gpu.nvidia.com"'), False),
        (class_with("theirs", 'device.driver != "koordra.io"'), False),
        (class_with("anything"), False),
        (class_with("mine", config=[{"opaque": {"driver": "koordra.io", "parameters": {}}}]), True),
    ],
)
def test_whose_class_it_is(entry: dict[str, Any], ours: bool) -> None:
    assert claims_of.is_koordra_class(entry) is ours


def test_whose_claim_it_is_looks_at_every_alternative() -> None:
    classes = {"gpu.koordra.io": class_with("gpu.koordra.io"), "tpu": class_with("tpu")}

    def of(*requests: dict[str, Any]) -> Owner:
        return claims_of.owner({"spec": {"devices": {"requests": list(requests)}}}, classes)

    ours = {"name": "a", "exactly": {"deviceClassName": "gpu.koordra.io"}}
    theirs = {"name": "b", "exactly": {"deviceClassName": "tpu"}}
    either = {
        "name": "c",
        "firstAvailable": [{"deviceClassName": "gpu.koordra.io"}, {"deviceClassName": "tpu"}],
    }
    missing = {"name": "d", "exactly": {"deviceClassName": "mig.koordra.io"}}
    assert of(ours) is Owner.KOORDRA
    assert of(theirs) is Owner.FOREIGN
    assert of() is Owner.FOREIGN
    assert of(ours, theirs) is Owner.MIXED
    assert of(either) is Owner.MIXED
    assert of(ours, missing) is Owner.UNKNOWN


def test_pods_that_share_claims_in_a_chain_are_one_group() -> None:
    claims = {name: claim(name, uid=name) for name in "abcd"}

    def member(name: str, *uses: str) -> PodClaims:
        made = pod(name, uses, created="2026-11-21T00:00:00Z")
        made["metadata"]["uid"] = name
        return PodClaims(made, tuple(claims[entry] for entry in uses))

    members = [member("p", "a"), member("q", "b"), member("r", "a", "b"), member("s", "c"), member("t", "d")]
    found = [[objects.name(each) for each in group.pods] for group in groups(members)]
    assert found == [["p", "q", "r"], ["s"], ["t"]]


def test_order_is_priority_then_age_then_name() -> None:
    pods = [
        pod("b", [], created="2026-11-21T00:00:02Z"),
        pod("a", [], created="2026-11-21T00:00:02Z"),
        pod("low", [], created="2026-11-21T00:00:00Z", priority=-1),
        pod("high", [], created="2026-11-21T00:00:09Z", priority=1),
        pod("old", [], created="2026-11-21T00:00:01Z"),
    ]
    assert [objects.name(each) for each in sorted(pods, key=urgency)] == ["high", "old", "a", "b", "low"]
    assert min(map(urgency, pods)) == urgency(pods[3])


def test_exclusions_double_up_to_a_bound_and_are_forgotten_with_the_pod() -> None:
    kept = NodeBackoff()
    now, pauses = 0.0, []
    for _ in range(8):
        entry = kept.exclude("p", "n0", why="no", now=now)
        pauses.append(entry.until - now)
        assert kept.active("p", now) == {"n0": "no"}
        assert kept.active("p", entry.until) == {}
        assert kept.changed(now) == {"p"}
        assert kept.next_expiry == entry.until
        now = entry.until
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert kept.refusals("p") == 8
    assert kept.active("other", 0.0) == {}
    kept.exclude("p", "n1", why="no", now=now)
    kept.retry_node("n1", now)
    assert kept.active("p", now) == {}
    assert kept.refusals("p") == 9
    kept.forget("p")
    assert kept.refusals("p") == 0


@pytest.mark.parametrize(
    ("one", "other", "older"),
    [("9", "10", True), ("10", "9", False), ("10", "10", False), ("x", "y", True), ("x", "x", False)],
)
def test_versions_are_numbers_not_texts(one: str, other: str, older: bool) -> None:
    def at(version: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": version}}

    assert is_older(at(one), at(other)) is older


def version(name: str, number: int, **status: Any) -> dict[str, Any]:
    return {**claim(name, uid=name, resourceVersion=str(number)), "status": status}


def test_an_assumption_lasts_until_the_cache_has_caught_up() -> None:
    assumed = AssumeCache()
    written = version("a", 7, allocation={"devices": {}})
    assumed.assume(written)
    assumed.assume(version("a", 6))
    assert assumed.current(version("a", 5)) == written
    caught_up = version("a", 7, allocation={"devices": {}})
    assert assumed.current(caught_up) is caught_up
    freed = version("a", 9)
    assert assumed.current(freed) == freed
    assert assumed.current(version("a", 5)) == version("a", 5), "nothing is remembered any more"


def test_an_assumption_about_a_claim_that_is_gone_is_dropped() -> None:
    cache = ClusterCache.of(Cluster(claims=[version("a", 5)]))
    cache.assume(version("a", 7))
    assert cache.claims["default/a"] == version("a", 7)
    cache.adopt(Cluster())
    assert cache.claims == {}
    cache.adopt(Cluster(claims=[version("a", 5)]))
    assert cache.claims["default/a"] == version("a", 5)


def test_a_claim_that_the_server_has_lost_is_gone_whatever_the_cache_shows() -> None:
    cache = ClusterCache.of(Cluster(claims=[version("a", 5)]))
    cache.lose(version("a", 5))
    assert cache.claims == {}
    cache.adopt(Cluster(claims=[version("a", 6)]))
    assert cache.claims == {}
    cache.adopt(Cluster(claims=[{**version("a", 7), "metadata": {"name": "a", "uid": "another"}}]))
    assert list(cache.claims) == ["default/a"]


def test_a_doubt_counts_as_use_until_the_version_moves_on() -> None:
    assumed = AssumeCache()
    before = version("a", 5)
    assumed.doubt(before, {"devices": {"results": [1]}})
    for cached in (version("a", 4), before):
        with_allocation = assumed.current(cached)
        assert with_allocation is not None
        assert claims_of.is_allocated(with_allocation)
    assert len(assumed.pending_writes()) == 1
    moved = version("a", 6)
    assert assumed.current(moved) == moved
    assert assumed.pending_writes() == []


def test_the_epoch_rises_only_when_room_may_have_been_made() -> None:
    first = node("n0")
    first["metadata"]["resourceVersion"] = "1"
    slices = [gpu_slice("n0", 1)]
    free = Cluster(nodes=[first], slices=slices)
    cache = ClusterCache.of(free)
    epoch = cache.capacity_epoch.epoch

    held = version("a", 2, allocation={"devices": {"results": []}})
    cache.adopt(replace(free, claims=[held]))
    assert cache.capacity_epoch.epoch == epoch, "giving out makes no room"
    cache.adopt(free)
    assert cache.capacity_epoch.epoch == epoch + 1, "freeing does"

    heartbeat = node("n0")
    heartbeat["metadata"]["resourceVersion"] = "2"
    heartbeat["status"]["conditions"].append({"type": "Ready2", "lastHeartbeatTime": "now"})
    cache.adopt(Cluster(nodes=[heartbeat], slices=slices))
    assert (cache.capacity_epoch.epoch, cache.capacity_epoch.changed_nodes()) == (epoch + 1, [])

    cordoned = node("n0")
    cordoned["metadata"]["resourceVersion"] = "3"
    cordoned["spec"]["unschedulable"] = True
    cache.adopt(Cluster(nodes=[cordoned], slices=slices))
    assert (cache.capacity_epoch.epoch, cache.capacity_epoch.changed_nodes()) == (epoch + 2, ["n0"])


def test_pods_make_room_when_they_are_gone_or_ask_for_less() -> None:
    def asking(cpu: str, **status: str) -> Object:
        resources = {"requests": {"cpu": cpu}}
        found = pod("p", [], nodeName="n0", containers=[{"name": "main", "resources": resources}])
        return {**found, "status": {"phase": "Running", **status}}

    placer, cache = Placer(), ClusterCache.of(Cluster(nodes=[node("n0")]))
    placer.sync(cache)
    pods, found = placer.engine.index.pods, []
    for now in (
        [asking("8")],
        [asking("8", message="runs")],
        [asking("4")],
        [asking("4", phase="Failed")],
        [],
    ):
        cache.adopt(Cluster(nodes=[*cache.nodes.values()], pods=now))
        with placer.overlay(frozenset({"default/p"})):
            assert not pods.placed
        found.append(pods.room_version)
    assert found == [0, 0, 1, 2, 2]


def test_a_claim_that_moved_has_made_room() -> None:
    def holding(device: str) -> Cluster:
        result = {"request": "gpu", "driver": "koordra.io", "pool": "n0", "device": device}
        return Cluster(claims=[version("a", 2, allocation={"devices": {"results": [result]}})])

    cache = ClusterCache.of(holding("gpu-0"))
    epoch = cache.capacity_epoch.epoch
    cache.adopt(holding("gpu-0"))
    assert cache.capacity_epoch.epoch == epoch
    cache.adopt(holding("gpu-1"))
    assert cache.capacity_epoch.epoch == epoch + 1


def test_only_what_was_never_reserved_is_an_orphan() -> None:
    def of(**status: Any) -> list[str]:
        result = {"request": "gpu", "driver": "koordra.io", "pool": "n0", "device": "gpu-0"}
        held = version("a", 2, allocation={"devices": {"results": [result]}}, **status)
        cache = ClusterCache.of(Cluster(claims=[held]))
        return [objects.name(entry) for entry in cache.claim_index.orphans()]

    assert of() == ["a"]
    assert of(reservedFor=[{"resource": "pods", "name": "p", "uid": "p"}]) == []


def test_an_allocation_that_we_took_back_ourselves_is_nobodys_answer() -> None:
    waits = pod("p", ["a"])
    waits["metadata"]["uid"] = "p"
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    held = version("a", 2, allocation={"devices": {}, "nodeSelector": {"nodeSelectorTerms": [term]}})
    classes = [device_class(names.CLASS_GPU, "gpu")]
    cache = ClusterCache.of(Cluster(classes=classes, claims=[version("a", 3)], pods=[waits]))
    grants = FeedbackTracker(cache.pod_index, refusals=lambda _uid: 0)
    grants.remember(held, [waits], now=0.0)
    refusals, _ = grants.read(now=1.0)
    assert [refusal.node for refusal in refusals] == ["n0"]
    grants.drop(held)
    assert grants.read(now=2.0) == ([], None)


def test_devices_of_native_nodes_are_not_shown() -> None:
    shown = map(joint_slice, [gpu_slice("n0", 2), gpu_slice("n1", 2, allocator="scheduler")])
    assert [len(entry["spec"]["devices"]) for entry in shown] == [2, 0]


def test_dropped_fields_are_named_by_path() -> None:
    sent = {"devices": {"results": [{"device": "g", "shareID": "1"}], "config": []}, "nodeSelector": {"a": 1}}
    assert dropped_fields(sent, {**sent, "extra": 1}) == []
    stored = {"devices": {"results": [{"device": "g"}]}}
    assert dropped_fields(sent, stored) == [
        "allocation.devices.results[0].shareID",
        "allocation.nodeSelector",
    ]
    assert dropped_fields(sent, {"devices": {"results": []}, "nodeSelector": {"a": 1}}) == [
        "allocation.devices.results"
    ]


def test_the_echo_of_our_own_write_wakes_nobody() -> None:
    cache = ClusterCache.of(Cluster(claims=[version("a", 5)]))
    touched = cache.follow(RESOURCE_CLAIMS)
    cache.assume(version("a", 7, allocation={"devices": {}}))
    assert touched == {"default/a"}
    touched.clear()
    cache.adopt(Cluster(claims=[version("a", 7, allocation={"devices": {}})]))
    assert touched == set()
    cache.adopt(Cluster(claims=[version("a", 8)]))
    assert touched == {"default/a"}
    assert cache.claims["default/a"] == version("a", 8)

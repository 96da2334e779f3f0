"""Gangs through the reconciler: together or not at all, and what follows afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.gangs import events, member_placement
from koordra.controller.gangs.declared.annotations import (
    COMMITTED,
    GANG,
    GANG_MAX,
    GANG_MIN,
    GANG_SHRINK,
    GANG_TIMEOUT,
    GANG_TOPOLOGY,
)
from koordra.errors import ApiUnreachable, Invalid
from tests.fakes.joint_cluster import JointCluster, explode_at, gpu_slice, node
from tests.fakes.kube_api import Killed, Write


@pytest.fixture(autouse=True, params=["together", "one by one"])
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds for members that are placed together, and for those that are in each other's way."""
    if request.param == "one by one":
        monkeypatch.setattr(member_placement.PlacementRequest, "_is_obstructed", lambda *_: True)


def member(
    cluster: JointCluster,
    name: str,
    *,
    gang: str = "train",
    least: int = 2,
    count: int = 1,
    gated: bool = True,
    claims: bool = True,
    terms: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod of a gang with a claim of its own."""
    if claims:
        cluster.claim(name, count=count)
    gates = [names.JOINT_GATE] if gated else []
    pod = cluster.pod(name, *([name] if claims else []), gates=gates, **spec)
    said = {GANG: gang, GANG_MIN: str(least), **(terms or {})}
    cluster.api.edit(PODS, name, lambda found: found["metadata"].update(annotations=said))
    return cluster.api.get(PODS, objects.name(pod))


def gates(cluster: JointCluster, name: str) -> list[str]:
    return [gate["name"] for gate in cluster.api.get(PODS, name)["spec"].get("schedulingGates") or ()]


def allocated(cluster: JointCluster) -> list[str]:
    return [
        objects.name(claim)
        for claim in cluster.api.all(RESOURCE_CLAIMS)
        if cluster.allocation(objects.name(claim))
    ]


def let_go(cluster: JointCluster) -> list[str]:
    return [objects.name(pod) for pod in cluster.api.all(PODS) if COMMITTED in objects.annotations_of(pod)]


def told(cluster: JointCluster, reason: str) -> list[str]:
    return [happening.message for happening in cluster.told if happening.reason == reason]


def test_a_gang_is_placed_and_let_go_as_a_whole() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(4):
        member(cluster, f"w{number}", least=4)
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1", "w2", "w3"]
    assert let_go(cluster) == ["w0", "w1", "w2", "w3"]
    assert all(gates(cluster, f"w{number}") == [] for number in range(4))
    assert objects.annotations_of(cluster.api.get(PODS, "w0"))[COMMITTED] == "train"
    cluster.assert_no_device_twice()
    assert told(cluster, events.STARTS)


def test_a_gang_that_does_not_fit_as_a_whole_gets_nothing() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(5):
        member(cluster, f"w{number}", least=5)
    cluster.settle()
    assert allocated(cluster) == []
    assert let_go(cluster) == []
    assert "4 of 5 members fit" in told(cluster, events.WAITING)[0]


def test_members_that_are_not_all_there_get_nothing() -> None:
    cluster = JointCluster()
    member(cluster, "w0", least=3)
    member(cluster, "w1", least=3)
    cluster.settle()
    assert allocated(cluster) == []
    assert "2 of 3 members are there" in told(cluster, events.GATHERING)[0]
    member(cluster, "w2", least=3)
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1", "w2"]


def test_an_ungated_gang_is_refused() -> None:
    cluster = JointCluster()
    member(cluster, "w0")
    member(cluster, "w1", gated=False)
    cluster.settle()
    assert allocated(cluster) == []
    assert "not held by the scheduling gate" in told(cluster, events.REFUSED)[0]
    assert "w1" in told(cluster, events.REFUSED)[0]


def test_members_that_disagree_are_refused() -> None:
    cluster = JointCluster()
    member(cluster, "w0", least=2)
    member(cluster, "w1", least=3)
    cluster.settle()
    assert allocated(cluster) == []
    assert "disagree about koordra.io/gang-min: 2, 3" in told(cluster, events.REFUSED)[0]


def test_a_member_without_claims_is_held_and_let_go_with_the_others() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    member(cluster, "launcher", least=3, claims=False)
    member(cluster, "w0", least=3)
    cluster.settle()
    assert gates(cluster, "launcher") == [names.JOINT_GATE]
    member(cluster, "w1", least=3)
    cluster.settle()
    assert gates(cluster, "launcher") == []
    assert let_go(cluster) == ["launcher", "w0", "w1"]


def test_a_launcher_that_came_past_its_gate_and_runs_starts_nobody() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    member(cluster, "launcher", least=3, claims=False, gated=False)
    for name in ("w0", "w1"):
        member(cluster, name, least=3)
    cluster.settle()
    assert "not held by the scheduling gate" in told(cluster, events.REFUSED)[0]
    cluster.claim("other")
    cluster.pod("other", "other", priority=9)
    cluster.api.edit(PODS, "launcher", lambda pod: pod["spec"].update(nodeName="n0"))
    cluster.settle()
    assert allocated(cluster) == ["other"]  # one of the two would fit
    assert "2 of 3 members fit" in told(cluster, events.WAITING)[0]
    cluster.scheduler_binds("other", "other")
    cluster.pod_ends("other", "other")
    cluster.settle()
    assert allocated(cluster) == let_go(cluster) == ["w0", "w1"]
    together = cluster.reconciler.allocation.gangs.together()
    assert {len(pods) for pods in together.values()} == {3}  # they end together, too


def test_a_launcher_that_ended_without_the_others_does_not_keep_them_waiting() -> None:
    """It came past the webhook without its gate, and ended well; nobody makes it again."""
    cluster = JointCluster(nodes=1, gpus=2)
    owner = {"kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    member(cluster, "launcher", least=3, gated=False, claims=False)
    for name in ("a", "b"):
        member(cluster, name, least=3)
    for name in ("launcher", "a", "b"):
        cluster.api.edit(PODS, name, lambda found: found["metadata"].update(ownerReferences=[owner]))
    cluster.settle()
    assert allocated(cluster) == [], "it could start without the others"
    cluster.api.edit(PODS, "launcher", lambda found: found["status"].update(phase="Succeeded"))
    cluster.settle()
    assert let_go(cluster) == ["a", "b"]


def test_a_foreign_gate_is_waited_for() -> None:
    cluster = JointCluster()
    member(cluster, "w0")
    member(cluster, "w1")
    cluster.api.edit(
        PODS, "w1", lambda pod: pod["spec"]["schedulingGates"].append({"name": "queue/admission"})
    )
    cluster.settle()
    assert allocated(cluster) == []
    cluster.api.edit(PODS, "w1", lambda pod: pod["spec"]["schedulingGates"].pop())
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1"]


@pytest.mark.parametrize("step", range(10))
@pytest.mark.parametrize("kind", ["lost", "unanswered", "refused"])
def test_a_write_that_fails_leaves_nothing_allocated(step: int, kind: str) -> None:
    """At each of the ten writes (finalizer, allocation and gate of each member) something goes wrong once."""
    cluster = JointCluster(nodes=2, gpus=2)
    names_of = [f"w{number}" for number in range(3)]
    for name in names_of:
        member(cluster, name, least=3)
    cluster.caches.deliver()
    error = (lambda: Invalid("no", code=422)) if kind == "refused" else (lambda: ApiUnreachable("gone"))
    if kind == "unanswered":
        cluster.api.after = explode_at(step, error)
    else:
        cluster.api.before = explode_at(step, error)
    with contextlib.suppress(ApiUnreachable):
        cluster.reconciler.reconcile()
    committed = let_go(cluster)
    if kind == "refused" and not committed and step < 6:
        assert allocated(cluster) == []
    cluster.api.before = cluster.api.after = lambda _write: None
    # One member goes away before the next pass: what is not committed must not stay.
    if not committed:
        cluster.pod_ends("w2")
        cluster.settle()
        assert allocated(cluster) == []
        assert let_go(cluster) == []
    else:
        cluster.pass_time(70)
        cluster.settle()
        assert let_go(cluster) == names_of
        assert allocated(cluster) == names_of


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(12))
def test_killed_at_each_write(step: int, after: bool) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    names_of = [f"w{number}" for number in range(4)]
    for name in names_of:
        member(cluster, name, least=4)
    cluster.caches.deliver()
    fault = explode_at(step, Killed)
    if after:
        cluster.api.after = fault
    else:
        cluster.api.before = fault
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.before = cluster.api.after = lambda _write: None
    cluster.start_again()
    cluster.settle()
    assert allocated(cluster) == names_of
    assert let_go(cluster) == names_of
    cluster.assert_no_device_twice()


@pytest.mark.parametrize("step", range(12))
def test_killed_and_a_member_gone_before_the_next(step: int) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    names_of = [f"w{number}" for number in range(4)]
    for name in names_of:
        member(cluster, name, least=4)
    cluster.caches.deliver()
    cluster.api.after = explode_at(step, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    before = let_go(cluster)
    cluster.pod_ends("w3", "w3")
    cluster.start_again()
    cluster.settle()
    if set(before) - {"w3"}:
        assert let_go(cluster) == ["w0", "w1", "w2"]
        assert allocated(cluster) == ["w0", "w1", "w2"]
    else:
        assert let_go(cluster) == []
        assert allocated(cluster) == []


def bind(cluster: JointCluster, *members: str) -> None:
    for name in members:
        cluster.scheduler_binds(name, name)


def test_of_two_gangs_that_do_not_fit_together_one_is_whole() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(3):
        member(cluster, f"a{number}", gang="a", least=3)
        member(cluster, f"b{number}", gang="b", least=3)
    cluster.settle()
    assert allocated(cluster) == ["a0", "a1", "a2"]
    bind(cluster, "a0", "a1", "a2")
    cluster.settle()
    for number in range(3):
        cluster.pod_ends(f"a{number}", f"a{number}")
    cluster.settle()
    assert [name for name in allocated(cluster) if name.startswith("b")] == ["b0", "b1", "b2"]


def test_priority_comes_first() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number in range(2):
        member(cluster, f"a{number}", gang="a")
        member(cluster, f"b{number}", gang="b", priority=10)
    cluster.settle()
    assert allocated(cluster) == ["b0", "b1"]


def test_a_no_after_the_commit_is_planned_again_beside_the_others() -> None:
    cluster = JointCluster(nodes=3, gpus=1)
    member(cluster, "w0")
    member(cluster, "w1")
    cluster.settle()
    bind(cluster, "w0")
    before = cluster.node_of("w1")
    cluster.scheduler_says_no("w1")
    cluster.settle()
    assert cluster.node_of("w1") not in {before, None, cluster.node_of("w0")}


def test_after_its_time_a_gang_that_cannot_complete_is_restarted() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    terms = {GANG_TIMEOUT: "60s"}
    member(cluster, "w0", terms=terms)
    member(cluster, "w1", terms=terms)
    cluster.settle()
    bind(cluster, "w0")
    cluster.scheduler_says_no("w1")
    cluster.settle()
    evictions: list[str] = []
    cluster.api.before = lambda write: (
        evictions.append(write.name) if write.subresource == "eviction" else None
    )
    cluster.pass_time(30)
    cluster.settle(passes=1)
    assert evictions == []
    cluster.pass_time(31)
    cluster.settle(passes=1)
    assert evictions == ["w0", "w1"]
    assert "1 of 2 members run" in told(cluster, events.RESTARTED)[0]


def test_with_the_policy_keep_nobody_is_evicted() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    terms = {GANG_TIMEOUT: "60s", "koordra.io/gang-policy": "Keep"}
    member(cluster, "w0", terms=terms)
    member(cluster, "w1", terms=terms)
    cluster.settle()
    bind(cluster, "w0")
    cluster.scheduler_says_no("w1")
    evictions: list[Write] = []
    cluster.api.before = lambda write: evictions.append(write) if write.subresource == "eviction" else None
    for _ in range(5):
        cluster.settle()
        cluster.pass_time(40)
    assert evictions == []
    assert any("are kept (policy Keep)" in text for text in told(cluster, events.BELOW_MIN_MEMBER))


def test_an_elastic_gang_starts_with_the_least_and_grows() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    terms = {GANG_MAX: "4"}
    for number in range(5):
        member(cluster, f"w{number}", least=2, terms=terms)
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1"]
    bind(cluster, "w0", "w1")
    cluster.api.create(NODES, node("n1"))
    cluster.api.create(RESOURCE_SLICES, gpu_slice("n1", 4))
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1", "w2", "w3"]
    assert let_go(cluster) == ["w0", "w1", "w2", "w3"]
    assert told(cluster, events.GROWS)


def test_growing_comes_after_everybody_else() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number in range(3):
        member(cluster, f"w{number}", least=2)
    cluster.settle()
    bind(cluster, "w0", "w1")
    cluster.claim("later")
    cluster.pod("later", "later")
    cluster.api.create(NODES, node("n1"))
    cluster.api.create(RESOURCE_SLICES, gpu_slice("n1", 1))
    cluster.settle()
    assert allocated(cluster) == ["later", "w0", "w1"]


def test_an_elastic_gang_makes_room_where_that_is_its_policy() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    terms = {GANG_SHRINK: "ForOthers"}
    for number in range(4):
        member(cluster, f"e{number}", gang="e", least=2, terms=terms)
    cluster.settle()
    bind(cluster, "e0", "e1", "e2", "e3")
    evictions: list[str] = []
    cluster.api.before = lambda write: (
        evictions.append(write.name) if write.subresource == "eviction" else None
    )
    member(cluster, "b0", gang="b")
    member(cluster, "b1", gang="b")
    cluster.settle()
    assert sorted(evictions) == ["e2", "e3"]
    for name in evictions:
        cluster.pod_ends(name, name)
    cluster.settle()
    assert [name for name in allocated(cluster) if name.startswith("b")] == ["b0", "b1"]


def test_whoever_makes_room_does_not_take_it_again_where_its_least_runs_without_devices() -> None:
    """A launcher that came past its gate and runs is all that the gang needs: its worker grows it, also when
    nobody else is left of those that started."""
    cluster = JointCluster(nodes=1, gpus=2)
    terms = {GANG_SHRINK: "ForOthers"}
    launcher = {"claims": False, "gated": False, "nodeName": "n0"}
    member(cluster, "launcher", gang="e", least=1, terms=terms, **launcher)
    member(cluster, "e0", gang="e", least=1, terms=terms)
    cluster.settle()
    bind(cluster, "e0")
    member(cluster, "b0", gang="b")
    member(cluster, "b1", gang="b")
    cluster.settle()
    cluster.pod_ends("e0", "e0")
    member(cluster, "e1", gang="e", least=1, terms=terms)
    cluster.settle()
    assert let_go(cluster) == ["b0", "b1"]


def test_an_elastic_gang_makes_room_for_one_that_waited_before_its_members_ran() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(4):
        member(cluster, f"e{number}", gang="e", least=2, terms={GANG_SHRINK: "ForOthers"})
    cluster.settle()
    for number in range(2):
        member(cluster, f"w{number}", gang="w")
    cluster.settle()
    evictions: list[str] = []
    cluster.api.before = lambda write: (
        evictions.append(write.name) if write.subresource == "eviction" else None
    )
    bind(cluster, "e0", "e1", "e2", "e3")
    pause = cluster.settle()
    assert sorted(evictions) == ["e2", "e3"]
    assert pause is not None
    cluster.pass_time(pause)
    cluster.settle()
    assert sorted(evictions) == ["e2", "e2", "e3", "e3"]


def test_a_lost_node_before_the_commit_undoes_the_gang() -> None:
    """Killed between the last allocation and the first gate; then a node goes away."""
    cluster = JointCluster(nodes=2, gpus=1)
    member(cluster, "w0")
    member(cluster, "w1")
    cluster.caches.deliver()
    cluster.api.after = explode_at(3, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    assert allocated(cluster) == ["w0", "w1"]
    cluster.api.delete(NODES, "n1")
    cluster.start_again()
    cluster.settle()
    assert allocated(cluster) == []
    assert let_go(cluster) == []


def test_a_large_gang_does_not_starve() -> None:
    cluster = JointCluster(nodes=2, gpus=2, starves_after=60.0)
    for number in range(4):
        cluster.claim(f"s{number}")
        cluster.pod(f"s{number}", f"s{number}")
    cluster.settle()
    bind(cluster, *(f"s{number}" for number in range(4)))
    for number in range(4):
        member(cluster, f"w{number}", least=4)
    cluster.settle()
    cluster.pass_time(61)
    cluster.settle()
    for number in range(4):
        cluster.pod_ends(f"s{number}", f"s{number}")
        cluster.claim(f"late{number}")
        cluster.pod(f"late{number}", f"late{number}", created=f"2026-11-21T09:00:0{number}Z")
        cluster.settle()
    assert [name for name in allocated(cluster) if name.startswith("w")] == ["w0", "w1", "w2", "w3"]
    assert not [name for name in allocated(cluster) if name.startswith("late")]


def test_a_topology_that_nobody_knows_is_told_with_its_annotation() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(2):
        member(cluster, f"w{number}", terms={GANG_TOPOLOGY: "rack"})
    cluster.settle()
    assert allocated(cluster) == []
    (text,) = set(told(cluster, events.WAITING))
    assert "annotation koordra.io/gang-topology: rack is no level of the fabric; levels are zone, " in text


@pytest.mark.parametrize(
    ("terms", "mended"),
    [
        ({GANG_TOPOLOGY: "rack"}, lambda pod: pod["metadata"]["annotations"].pop(GANG_TOPOLOGY)),
        ({}, lambda pod: pod["spec"].update(tolerations=[{"operator": "Exists"}])),
    ],
    ids=["topology", "tolerations"],
)
def test_a_gang_that_asks_for_less_than_before_is_planned_again(
    terms: dict[str, str], mended: Callable[[Object], None]
) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    if not terms:
        taint = {"key": "batch", "effect": "NoSchedule"}
        for name in ("n0", "n1"):
            cluster.api.edit(NODES, name, lambda found: found["spec"].update(taints=[taint]))
    for number in range(2):
        member(cluster, f"w{number}", terms=terms)
    cluster.settle()
    assert allocated(cluster) == []
    for number in range(2):
        cluster.api.edit(PODS, f"w{number}", mended)
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1"]


def test_members_in_each_others_way_are_placed_apart() -> None:
    """One node has room for both, but they listen on one port of the host."""
    cluster = JointCluster(nodes=2, gpus=2)
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 8080, "hostPort": 8080}]}
    for number in range(2):
        member(cluster, f"w{number}", containers=[container])
    cluster.settle()
    assert {cluster.node_of("w0"), cluster.node_of("w1")} == {"n0", "n1"}

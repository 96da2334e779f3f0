"""`--preemption`: a gang that waits takes the place of who is less urgent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api import names, objects
from koordra.api.kinds import POD_DISRUPTION_BUDGETS, PODS
from koordra.controller.gangs.declared.annotations import GANG, GANG_MAX, GANG_MIN
from koordra.controller.gangs.eviction import in_the_way
from koordra.placement.gang import GangPlaced, GangScore
from tests.fakes.joint_cluster import JointCluster
from tests.unit.gangs.test_gang_course import allocated, member


def running(cluster: JointCluster, *pods: str) -> None:
    cluster.settle()
    for name in pods:
        cluster.scheduler_binds(name, name)
        cluster.api.edit(PODS, name, lambda found: found["status"].update(phase="Running"))
    cluster.settle()


def single(cluster: JointCluster, name: str, **spec: Any) -> None:
    cluster.claim(name)
    cluster.pod(name, name, gates=[names.JOINT_GATE], **spec)
    running(cluster, name)


def gang(cluster: JointCluster, name: str, size: int, *, least: int | None = None, **more: Any) -> list[str]:
    pods = [f"{name}{number}" for number in range(size)]
    for one in pods:
        member(cluster, one, gang=name, least=least or size, **more)
    return pods


def evicted(cluster: JointCluster) -> list[str]:
    return sorted(write.name for write in cluster.api.writes if write.subresource == "eviction")


def go(cluster: JointCluster, *pods: str) -> None:
    for name in pods:
        cluster.pod_ends(name, name)


def test_a_gang_takes_the_place_of_single_pods_that_are_less_urgent() -> None:
    cluster = JointCluster(nodes=2, gpus=2, preemption=True)
    for name in ("a", "b", "c", "d"):
        single(cluster, name, priority={"a": 0, "b": 9, "c": 0, "d": 0}[name])
    urgent = gang(cluster, "u", 2, priority=5)
    cluster.settle()
    gone = evicted(cluster)
    assert len(gone) == 2
    assert "b" not in gone
    go(cluster, *gone)
    cluster.settle()
    assert set(urgent) <= set(allocated(cluster))


def test_a_gang_takes_a_gang_whole_and_single_pods_first() -> None:
    cluster = JointCluster(nodes=3, gpus=1, preemption=True)
    running(cluster, *gang(cluster, "w", 2, priority=1))
    single(cluster, "alone", priority=1)
    gang(cluster, "u", 1, priority=5)
    cluster.settle()
    assert evicted(cluster) == ["alone"]
    cluster = JointCluster(nodes=3, gpus=1, preemption=True)
    running(cluster, *gang(cluster, "w", 2, priority=1))
    single(cluster, "alone", priority=1)
    gang(cluster, "u", 2, priority=5)
    cluster.settle()
    assert evicted(cluster) == ["w0", "w1"]


def test_an_elastic_gang_gives_up_what_is_beyond_its_least() -> None:
    cluster = JointCluster(nodes=1, gpus=4, preemption=True)
    running(cluster, *gang(cluster, "w", 4, least=2, priority=1, terms={GANG_MAX: "4"}))
    gang(cluster, "u", 2, priority=5)
    cluster.settle()
    assert evicted(cluster) == ["w2", "w3"]


def test_of_many_who_have_the_devices_only_those_are_taken_who_have_to_go() -> None:
    """24 pods have 3 GiB each of one card of 80; 8 GiB are free, 20 are asked."""
    cluster = JointCluster(nodes=1, gpus=1, preemption=True)
    pods = [f"p{number:02d}" for number in range(24)]
    for name in pods:
        cluster.claim(name, memory="3Gi")
        cluster.pod(name, name, gates=[names.JOINT_GATE], priority=1 if name < "p20" else 0)
    running(cluster, *pods)
    cluster.claim("u", memory="20Gi")
    cluster.pod("u", "u", gates=[names.JOINT_GATE], priority=5)
    said = {GANG: "u", GANG_MIN: "1"}
    cluster.api.edit(PODS, "u", lambda found: found["metadata"].update(annotations=said))
    cluster.settle()
    assert evicted(cluster) == ["p20", "p21", "p22", "p23"]


@given(
    amounts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    free=st.integers(0, 20),
    asked=st.integers(1, 120),
)
def test_putting_back_halves_is_putting_back_one_by_one(amounts: list[int], free: int, asked: int) -> None:
    victims, questions = [(at, amount) for at, amount in enumerate(amounts)], 0
    score = GangScore(1, 0, (), 0, 1, 0, 0)

    def fits(gone: Sequence[tuple[int, int]]) -> GangPlaced | None:
        nonlocal questions
        questions += 1
        is_room = free + sum(amount for _, amount in gone) >= asked
        return GangPlaced((), (), 1, score) if is_room and gone else None

    answer = fits(victims)
    if answer is None:
        return
    found, _ = in_the_way(victims, answer, fits=fits)
    asked_for, left = questions, list(victims)
    for one in victims:
        rest = [other for other in left if other is not one]
        left = rest if fits(rest) else left
    assert found == left
    assert asked_for <= 2 + 2 * len(found) * (1 + len(victims).bit_length())


@pytest.mark.parametrize("priority", [1, 0])
def test_nobody_is_taken_who_is_as_urgent(priority: int) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    running(cluster, *gang(cluster, "w", 2, priority=1))
    gang(cluster, "u", 1, priority=priority)
    cluster.settle()
    assert evicted(cluster) == []


def test_nobody_is_taken_where_it_does_not_help_or_is_not_wanted() -> None:
    cluster = JointCluster(nodes=1, gpus=2, preemption=True)
    single(cluster, "a", priority=0)
    single(cluster, "b", priority=9)
    gang(cluster, "u", 2, priority=5)
    cluster.settle()
    assert evicted(cluster) == []
    cluster = JointCluster(nodes=1, gpus=1, preemption=True)
    single(cluster, "a", priority=0)
    gang(cluster, "u", 1, priority=5, preemptionPolicy="Never")
    cluster.settle()
    assert evicted(cluster) == []
    cluster = JointCluster(nodes=1, gpus=1)
    single(cluster, "a", priority=0)
    gang(cluster, "u", 1, priority=5)
    cluster.settle()
    assert evicted(cluster) == []


@pytest.mark.parametrize(("allowed", "gone"), [(1, []), (2, ["w0", "w1"])])
@pytest.mark.parametrize("by", ["gang", "pod"])
def test_budgets_are_asked_for_all_before_the_first_is_evicted(
    by: str, allowed: int, gone: list[str]
) -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    pods = gang(cluster, "w", 2, priority=1)
    running(cluster, *pods)
    for name in pods:
        cluster.api.edit(PODS, name, lambda found: found["metadata"].update(labels={"app": "w"}))
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, "maxUnavailable": allowed},
        "status": {"disruptionsAllowed": allowed},
    }
    cluster.api.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
    cluster.settle()
    if by == "gang":
        gang(cluster, "u", 1, priority=5)
    else:
        cluster.claim("u")
        cluster.pod("u", "u", gates=[names.JOINT_GATE], priority=5)
    for _ in range(4):
        cluster.settle()
        cluster.pass_time(70)
    assert sorted(set(evicted(cluster))) == gone


def test_a_gang_that_lost_a_member_takes_the_place_of_a_single_pod_alone() -> None:
    cluster = JointCluster(nodes=4, gpus=1, preemption=True)
    running(cluster, *gang(cluster, "u", 2, priority=5))
    running(cluster, *gang(cluster, "w", 1, priority=1))
    go(cluster, "u1")
    for name in ("a", "b"):
        single(cluster, name, priority=0)
    member(cluster, "u2", gang="u", least=2, priority=5)
    cluster.settle()
    assert evicted(cluster) in (["a"], ["b"])
    assert objects.name(cluster.api.get(PODS, "w0")) == "w0"

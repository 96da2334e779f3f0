"""`--preemption` and gangs: a gang is evicted as a whole or not at all."""

from __future__ import annotations

import random

import pytest

from koordra.api import names
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import Write
from tests.unit.gangs.test_gang_course import member


def hold(cluster: JointCluster, *names_of: str) -> None:
    """The scheduler binds them and the kubelet runs them."""
    cluster.settle()
    for name in names_of:
        cluster.scheduler_binds(name, name)
    cluster.settle()


def evicted(cluster: JointCluster) -> list[str]:
    return sorted(write.name for write in cluster.api.writes if write.subresource == "eviction")


def urgent(cluster: JointCluster, *, count: int = 1, priority: int = 10) -> None:
    cluster.claim("high", count=count)
    cluster.pod("high", "high", priority=priority)
    cluster.settle()


def test_a_gang_is_one_victim() -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    for name in ("w0", "w1"):
        member(cluster, name, priority=1)
    hold(cluster, "w0", "w1")
    urgent(cluster)
    assert evicted(cluster) == ["w0", "w1"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_immediate_claims_that_no_pod_uses_make_room_for_a_gang(gpus: int) -> None:
    """Nobody is evicted for it; where the gang has room beside them they stay."""
    cluster = JointCluster(nodes=2, gpus=gpus)
    for name in ("idle0", "idle1"):
        cluster.claim(name, annotations={names.MODE_LABEL: names.IMMEDIATE})
    cluster.settle()
    for name in ("w0", "w1"):
        member(cluster, name, priority=-1)
    cluster.settle(passes=5)
    assert None not in (cluster.node_of("w0"), cluster.node_of("w1"))
    assert [cluster.allocation(name) is None for name in ("idle0", "idle1")] == [gpus == 1] * 2
    assert evicted(cluster) == []
    assert cluster.reasons().count("GivenBack") == (2 if gpus == 1 else 0)


def test_a_gang_that_cannot_start_all_the_same_takes_nothing() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    cluster.claim("idle", annotations={names.MODE_LABEL: names.IMMEDIATE})
    cluster.claim("used")
    cluster.pod("used", "used")
    hold(cluster, "used")
    for name in ("w0", "w1"):
        member(cluster, name, priority=9)
    cluster.settle(passes=5)
    assert cluster.allocation("idle") is not None


def test_a_single_pod_is_taken_before_a_gang() -> None:
    cluster = JointCluster(nodes=3, gpus=1, preemption=True)
    for name in ("w0", "w1"):
        member(cluster, name, priority=1)
    hold(cluster, "w0", "w1")
    cluster.claim("alone")
    cluster.pod("alone", "alone", priority=1)
    hold(cluster, "alone")
    urgent(cluster)
    assert evicted(cluster) == ["alone"]


def test_a_gang_with_one_member_that_is_as_urgent_is_nobodys_victim() -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    member(cluster, "w0", priority=1)
    member(cluster, "w1", priority=10)
    hold(cluster, "w0", "w1")
    urgent(cluster)
    assert evicted(cluster) == []


def test_a_gang_that_a_budget_keeps_is_not_torn_again_and_again() -> None:
    cluster = JointCluster(nodes=2, gpus=1, preemption=True)
    for name in ("w0", "w1"):
        member(cluster, name, priority=1)
    hold(cluster, "w0", "w1")

    def budget(write: Write) -> None:
        if (write.name, write.subresource) == ("w1", "eviction"):
            raise ApiUnreachable("Cannot evict pod as it would violate the pod's disruption budget", code=429)

    cluster.api.before = budget
    urgent(cluster)
    for _ in range(12):
        cluster.pass_time(10)
        cluster.settle()
    assert evicted(cluster).count("w0") == 3
    cluster.api.before = lambda write: None
    cluster.pass_time(200)
    pause = cluster.settle()
    assert evicted(cluster).count("w1") == 4
    assert pause is not None


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_evicted_no_gang_loses_a_part_of_its_members(seed: int) -> None:
    """Made-up clusters full of single pods and gangs; one that is more urgent than some of them comes."""
    draw = random.Random(seed)
    nodes, gpus = draw.randint(1, 3), draw.randint(1, 3)
    cluster = JointCluster(nodes=nodes, gpus=gpus, preemption=True)
    gangs: dict[str, list[str]] = {}
    priority: dict[str, int] = {}
    room = nodes * gpus
    while room:
        size = min(room, draw.randint(1, 3))
        gang, urgency = f"g{len(gangs)}", draw.randint(1, 3)
        gangs[gang] = [f"{gang}-{number}" for number in range(size)]
        for name in gangs[gang]:
            priority[name] = urgency + draw.choice((0, 0, 2))
            if size > 1:
                member(cluster, name, gang=gang, least=size, priority=priority[name])
            else:
                cluster.claim(name)
                cluster.pod(name, name, priority=priority[name])
        hold(cluster, *gangs[gang])
        room -= size
    asked, above = draw.randint(1, gpus), draw.randint(2, 5)
    where = {name: cluster.node_of(name) for name in priority}
    urgent(cluster, count=asked, priority=above)
    gone = set(evicted(cluster))
    for names_of in gangs.values():
        assert gone & set(names_of) in (set(), set(names_of))
    assert all(priority[name] < above for name in gone)
    weaker = [own for own in gangs.values() if all(priority[name] < above for name in own)]
    helps = any(
        sum(where[name] == node for own in weaker for name in own) >= asked for node in set(where.values())
    )
    assert bool(gone) == helps

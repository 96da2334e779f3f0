"""In each state of a gang a node is lost, a member is deleted, or the controller starts anew: whole or
nothing in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES
from koordra.controller.gangs.phase import GangPhase
from tests.fakes.joint_cluster import JointCluster, explode_at
from tests.fakes.kube_api import Killed
from tests.unit.gangs.test_gang_course import allocated, bind, let_go, member

MEMBERS = ("w0", "w1", "w2")


def cut_off(cluster: JointCluster, *, after: int) -> None:
    """The controller is killed right after this write, and another one starts."""
    cluster.caches.deliver()
    cluster.api.after = explode_at(after - 1, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    cluster.start_again()


def gathering(cluster: JointCluster) -> None:
    for name in MEMBERS[:2]:
        member(cluster, name, least=3)
    cluster.settle()


def waiting(cluster: JointCluster) -> None:
    cluster.claim("other", count=2)
    cluster.pod("other", "other")
    cluster.settle()
    for name in MEMBERS:
        member(cluster, name, least=3, nodeSelector={"kubernetes.io/hostname": "n0"})
    cluster.settle()


def partially_allocated(cluster: JointCluster) -> None:
    for name in MEMBERS:
        member(cluster, name, least=3)
    cut_off(cluster, after=4)


def ready(cluster: JointCluster) -> None:
    for name in MEMBERS:
        member(cluster, name, least=3)
    cut_off(cluster, after=6)


def half_let_go(cluster: JointCluster) -> None:
    for name in MEMBERS:
        member(cluster, name, least=3)
    cut_off(cluster, after=7)


def committed(cluster: JointCluster) -> None:
    for name in MEMBERS:
        member(cluster, name, least=3)
    cluster.settle()


def half_bound(cluster: JointCluster) -> None:
    committed(cluster)
    bind(cluster, "w0", "w1")
    cluster.settle()


def whole(cluster: JointCluster) -> None:
    committed(cluster)
    bind(cluster, *MEMBERS)
    cluster.settle()


STATES: dict[str, tuple[Callable[[JointCluster], None], bool]] = {
    "gathering": (gathering, False),
    "waiting": (waiting, False),
    "partially allocated": (partially_allocated, False),
    "ready": (ready, False),
    "half let go": (half_let_go, True),
    "committed": (committed, True),
    "half bound": (half_bound, True),
    "whole": (whole, True),
}


def lose_a_node(cluster: JointCluster) -> None:
    """The node of the last member that has one, with its slice and the pods that were bound there."""
    held = [name for name in MEMBERS if name in allocated(cluster)]
    lost = cluster.node_of(held[-1]) if held else "n1"
    for pod in cluster.api.all(PODS):
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName") == lost:
            cluster.pod_ends(name, *([name] if name in MEMBERS else []))
    cluster.api.delete(NODES, str(lost))
    cluster.api.delete(RESOURCE_SLICES, f"{lost}-koordra")


def delete_a_member(cluster: JointCluster) -> None:
    living = [pod["metadata"]["name"] for pod in cluster.api.all(PODS) if pod["metadata"]["name"] in MEMBERS]
    cluster.pod_ends(living[0], living[0])


def nothing(_cluster: JointCluster) -> None:
    return


def the_scheduler_lets_go_of_lost_nodes(cluster: JointCluster) -> None:
    """A member whose devices are on a node that is gone: kube-scheduler erases the allocation."""
    nodes = {node["metadata"]["name"] for node in cluster.api.all(NODES)}
    for name in let_go(cluster):
        pod = cluster.api.get(PODS, name)
        if not pod["spec"].get("nodeName") and cluster.node_of(name) not in {None, *nodes}:
            cluster.scheduler_erases(name)
            cluster.scheduler_says_no(name)


@pytest.mark.parametrize("again", [False, True], ids=["same controller", "new controller"])
@pytest.mark.parametrize("happens", [nothing, lose_a_node, delete_a_member])
@pytest.mark.parametrize("state", STATES)
def test_whole_or_nothing(state: str, happens: Callable[[JointCluster], None], again: bool) -> None:
    cluster = JointCluster(nodes=3, gpus=2)
    reach, was_committed = STATES[state]
    reach(cluster)
    assert bool(let_go(cluster)) == was_committed
    happens(cluster)
    if again:
        cluster.start_again()
    cluster.settle()
    the_scheduler_lets_go_of_lost_nodes(cluster)
    cluster.settle(passes=6)
    mine = [name for name in allocated(cluster) if name in MEMBERS]
    living = [pod["metadata"]["name"] for pod in cluster.api.all(PODS) if pod["metadata"]["name"] in MEMBERS]
    nodes = {node["metadata"]["name"] for node in cluster.api.all(NODES)}
    cluster.assert_no_device_twice()
    gangs = cluster.reconciler.allocation.gangs
    only_one_let_go_is_gone = state == "half let go" and happens is delete_a_member
    not_started = not was_committed or only_one_let_go_is_gone
    if not_started and (len(living) < len(MEMBERS) or state == "waiting"):
        assert mine == [], "it never started, and holds something"
        assert gangs.statuses["default/train"].phase in {GangPhase.GATHERING, GangPhase.WAITING}
        return
    if was_committed or len(living) == len(MEMBERS):
        assert mine == living, "it has started, and somebody has nothing"
        assert {cluster.node_of(name) for name in living} <= nodes
        assert let_go(cluster) == living

"""A gate that may have been lifted: nothing is taken back from a gang that may be committed."""

from __future__ import annotations

import pytest

from koordra.api.kinds import NODES
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster, explode_at
from tests.fakes.kube_api import Write
from tests.unit.gangs.test_gang_course import allocated, bind, gates, let_go, member

FIRST_LIFT = 4
"""After a finalizer and an allocation for each of two members."""


def two_members_and_an_ungating_without_an_answer(*, written: bool) -> JointCluster:
    cluster = JointCluster(nodes=2, gpus=1)
    member(cluster, "w0")
    member(cluster, "w1")
    cluster.caches.deliver()
    fault = explode_at(FIRST_LIFT, lambda: ApiUnreachable("gone"))
    if written:
        cluster.api.after = fault
    else:
        cluster.api.before = fault
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.api.before = cluster.api.after = lambda _write: None
    assert allocated(cluster) == ["w0", "w1"]
    return cluster


def test_what_may_be_committed_keeps_its_devices_although_a_node_is_lost() -> None:
    """The caches show the lost node before they show the lifted gate."""
    cluster = two_members_and_an_ungating_without_an_answer(written=True)
    assert let_go(cluster) == ["w0"]
    cluster.api.delete(NODES, str(cluster.node_of("w1")))
    cluster.caches.deliver(NODES)
    cluster.reconciler.reconcile()
    assert cluster.allocation("w0") is not None
    cluster.settle()
    assert cluster.allocation("w0") is not None
    bind(cluster, "w0")


def test_a_lift_that_was_lost_is_ruled_out_before_anything_is_taken_back() -> None:
    cluster = two_members_and_an_ungating_without_an_answer(written=False)
    cluster.api.delete(NODES, str(cluster.node_of("w1")))
    cluster.caches.deliver()
    written: list[Write] = []
    cluster.api.before = written.append
    cluster.settle()
    assert [str(write) for write in written][:1] == ["patch pods/w0"]
    assert allocated(cluster) == []
    assert let_go(cluster) == []
    assert gates(cluster, "w0") == gates(cluster, "w1")


def test_a_lift_that_was_lost_is_repeated() -> None:
    cluster = two_members_and_an_ungating_without_an_answer(written=False)
    cluster.settle()
    assert let_go(cluster) == ["w0", "w1"]

"""The scheduler's noes, end to end: devices come back, the node is left out, another place is found."""

from __future__ import annotations

import pytest

from koordra.api import names
from koordra.api.kinds import NODES
from koordra.controller.reporting.claim_events import ALLOCATED, ALLOCATION_REFUSED, GIVEN_BACK
from tests.fakes.joint_cluster import JointCluster


def test_a_refused_gated_pod_is_placed_elsewhere_at_once() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.settle()
    first = cluster.node_of("a")
    cluster.scheduler_says_no("p")
    cluster.settle()
    assert cluster.node_of("a") not in (None, first)
    assert cluster.reasons() == [ALLOCATED, GIVEN_BACK, ALLOCATION_REFUSED, ALLOCATED]


def test_an_erased_allocation_is_a_no() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    first = cluster.node_of("a")
    cluster.scheduler_erases("a")
    cluster.settle()
    assert cluster.node_of("a") not in (None, first)
    assert ALLOCATION_REFUSED in cluster.reasons()


def test_when_one_claim_is_erased_the_pods_other_claims_move_too() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.claim("b")
    cluster.pod("p", "a", "b")
    cluster.settle()
    first = cluster.node_of("a")
    cluster.scheduler_erases("b")
    cluster.settle()
    assert cluster.node_of("a") == cluster.node_of("b") not in (None, first)


def test_an_old_unschedulable_is_no_answer_until_patience_ends() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.scheduler_says_no("p", "0/2 nodes are available: cannot allocate all claims.")
    cluster.settle()
    first = cluster.node_of("a")
    cluster.pass_time(10)
    pause = cluster.settle()
    assert cluster.node_of("a") == first
    assert pause == pytest.approx(5.0)
    cluster.pass_time(5)
    cluster.settle()
    assert cluster.node_of("a") not in (None, first)


def test_a_node_that_keeps_refusing_is_asked_ever_less_often() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.settle()
    pauses = []
    for _ in range(4):
        cluster.scheduler_erases("a")
        pause = cluster.settle()
        assert cluster.allocation("a") is None
        assert pause is not None
        pauses.append(pause)
        cluster.pass_time(pause)
        cluster.settle()
        assert cluster.allocation("a") is not None
    assert pauses == pytest.approx([5.0, 10.0, 20.0, 40.0])


def test_a_changed_node_is_tried_again_at_once() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.scheduler_erases("a")
    cluster.settle()
    assert cluster.allocation("a") is None
    cluster.api.edit(NODES, "n0", lambda node: node["metadata"]["labels"].update(disk="ssd"))
    cluster.settle()
    assert cluster.allocation("a") is not None


def test_a_claim_freed_by_its_last_pod_is_not_a_refusal_for_the_next_pod() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.scheduler_binds("p", "a")
    cluster.pod("q", "a")
    cluster.settle()
    cluster.pod_ends("p", "a")
    cluster.settle()
    assert cluster.allocation("a") is not None
    assert ALLOCATION_REFUSED not in cluster.reasons()


def test_a_node_that_comes_back_while_a_pass_runs_is_tried_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else may change for a long time."""
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.settle()
    cluster.scheduler_says_no("p")
    pause = cluster.settle(passes=2)
    assert pause is not None
    cluster.pass_time(pause - 0.1)
    with monkeypatch.context() as slow:
        slow.setattr(cluster.reconciler, "_ungate", lambda: cluster.pass_time(0.2))
        assert cluster.settle(passes=1) == 0.0
    cluster.settle(passes=1)
    assert cluster.node_of("a") == "n0"

"""Joint mode beside an autoscaler that cannot simulate it: a claim that waits causes no writes, and no loop
of two."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES
from tests.fakes.joint_cluster import JointCluster, gpu_slice, node


def waiting_cluster() -> JointCluster:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("large", count=4)
    cluster.pod("p", "large")
    cluster.settle()
    return cluster


def test_a_scheduler_that_repeats_its_no_makes_the_controller_write_nothing() -> None:
    cluster = waiting_cluster()
    writes, told = len(cluster.api.writes), len(cluster.told)
    for number in range(50):
        cluster.scheduler_says_no("p", lastTransitionTime=f"2026-11-21T00:{number:02d}:00Z")
        cluster.pass_time(30)
        cluster.settle()
    assert len(cluster.api.writes) == writes
    assert len(cluster.told) == told


def test_nodes_that_come_and_go_in_vain_end_in_one_reason_and_no_writes() -> None:
    """An autoscaler that tries: adds a node for the Unschedulable pod, finds it empty, removes it, and
    again."""
    cluster = waiting_cluster()
    writes = [write for write in cluster.api.writes if write.verb == "patch"]
    for number in range(20):
        name = f"new-{number}"
        cluster.api.create(NODES, node(name))
        cluster.api.create(RESOURCE_SLICES, gpu_slice(name, 2))
        cluster.settle()
        cluster.scheduler_says_no("p")
        cluster.settle()
        cluster.api.delete(RESOURCE_SLICES, f"{name}-koordra")
        cluster.api.delete(NODES, name)
        cluster.settle()
    assert [write for write in cluster.api.writes if write.verb == "patch"] == writes
    assert set(cluster.reasons()) == {"ExceedsDevice"}
    assert len(cluster.told) <= 3, "the same reason is not told with every node"
    assert objects.spec_of(cluster.api.get(PODS, "p")).get("nodeName") is None


def test_a_node_that_is_removed_under_an_allocation_frees_the_claim_for_the_next() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("c")
    cluster.pod("p", "c")
    cluster.settle()
    assert cluster.node_of("c") == "n0"
    cluster.api.delete(RESOURCE_SLICES, "n0-koordra")
    cluster.api.delete(NODES, "n0")
    cluster.api.create(NODES, node("n1"))
    cluster.api.create(RESOURCE_SLICES, gpu_slice("n1", 1))
    cluster.pass_time(2)
    cluster.scheduler_says_no("p", lastTransitionTime=cluster.timestamp())
    cluster.settle()
    cluster.pass_time(20)
    cluster.settle()
    assert cluster.node_of("c") == "n1"

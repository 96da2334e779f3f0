"""Gangs whose makers make some pods before others, and end some before others begin."""

from __future__ import annotations

from koordra.api import names
from koordra.api.kinds import PODS
from tests.fakes.joint_cluster import JointCluster
from tests.unit.gangs.test_gang_course import allocated, gates, member

JOBSET = "jobset.sigs.k8s.io/"
POD_GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"


def labelled(cluster: JointCluster, name: str, role: str, **labels: str) -> None:
    """A pod of the TrainJob `train`."""
    said = {f"{JOBSET}jobset-name": "train", f"{JOBSET}jobset-uid": "u", f"{JOBSET}replicatedjob-name": role}
    cluster.api.edit(PODS, name, lambda one: one["metadata"].update(labels={**said, **labels}))


def test_an_initializer_that_bears_the_gangs_name_is_not_held() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    member(cluster, "data", least=2, claims=False)
    labelled(cluster, "data", "dataset-initializer")
    cluster.settle()
    assert gates(cluster, "data") == []
    for number in range(2):
        member(cluster, f"node-{number}", least=2)
        labelled(cluster, f"node-{number}", "node")
    cluster.settle()
    assert allocated(cluster) == ["node-0", "node-1"]


def test_initializers_that_have_ended_count_for_a_group_that_counts_them() -> None:
    """Of somebody else's group of 3 members in all; it never was held."""
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.pod("data")
    for number in range(2):
        cluster.claim(f"node-{number}")
        cluster.pod(f"node-{number}", f"node-{number}", gates=[names.JOINT_GATE])
    for name in ("data", "node-0", "node-1"):
        labelled(cluster, name, "node" if name != "data" else "dataset-initializer", **{POD_GROUP: "train"})
        cluster.api.edit(PODS, name, lambda one: one["metadata"].update(annotations={TOTAL: "3"}))
    cluster.api.edit(PODS, "data", lambda one: one["status"].update(phase="Succeeded"))
    cluster.settle()
    assert allocated(cluster) == ["node-0", "node-1"]


def test_one_that_has_failed_does_not_count() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.pod("data")
    cluster.claim("node-0")
    cluster.pod("node-0", "node-0", gates=[names.JOINT_GATE])
    for name in ("data", "node-0"):
        labelled(cluster, name, "node", **{POD_GROUP: "train"})
        cluster.api.edit(PODS, name, lambda one: one["metadata"].update(annotations={TOTAL: "2"}))
    cluster.api.edit(PODS, "data", lambda one: one["status"].update(phase="Failed"))
    cluster.settle()
    assert allocated(cluster) == []

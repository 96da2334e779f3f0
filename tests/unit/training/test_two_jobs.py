"""Two jobs that want the same place: nobody waits for ever, and nobody is moved about."""

from __future__ import annotations

import math

from koordra.api.kinds import NODES
from koordra.controller.training.training_job import State
from tests.unit.training.training_cluster import TrainingCluster

MOVES = {"policy": "WhenItPays", "idleSeconds": 60, "gainPercent": 5}


def made(cluster: TrainingCluster) -> int:
    return sum(write.verb == "create" and write.kind == "pods" for write in cluster.api.writes)


def test_one_has_it_and_then_the_other() -> None:
    cluster = TrainingCluster(nodes=1, gpus=1)
    for name in ("a", "b"):
        cluster.job(name, framework="PyTorch", least=1, most=1)
    cluster.settle()
    assert (cluster.state("a"), cluster.state("b")) == (State.RUNNING, State.WAITING)
    cluster.wait(5000)
    assert (cluster.state("a"), cluster.state("b")) == (State.RUNNING, State.WAITING)
    cluster.phase("a-000-0", "Succeeded")
    cluster.settle()
    assert (cluster.state("a"), cluster.state("b")) == (State.COMPLETE, State.RUNNING)
    assert made(cluster) == 2


def test_a_place_where_nothing_comes_up_is_passed_on_with_pauses_that_grow() -> None:
    cluster = TrainingCluster(nodes=1, gpus=1)
    cluster.broken = {"n0"}
    for name in ("a", "b"):
        cluster.job(name, framework="PyTorch", least=1, most=1, pendingSeconds=60)
    hours = 3
    for _ in range(hours * 20):
        cluster.wait(180)
    assert made(cluster) <= 2 * (hours * 2 + 8), "no more than twice in half an hour, and some in the first"
    cluster.broken = set()
    for _ in range(20):
        cluster.wait(180)
        for name in cluster.pods("Running"):
            cluster.phase(name, "Succeeded")
    assert {cluster.state("a"), cluster.state("b")} == {State.COMPLETE}


def test_two_elastic_jobs_beside_one_free_place_move_seldom() -> None:
    """Each is on both nodes, and there is one more place on each: the best is in reach of both in turn."""
    cluster = TrainingCluster(nodes=2, gpus=3, mover=True)
    for node in ("n0", "n1"):
        labels = {"fabric.koordra.io/block": f"block-{node}"}
        cluster.api.edit(NODES, node, lambda one, labels=labels: one["metadata"]["labels"].update(labels))
    cluster.job("a", framework="ElasticHorovod", least=2, most=2, migration=MOVES)
    cluster.job("b", framework="ElasticHorovod", least=2, most=2, migration=MOVES)
    cluster.settle()
    hours = 6
    for _ in range(hours * 6):
        cluster.wait(600)
    most = math.ceil(math.log2(hours * 3600 * 0.05 / 60)) + 1
    for name in ("a", "b"):
        assert cluster.status(name).get("moves", {"count": 0})["count"] <= most
        assert cluster.state(name) in (State.RUNNING, State.MIGRATING)
        assert len([pod for pod in cluster.pods("Running") if pod.startswith(f"{name}-0")]) >= 2

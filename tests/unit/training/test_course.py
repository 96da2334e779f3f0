"""A TrainingJob's course: states, failures, releases, moves, ends; with koordra's real allocation."""

from __future__ import annotations

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, SERVICES
from koordra.controller.training.training_job import State
from tests.unit.training.training_cluster import TrainingCluster, template


def test_an_elastic_job_takes_what_there_is_and_grows() -> None:
    cluster = TrainingCluster(gpus=3)
    cluster.job("other", framework="PyTorch", least=2, most=2)
    cluster.settle()
    cluster.job(least=1, most=3)
    cluster.settle()
    assert (cluster.state(), cluster.status()["running"]) == (State.RUNNING, 1)
    assert cluster.held() == ["train-001-0", "train-002-0"]
    for name in ("other-000-0", "other-001-0"):
        cluster.phase(name, "Succeeded")
    cluster.settle()
    assert cluster.state("other") is State.COMPLETE
    assert (cluster.status()["running"], cluster.held()) == (3, [])
    assert cluster.condition("Progress")["reason"] == "Whole"


def test_its_size_is_what_fits_now_in_the_fewest_blocks_and_on_whole_nodes() -> None:
    """n0 and n1 are of one block, in which a place is taken; n2 and n3 of another."""
    cluster = TrainingCluster(nodes=4, gpus=2)
    for at in range(4):
        labels = {"fabric.koordra.io/block": "near" if at < 2 else "far"}
        cluster.api.edit(NODES, f"n{at}", lambda one, labels=labels: one["metadata"]["labels"].update(labels))
    there = template(nodeSelector={"kubernetes.io/hostname": "n0"})
    cluster.job("other", framework="PyTorch", least=1, most=1, template=there)
    cluster.settle()
    cluster.job(least=4, most=4)
    cluster.settle()
    assert sorted(cluster.nodes_of()) == ["n2", "n2", "n3", "n3"]
    cluster.job("late", least=1, most=4)
    cluster.settle()
    assert sorted(cluster.nodes_of("late")) == ["n0", "n1", "n1"], "what is left"
    assert (cluster.state("late"), len(cluster.held())) == (State.RUNNING, 1)


def test_it_shrinks_as_it_is_told_and_for_others() -> None:
    cluster = TrainingCluster(gpus=3)
    cluster.job(least=1, most=3)
    cluster.settle()
    cluster.change(maxReplicas=2)
    cluster.settle()
    assert cluster.pods() == ["train-000-0", "train-001-0"]
    cluster.job("other", framework="PyTorch", least=1, most=1)
    cluster.settle()
    assert cluster.state("other") is State.RUNNING


def test_a_job_that_does_not_fit_waits_and_says_where_to_look() -> None:
    cluster = TrainingCluster(gpus=1)
    cluster.job(framework="PyTorch", least=2, most=2)
    cluster.settle()
    assert (cluster.state(), cluster.status()["replicas"]) == (State.WAITING, 0)
    assert "koordra explain gang/train" in cluster.condition("Progress")["message"]


def test_the_template_becomes_pods_of_a_gang() -> None:
    cluster = TrainingCluster()
    cluster.job(framework="MPI", least=2, most=2, topology="block")
    cluster.training_pass()
    pods = {objects.name(pod): pod for pod in cluster.api.all(PODS)}
    assert list(pods) == ["train-000-0", "train-001-0", "train-launcher-0"]
    (service,) = cluster.api.all(SERVICES)
    assert service["spec"]["selector"] == {"koordra.io/training-job": "train"}
    launcher, worker = pods["train-launcher-0"], pods["train-001-0"]
    assert objects.annotations_of(worker) == {
        "koordra.io/gang": "train",
        "koordra.io/gang-min": "3",
        "koordra.io/gang-topology": "block",
    }
    assert objects.labels_of(worker)["app"] == "x"
    assert (worker["spec"]["hostname"], worker["spec"]["subdomain"]) == ("train-001", "train")
    env = {one["name"]: one["value"] for one in launcher["spec"]["containers"][0]["env"]}
    assert env["OMPI_MCA_orte_default_hostfile"] == "/run/gang/hosts"
    assert env["OMPI_MCA_orte_keep_fqdn_hostnames"] == "true"
    assert worker["spec"]["restartPolicy"] == launcher["spec"]["restartPolicy"] == "Never"


def test_what_only_the_controller_says_is_not_said_for_a_tenant() -> None:
    cluster = TrainingCluster()
    forged = template()
    forged["metadata"]["annotations"] = {"gate.koordra.io/gang": "train", "koordra.io/gang": "other"}
    cluster.job(template=forged)
    cluster.training_pass()
    found = [objects.annotations_of(pod) for pod in cluster.api.all(PODS)]
    assert {name for one in found for name in one} == {"koordra.io/gang", "koordra.io/gang-min"}
    assert {one["koordra.io/gang"] for one in found} == {"train"}


def test_a_failed_replica_is_made_again_in_its_seat_after_a_pause_that_doubles() -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(least=1, most=2)
    cluster.settle()
    device = cluster.joint.devices(cluster.claim_of("train-001-0"))
    for attempt, pause in enumerate((10, 20, 40)):
        cluster.phase(f"train-001-{attempt}", "Failed")
        cluster.settle()
        cluster.wait(pause - 1)
        assert f"train-001-{attempt + 1}" not in cluster.pods()
        cluster.wait(1)
        assert f"train-001-{attempt + 1}" in cluster.pods("Running")
    assert cluster.joint.devices(cluster.claim_of("train-001-3")) == device
    assert "train-000-0" in cluster.pods("Running")


def test_a_job_fails_once_a_replica_has_failed_too_often() -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(least=1, most=2, backoffLimit=1)
    cluster.settle()
    cluster.phase("train-001-0", "Failed")
    cluster.wait(11)
    cluster.phase("train-001-1", "Failed")
    cluster.settle()
    assert cluster.state() is State.FAILED
    message = cluster.condition("Failed")["message"]
    assert message.startswith("replica 1 has failed 2 times, backoffLimit is 1; kubectl logs train-001-1")
    assert cluster.pods("Pending", "Running") == []
    assert cluster.pods("Failed") == ["train-001-0", "train-001-1"]
    cluster.start_again()
    cluster.delete(cluster.pods())
    cluster.wait(1000)
    assert (cluster.state(), cluster.pods()) == (State.FAILED, [])
    assert cluster.condition("Failed")["message"] == message


def test_disruptions_do_not_count() -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(least=1, most=2, backoffLimit=0)
    cluster.settle()
    for attempt in range(4):
        cluster.phase(f"train-001-{attempt}", "Failed", reason="Evicted")
        cluster.settle()
        cluster.wait(11)
        assert f"train-001-{attempt + 1}" in cluster.pods("Running")
    assert cluster.state() is State.RUNNING
    assert cluster.pods("Failed") == ["train-001-3"], "one of them tells when the last was"


@pytest.mark.parametrize("framework", ["PyTorch", "MPI"])
@pytest.mark.parametrize("how", ["failed", "deleted"])
def test_a_job_that_is_not_elastic_starts_anew_together(framework: str, how: str) -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(framework=framework, least=2, most=2)
    cluster.settle()
    before = set(cluster.pods("Running"))
    cluster.joint.pass_time(5)
    if how == "failed":
        cluster.phase("train-001-0", "Failed")
    else:
        cluster.delete(["train-001-0"])
    cluster.training_pass()
    cluster.others()
    for _ in range(5):
        cluster.wait(20)
    running = cluster.pods("Running")
    assert len(running) == len(before)
    assert cluster.state() is State.RUNNING
    made = {objects.name(pod): str(pod["metadata"]["creationTimestamp"]) for pod in cluster.api.all(PODS)}
    assert all(made[name] > "2026-11-21T00:16:41Z" for name in running), "all are new"


def test_ends() -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(framework="ElasticHorovod", least=1, most=2)
    cluster.settle()
    cluster.phase("train-launcher-0", "Succeeded")
    cluster.settle()
    assert (cluster.state(), cluster.pods()) == (State.COMPLETE, ["train-launcher-0"])
    cluster.job("e", least=1, most=3)
    cluster.settle()
    cluster.phase("e-000-0", "Succeeded")
    cluster.settle()
    assert cluster.state("e") is State.RUNNING, "one still runs"
    cluster.phase("e-001-0", "Succeeded")
    cluster.settle()
    assert cluster.state("e") is State.COMPLETE
    assert cluster.held() == []


def test_an_elastic_job_that_ends_in_part_has_failed() -> None:
    cluster = TrainingCluster(gpus=2)
    cluster.job(least=1, most=2)
    cluster.settle()
    cluster.phase("train-000-0", "Succeeded")
    cluster.phase("train-001-0", "Failed")
    cluster.settle()
    assert cluster.state() is State.FAILED
    assert cluster.condition("Failed")["reason"] == "EndedInPart"


def test_pods_that_do_not_come_up_give_their_places_up_and_keep_off_the_node() -> None:
    cluster = TrainingCluster(nodes=2, gpus=1)
    cluster.broken = {"n0", "n1"}
    cluster.job(framework="PyTorch", least=1, most=1, pendingSeconds=60)
    cluster.settle()
    (stuck,) = {cluster.node_of("train-000-0")}
    assert cluster.state() is State.PENDING
    cluster.wait(61)
    assert (cluster.state(), cluster.pods()) == (State.WAITING, [])
    assert cluster.condition("Released")["status"] == "True"
    cluster.job("next", framework="PyTorch", least=2, most=2)
    cluster.settle()
    assert cluster.state("next") is State.PENDING, "nothing is held for the job that gave up"
    cluster.delete_job("next")
    cluster.broken = {stuck}
    cluster.wait(61)
    assert cluster.condition("Released")["status"] == "False"
    assert cluster.node_of("train-000-0") not in (None, stuck)
    assert cluster.state() is State.RUNNING


def test_a_replica_beyond_the_least_is_released_alone() -> None:
    cluster = TrainingCluster(nodes=3, gpus=1)
    cluster.job(least=1, most=2, pendingSeconds=60)
    cluster.training_pass()
    cluster.others()
    cluster.settle()
    broken = cluster.node_of("train-001-0")
    cluster.broken = {str(broken)}
    cluster.delete(["train-001-0"])
    cluster.settle()
    assert cluster.node_of("train-001-0") == broken, "its seat"
    cluster.wait(61)
    assert cluster.pods() == ["train-000-0"]
    assert cluster.state() is State.RUNNING
    for _ in range(12):
        cluster.wait(60)
    assert cluster.node_of("train-001-0") not in (None, broken)
    assert len(cluster.pods("Running")) == 2


def test_a_pod_of_somebody_else_with_the_name_of_the_service_is_told() -> None:
    cluster = TrainingCluster()
    cluster.api.create(SERVICES, {"metadata": {"name": "train"}, "spec": {}})
    cluster.job()
    cluster.settle()
    assert cluster.pods() == []
    cluster.training_pass()
    assert "there is a Service train that is not this job's" in cluster.condition("Trouble")["message"]
    cluster.api.delete(SERVICES, "train")
    cluster.wait(20)
    assert cluster.condition("Trouble")["status"] == "False"
    assert cluster.state() is State.RUNNING


def test_a_pod_of_somebody_else_with_the_name_of_a_replica_is_told() -> None:
    cluster = TrainingCluster()
    cluster.api.create(PODS, {"metadata": {"name": "train-000-0"}, "spec": {}})
    cluster.job()
    cluster.settle()
    cluster.training_pass()
    assert "there is a Pod train-000-0 that is not this job's" in cluster.condition("Trouble")["message"]


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_clocks_of_nodes_decide_nothing(skew: int) -> None:
    """A static job whose kubelets are an hour behind, or ahead: its failed replica is made again, and all
    start together, after the pause."""
    cluster = TrainingCluster(gpus=2)
    cluster.joint.now += 4000
    cluster.job(framework="PyTorch", least=2, most=2)
    cluster.settle()
    there = cluster.joint.timestamp
    cluster.joint.now += skew
    cluster.phase("train-001-0", "Failed")
    cluster.joint.now -= skew
    assert there() == cluster.joint.timestamp()
    for _ in range(6):
        cluster.wait(10)
    assert cluster.pods("Running") == ["train-000-0", "train-001-1"]
    writes = len(cluster.api.writes)
    cluster.wait(60)
    assert len(cluster.api.writes) == writes


def test_forged_pods_change_nothing() -> None:
    """Labels of the job without its owner reference, and an owner reference without its labels."""
    cluster = TrainingCluster()
    job = cluster.job()
    labels = {"koordra.io/training-job": "train", "koordra.io/training-replica": "0"}
    cluster.api.create(
        PODS, {"metadata": {"name": "x-0", "labels": labels}, "spec": {}, "status": {"phase": "Succeeded"}}
    )
    owner = [{"controller": True, "uid": objects.uid(job)}]
    cluster.api.create(PODS, {"metadata": {"name": "y", "ownerReferences": owner}, "spec": {}})
    cluster.settle()
    assert cluster.state() is State.RUNNING
    assert {"x-0", "y"} <= set(cluster.pods())


MOVES = {"policy": "WhenItPays", "idleSeconds": 60, "gainPercent": 5}


def spread(least: int = 2, **more: object) -> TrainingCluster:
    """Two blocks of a node with two GPUs, and a job in both of them, since others had one GPU of each when it
    started. They have ended."""
    cluster = TrainingCluster(nodes=2, gpus=2, mover=True)
    for node in ("n0", "n1"):
        labels = {"fabric.koordra.io/block": f"block-{node}"}
        cluster.api.edit(NODES, node, lambda one, labels=labels: one["metadata"]["labels"].update(labels))
    for name, node in (("x", "n0"), ("y", "n1")):
        there = template(nodeSelector={"kubernetes.io/hostname": node})
        cluster.job(name, framework="PyTorch", least=1, most=1, template=there)
    cluster.settle()
    cluster.job(least=least, most=2, migration=MOVES, **more)
    cluster.settle()
    assert sorted(cluster.nodes_of()) == ["n0", "n1"]
    for name in ("x", "y"):
        cluster.phase(f"{name}-000-0", "Succeeded")
    cluster.settle()
    return cluster


def test_a_move_pays_after_a_while_and_ends_where_it_should() -> None:
    cluster = spread()
    stays = cluster.node_of("train-000-0")
    cluster.wait(1190)
    assert cluster.state() is State.RUNNING, "0.05 x 1190 s are less than 60 s"
    cluster.joint.pass_time(10)
    cluster.training_pass()
    cluster.claim_controller()
    cluster.joint.settle()
    cluster.training_pass()
    assert cluster.state() is State.MIGRATING
    assert {"train-000-0", "train-001-0", "train-001m-0"} <= set(cluster.pods())
    assert cluster.node_of("train-001m-0") == stays, "placed, and what it replaces still runs"
    cluster.settle()
    assert (cluster.state(), cluster.nodes_of()) == (State.RUNNING, [stays, stays])
    assert cluster.pods("Running") == ["train-000-0", "train-001m-0"]
    assert cluster.status()["moves"]["count"] == 1
    cluster.job("next", framework="PyTorch", least=2, most=2)
    cluster.settle()
    assert cluster.state("next") is State.RUNNING, "nothing is held where it was"
    before = len(cluster.api.writes)
    cluster.wait(60_000)
    assert cluster.status()["moves"]["count"] == 1, "it is where it should be"
    assert len(cluster.api.writes) == before


def test_nobody_moves_without_room_or_while_others_wait() -> None:
    cluster = spread()
    cluster.job("next", framework="PyTorch", least=3, most=3)
    cluster.settle()
    cluster.wait(1300)
    assert cluster.status().get("moves") is None, "room is kept for who has waited for so long"
    cluster = spread()
    cluster.job("next", framework="PyTorch", least=1, most=1)
    cluster.job("last", framework="PyTorch", least=1, most=1)
    cluster.settle()
    cluster.wait(5000)
    assert cluster.status().get("moves") is None, "there is no room"
    cluster.delete_job("next")
    cluster.delete_job("last")
    cluster.wait(5000)
    assert cluster.status()["moves"]["count"] == 1


def test_a_move_that_does_not_come_up_is_given_up() -> None:
    cluster = spread()
    stays = str(cluster.node_of("train-000-0"))
    cluster.broken = {stays}
    cluster.wait(1200)
    assert cluster.state() is State.MIGRATING
    cluster.wait(601)
    assert cluster.pods("Running", "Pending") == ["train-000-0", "train-001-0"]
    assert cluster.state() is State.RUNNING
    cluster.wait(500)
    assert cluster.status()["moves"]["count"] == 1, "the next one has to pay twice as much"

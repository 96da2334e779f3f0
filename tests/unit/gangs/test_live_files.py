"""What a gang is now, in the pods that have a volume for it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable

import pytest

from koordra.api import objects
from koordra.api.kinds import PODS
from koordra.controller.gangs.declared.annotations import (
    GANG,
    GANG_MAX,
    GANG_MIN,
    LIVE_DIGEST,
    LIVE_ENV,
    LIVE_HOSTS,
    LIVE_RUNNING,
)
from koordra.controller.gangs.live import texts, writes
from koordra.errors import ApiUnreachable, Invalid
from tests.fakes.gang_world import live_volume
from tests.fakes.joint_cluster import JointCluster, pod
from tests.fakes.kube_api import Killed, Write
from tests.unit.gangs.test_seats import Jobs

ALL = (LIVE_HOSTS, LIVE_RUNNING, LIVE_ENV)
ELASTIC = {GANG_MAX: "9"}


@pytest.fixture
def cluster() -> JointCluster:
    return JointCluster(nodes=2, gpus=2)


@pytest.fixture
def jobs(cluster: JointCluster) -> Jobs:
    return Jobs(cluster)


def said(cluster: JointCluster, name: str, annotation: str) -> str:
    return objects.annotations_of(cluster.api.get(PODS, name)).get(annotation, "nothing")


def elastic(jobs: Jobs, *indexes: int, files: tuple[str, ...] = ALL) -> list[str]:
    volumes = {"volumes": [live_volume(*files)]} if files else {}
    return [jobs.make("train", index, least=2, terms=ELASTIC, **volumes) for index in indexes]


def writes_to(cluster: JointCluster, name: str) -> int:
    return sum(
        (write.verb, write.kind, write.name) == ("patch", "pods", name) for write in cluster.api.writes
    )


def lines(*pods: str, form: str = "{} slots=1") -> str:
    return "".join(f"{form.format(name)}\n" for name in pods)


def test_whoever_starts_reads_the_whole_gang(cluster: JointCluster, jobs: Jobs) -> None:
    """In the write that lifts its gate: no container can be too early."""
    pods = elastic(jobs, 0, 1, 2)
    cluster.settle()
    for name in pods:
        assert writes_to(cluster, name) == 1
        assert said(cluster, name, LIVE_HOSTS) == lines(*pods)
        assert said(cluster, name, LIVE_RUNNING) == ""
    assert said(cluster, pods[2], LIVE_ENV) == (
        f"KOORDRA_GANG=train\nKOORDRA_GANG_SIZE=3\nKOORDRA_RANK=2\nKOORDRA_LEADER={pods[0]}\n"
    )


def test_a_gang_that_grows_and_shrinks_is_told(cluster: JointCluster, jobs: Jobs) -> None:
    pods = elastic(jobs, 0, 1)
    cluster.settle()
    jobs.run(*pods)
    cluster.settle()
    assert said(cluster, pods[0], LIVE_RUNNING) == lines(*pods, form="{}:1")
    more = elastic(jobs, 2)
    cluster.settle()
    cluster.pass_time(writes.PAUSE + 1)
    cluster.settle()
    assert said(cluster, pods[0], LIVE_HOSTS) == lines(*pods, *more)
    assert said(cluster, pods[0], LIVE_RUNNING) == lines(*pods, form="{}:1"), "it has not started yet"
    jobs.run(*more)
    jobs.lose(pods[1])
    cluster.pass_time(writes.PAUSE + 1)
    cluster.settle()
    for name in (pods[0], more[0]):
        assert said(cluster, name, LIVE_HOSTS) == lines(pods[0], more[0])
        assert said(cluster, name, LIVE_RUNNING) == lines(pods[0], more[0], form="{}:1")
    assert "KOORDRA_GANG_SIZE=2\n" in said(cluster, pods[0], LIVE_ENV)


def test_a_launcher_without_claims_reads_it(cluster: JointCluster, jobs: Jobs) -> None:
    pods = [jobs.make("train", index, least=3) for index in range(2)]
    body = pod("launcher", (), gates=["koordra.io/joint-allocation"], volumes=[live_volume(*ALL)])
    body["metadata"]["annotations"] = {GANG: "train", GANG_MIN: "3"}
    cluster.api.create(PODS, body)
    cluster.settle()
    assert said(cluster, "launcher", LIVE_HOSTS) == lines(*pods)
    assert f"KOORDRA_LEADER={pods[0]}\n" in said(cluster, "launcher", LIVE_ENV)
    assert "KOORDRA_RANK" not in said(cluster, "launcher", LIVE_ENV), "nobody has told it one"
    assert said(cluster, pods[0], LIVE_HOSTS) == "nothing", "it has no file for it"


def test_a_projected_volume_is_read_and_only_its_files_are_written(cluster: JointCluster, jobs: Jobs) -> None:
    projected = {"name": "gang", "projected": {"sources": [live_volume(LIVE_ENV)]}}
    pods = [jobs.make("train", index, volumes=[projected]) for index in range(2)]
    cluster.settle()
    assert said(cluster, pods[1], LIVE_ENV).startswith("KOORDRA_GANG=train\n")
    assert said(cluster, pods[1], LIVE_HOSTS) == "nothing"


def test_changes_in_quick_succession_are_told_together(cluster: JointCluster, jobs: Jobs) -> None:
    pods = elastic(jobs, 0, 1)
    cluster.settle()
    jobs.run(*pods)
    cluster.settle()
    before = writes_to(cluster, pods[0])
    for index in (2, 3):
        more = elastic(jobs, index, files=())
        cluster.settle()
        jobs.run(*more)
        cluster.settle()
        cluster.pass_time(1)
    assert writes_to(cluster, pods[0]) == before, "the gang has been told a moment ago"
    cluster.pass_time(writes.PAUSE)
    cluster.settle()
    assert writes_to(cluster, pods[0]) == before + 1
    assert said(cluster, pods[0], LIVE_HOSTS).count("\n") == 4
    cluster.pass_time(10 * writes.PAUSE)
    cluster.settle()
    assert writes_to(cluster, pods[0]) == before + 1, "nothing has changed"


def test_a_pass_writes_no_more_than_it_may(
    cluster: JointCluster, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "MOST_WRITES", 1)
    pods = elastic(jobs, 0, 1, 2)
    cluster.settle()
    jobs.run(*pods)
    before = [writes_to(cluster, name) for name in pods]
    told = []
    for _ in range(4):
        cluster.settle(passes=1)
        told.append(sum(writes_to(cluster, name) for name in pods) - sum(before))
    assert told == [1, 2, 3, 3]


@pytest.mark.parametrize("fault", [Killed, lambda: ApiUnreachable("lost")])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(3))
def test_who_follows_a_killed_controller_tells_the_rest(
    cluster: JointCluster, jobs: Jobs, step: int, when: str, fault: Callable[[], BaseException]
) -> None:
    pods = elastic(jobs, 0, 1, 2)
    cluster.settle()
    jobs.run(*pods)
    seen = -1

    def explode(write: Write) -> None:
        nonlocal seen
        seen += write.kind == "pods"
        if seen == step:
            raise fault()

    setattr(cluster.api, when, explode)
    with contextlib.suppress(Killed, ApiUnreachable):
        cluster.settle()
    assert seen >= step
    setattr(cluster.api, when, lambda _write: None)
    cluster.start_again()
    cluster.settle()
    cluster.pass_time(writes.PAUSE + 1)
    cluster.settle()
    assert {said(cluster, name, LIVE_RUNNING) for name in pods} == {lines(*pods, form="{}:1")}


def test_a_pod_whose_annotations_are_full_starts_all_the_same(cluster: JointCluster, jobs: Jobs) -> None:
    pods = elastic(jobs, 0, 1)
    send = cluster.api.patch

    def refuse(kind: object, name: str, body: object, **more: object) -> object:
        if LIVE_DIGEST in str(body) and name == pods[1]:
            raise Invalid("metadata.annotations: Too long", code=422)
        return send(kind, name, body, **more)  # type: ignore[arg-type]

    cluster.api.patch = refuse  # type: ignore[method-assign,assignment]
    cluster.settle()
    assert not cluster.api.get(PODS, pods[1])["spec"].get("schedulingGates")
    assert said(cluster, pods[0], LIVE_HOSTS) == lines(*pods)
    assert said(cluster, pods[1], LIVE_HOSTS) == "nothing"


def test_where_there_is_no_room_for_all_the_launcher_has_it(
    cluster: JointCluster, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MOST_OF_GANG", 2 * len("train-0-1 slots=1\n" * 2))
    pods = elastic(jobs, 0, 1)
    body = pod("launcher", (), gates=["koordra.io/joint-allocation"], volumes=[live_volume(LIVE_HOSTS)])
    body["metadata"]["annotations"] = {GANG: "train", GANG_MIN: "2", **ELASTIC}
    body["metadata"]["name"] = "zlauncher"
    cluster.api.create(PODS, body)
    monkeypatch.setattr(texts, "MOST_OF_POD", 1000)
    cluster.settle()
    assert said(cluster, "zlauncher", LIVE_HOSTS) == lines(*pods)
    assert said(cluster, pods[0], LIVE_HOSTS) == lines(*pods)
    assert said(cluster, pods[1], LIVE_HOSTS) == ""
    assert "KOORDRA_HOSTS_LEFT_OUT=2\n" in said(cluster, pods[1], LIVE_ENV)


def test_a_shell_reads_the_variables_and_nothing_else(cluster: JointCluster) -> None:
    hostile = {"block": "$(touch x)'`id`", "example.com/rack": "r1", "zone": "eu 1"}
    text = texts._as_shell({"KOORDRA_GANG": "train:0"}, hostile)
    script = f'{text}\nprintf \'%s|\' "$KOORDRA_BLOCK" "$KOORDRA_ZONE" "$KOORDRA_GANG"'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "$(touch x)'`id`|eu 1|train:0|"
    assert "rack" not in text.lower(), "no variable of a shell may be called so"

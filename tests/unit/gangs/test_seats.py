"""A started gang keeps its seats: what a member had is held for the pod that is made in its place."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, NODES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import (
    COMMITTED,
    GANG,
    GANG_HOLD,
    GANG_MIN,
    GANG_ROLE,
    GANG_START_AFTER,
)
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.controller.gangs.seats.device_holds import SPARED_AFTER
from koordra.controller.gangs.seats.job_owner import (
    JOBS,
    JOBSETS,
    KUBEFLOW_JOBS,
    LEADER_WORKER_SETS,
    LOOK_AGAIN,
    MPI_JOBS,
    POD_CLIQUE_SETS,
    RAY_CLUSTERS,
    STATEFUL_SETS,
    VOLCANO_JOBS,
)
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.metrics import Metrics
from tests.fakes.admission_policy import policies, refusal
from tests.fakes.joint_cluster import JointCluster, claim, pod
from tests.fakes.kube_api import Killed, Write
from tests.fakes.metric_samples import sample

HOLD = 60.0
GANGS = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "gangs"


class Jobs:
    """Jobs whose pods have claims of a template, and what becomes of both."""

    def __init__(self, cluster: JointCluster) -> None:
        self.cluster = cluster
        self.made = 0
        self.kind = {"apiVersion": "batch/v1", "kind": "Job"}

    def make(self, job: str, index: int | None, *, least: int = 2, **more: Any) -> str:
        """A pod of the Job, its number as its label; its name is new each time."""
        self.made += 1
        name = f"{job}-{index}-{self.made}"
        said = {GANG: job, GANG_MIN: str(least), GANG_HOLD: f"{HOLD:.0f}s", **more.pop("terms", {})}
        owner = {
            **self.kind,
            "name": job,
            "uid": f"uid-{job}",
            "controller": True,
        }
        entries = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        count, memory = more.pop("count", 1), more.pop("memory", None)
        body = pod(name, (), gates=[names.JOINT_GATE], **more, resourceClaims=entries)
        labels = {} if index is None else {COMPLETION_INDEX: str(index)}
        body["metadata"] |= {"annotations": said, "labels": labels, "ownerReferences": [owner]}
        made = f"{name}-gpu"
        body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": made}]
        found = self.cluster.api.create(PODS, body)
        self.cluster.api.create(RESOURCE_CLAIMS, claim(made, owner=found, count=count, memory=memory))
        return name

    def run(self, *pods: str) -> None:
        for name in pods:
            self.cluster.scheduler_binds(name, f"{name}-gpu")
            self.cluster.api.edit(PODS, name, lambda found: found["status"].update(phase="Running"))

    def lose(self, *pods: str) -> None:
        """Deleted; its claim goes with it."""
        for name in pods:
            self.cluster.pod_ends(name, f"{name}-gpu")
            self.cluster.api.edit(
                RESOURCE_CLAIMS, f"{name}-gpu", lambda one: one["metadata"].pop("finalizers")
            )
            self.cluster.api.delete(RESOURCE_CLAIMS, f"{name}-gpu")

    def end(self, job: str) -> None:
        """The garbage collector's work."""
        for kind in (PODS, DEVICE_HOLDS):
            for obj in self.cluster.api.all(kind):
                if any(one["uid"] == f"uid-{job}" for one in obj["metadata"].get("ownerReferences") or ()):
                    self.cluster.api.delete(kind, objects.name(obj))

    def start(self, job: str, size: int, **more: Any) -> list[str]:
        pods = [self.make(job, index, least=size, **more) for index in range(size)]
        self.cluster.settle()
        self.run(*pods)
        self.cluster.settle()
        return pods

    def devices(self, name: str) -> list[str]:
        return self.cluster.devices(f"{name}-gpu")


def holds(cluster: JointCluster) -> list[Object]:
    return cluster.api.all(DEVICE_HOLDS)


def seats(cluster: JointCluster) -> dict[str, str]:
    """By name, until when each is held."""
    return {
        one.get("name", ""): one.get("until", "") for hold in holds(cluster) for one in hold["spec"]["seats"]
    }


@pytest.fixture
def cluster() -> JointCluster:
    return JointCluster(nodes=2, gpus=2)


@pytest.fixture
def jobs(cluster: JointCluster) -> Jobs:
    return Jobs(cluster)


def test_the_seats_are_in_the_api_before_the_first_gate_is_lifted(cluster: JointCluster, jobs: Jobs) -> None:
    pods = [jobs.make("train", index) for index in range(2)]
    recorded: list[bool] = []

    def look(write: Write) -> None:
        if write.kind == "pods":
            recorded.append(len(seats(cluster)) == 2)

    cluster.api.before = look
    cluster.settle()
    assert recorded == [True, True]
    (hold,) = holds(cluster)
    assert hold["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train"}
    ]
    assert hold["spec"]["owner"] == "gang default/train"
    written = {(one["node"], one["devices"][0]["device"]) for one in hold["spec"]["seats"]}
    assert {f"{node}/{device}" for node, device in written} == {jobs.devices(name)[0] for name in pods}
    assert [write.kind for write in cluster.api.writes].count("deviceholds") == 1


def test_when_the_first_held_seat_ends_is_shown_while_one_is_held(cluster: JointCluster, jobs: Jobs) -> None:
    metrics = Metrics()
    instruments, figures = ControllerMetrics(metrics), LeaderFigures(metrics, node_metrics=False)

    def shown() -> float | None:
        cluster.reconciler.count(instruments, figures, term=threading.Event())
        return sample(metrics, "koordra_controller_held_seat_end_timestamp_seconds")

    pods = jobs.start("train", 4)
    assert shown() is None
    jobs.lose(pods[0])
    cluster.settle()
    (until,) = filter(None, seats(cluster).values())
    assert shown() == datetime.fromisoformat(until).timestamp()


def test_a_lost_seat_waits_for_who_is_made_in_its_place(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    seat = jobs.devices(pods[0])
    jobs.lose(pods[0])
    other = [jobs.make("other", 0, least=1)]
    cluster.settle()
    cluster.pass_time(HOLD - 2)
    cluster.settle()
    assert jobs.devices(other[0]) == [], "what the gang lost was given to somebody else"
    told = [one.message for one in cluster.told if any(objects.name(obj) == other[0] for obj in one.about)]
    assert any("held for gang default/train until 2026-11-21T" in text for text in told), told
    again = jobs.make("train", 0, least=4)
    cluster.settle()
    assert jobs.devices(again) == seat
    assert COMMITTED in objects.annotations_of(cluster.api.get(PODS, again))
    assert set(seats(cluster).values()) == {""}


def test_a_seat_is_of_its_position_alone(cluster: JointCluster, jobs: Jobs) -> None:
    """Two are lost; who comes back gets its own, whichever comes first."""
    pods = jobs.start("train", 4)
    mine = {index: jobs.devices(pods[index]) for index in (1, 2)}
    jobs.lose(pods[1], pods[2])
    cluster.settle()
    for index in (2, 1):
        again = jobs.make("train", index, least=4)
        cluster.settle()
        assert jobs.devices(again) == mine[index]


def test_seats_without_a_position_are_anybodys_of_the_gang(cluster: JointCluster, jobs: Jobs) -> None:
    pods = [jobs.make("train", None, least=4) for _ in range(4)]
    cluster.settle()
    jobs.run(*pods)
    cluster.settle()
    lost = sorted(jobs.devices(pods[1]) + jobs.devices(pods[3]))
    jobs.lose(pods[1], pods[3])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    again = [jobs.make("train", None, least=4) for _ in range(2)]
    cluster.settle()
    assert sorted(device for name in again for device in jobs.devices(name)) == lost
    assert jobs.devices(other) == []


def test_the_hold_ends_at_its_time(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    jobs.lose(pods[1])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    cluster.pass_time(HOLD + 1)
    cluster.settle()
    assert jobs.devices(other)
    assert len(seats(cluster)) == 4, "the three that live, and the other job's"


def test_the_hold_counts_from_the_loss_whoever_leads(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    jobs.lose(pods[1])
    cluster.settle()
    cluster.pass_time(HOLD / 2)
    cluster.start_again()
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    assert jobs.devices(other) == []
    cluster.pass_time(HOLD / 2 + 1)
    cluster.settle()
    assert jobs.devices(other)


def test_a_loss_that_no_leader_saw_is_held(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    seat = jobs.devices(pods[2])
    jobs.lose(pods[2])
    other = jobs.make("other", 0, least=1)
    cluster.start_again()
    cluster.settle()
    assert jobs.devices(other) == []
    again = jobs.make("train", 2, least=4)
    cluster.settle()
    assert jobs.devices(again) == seat


def test_a_group_that_is_remade_as_a_whole_gets_what_it_had(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    had = [jobs.devices(name) for name in pods]
    jobs.lose(*pods)
    other = jobs.make("other", 0, least=1)
    cluster.start_again()
    cluster.settle()
    again = [jobs.make("train", index, least=4) for index in (3, 1, 0, 2)]
    cluster.settle()
    assert jobs.devices(other) == []
    assert [jobs.devices(again[at]) for at in (2, 1, 3, 0)] == had


def test_the_hold_ends_with_the_job(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    jobs.lose(pods[1])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    assert jobs.devices(other) == []
    jobs.end("train")
    cluster.settle()
    assert jobs.devices(other)


def done(type: str) -> Object:
    return {"status": {"conditions": [{"type": "Other", "status": "True"}, {"type": type, "status": "True"}]}}


PAUSED: Object = {"spec": {"runPolicy": {"suspend": True}}}
OVER = [
    (JOBS, {"spec": {"suspend": True}}),
    (JOBS, done("FailureTarget")),
    (JOBSETS, {"spec": {"suspend": True}}),
    (JOBSETS, done("Completed")),
    (RAY_CLUSTERS, {"spec": {"suspend": True}, "status": {"state": "suspended"}}),
    (MPI_JOBS, PAUSED),
    *((kind, PAUSED) for kind in KUBEFLOW_JOBS),
    (KUBEFLOW_JOBS[0], done("Succeeded")),
    (VOLCANO_JOBS, {"status": {"state": {"phase": "Aborted"}}}),
    *((kind, {"spec": {"replicas": 0}}) for kind in (STATEFUL_SETS, LEADER_WORKER_SETS, POD_CLIQUE_SETS)),
]
GOES_ON = [
    (JOBS, {"spec": {"suspend": False}}),
    (JOBS, {"status": {"conditions": [{"type": "Failed", "status": "False"}]}}),
    (MPI_JOBS, {"spec": {"runPolicy": {"suspend": False}}, **done("Running")}),
    (RAY_CLUSTERS, {"spec": {}, "status": {"state": "ready"}}),
    (VOLCANO_JOBS, {"spec": {"suspend": 1, "runPolicy": "x"}, "status": {"state": {"phase": "Restarting"}}}),
    (STATEFUL_SETS, {"spec": {"replicas": 1}}),
]


def _kind_of(case: Any) -> str | None:
    return case.kind if isinstance(case, Kind) else None


def loses_all_but_one(cluster: JointCluster, jobs: Jobs, kind: Kind, job: Object) -> str:
    """Another pod, that waits for what a job had which is as told by now."""
    jobs.kind = kind.type_meta
    pods = jobs.start("train", 4)
    made = {"metadata": {"name": "train", "uid": "uid-train"}, **job}
    cluster.api.create(kind, made, namespace="default")
    jobs.lose(*pods[1:])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    return other


@pytest.mark.parametrize(("kind", "job"), OVER, ids=_kind_of)
def test_a_job_that_makes_no_pods_any_more_holds_nothing(
    cluster: JointCluster, jobs: Jobs, kind: Kind, job: Object
) -> None:
    assert jobs.devices(loses_all_but_one(cluster, jobs, kind, job))


@pytest.mark.parametrize(("kind", "job"), GOES_ON, ids=_kind_of)
def test_a_job_that_goes_on_holds(cluster: JointCluster, jobs: Jobs, kind: Kind, job: Object) -> None:
    assert jobs.devices(loses_all_but_one(cluster, jobs, kind, job)) == []


def test_what_was_held_before_a_job_was_suspended_is_free_soon(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    goes_on = {"metadata": {"name": "train", "uid": "uid-train"}, "spec": {"suspend": False}}
    cluster.api.create(JOBS, goes_on, namespace="default")
    jobs.lose(pods[1])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    assert jobs.devices(other) == []
    cluster.api.edit(JOBS, "train", lambda found: found["spec"].update(suspend=True))
    assert (cluster.settle() or LOOK_AGAIN) <= LOOK_AGAIN
    cluster.pass_time(LOOK_AGAIN)
    cluster.settle()
    assert jobs.devices(other)


def test_a_member_that_ended_well_leaves_nothing_held(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    cluster.api.edit(PODS, pods[0], lambda found: found["status"].update(phase="Succeeded"))
    cluster.api.edit(RESOURCE_CLAIMS, f"{pods[0]}-gpu", lambda found: found.update(status={}))
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    assert jobs.devices(other)


def test_a_more_urgent_pod_takes_what_is_held(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    jobs.lose(pods[1])
    cluster.settle()
    urgent = jobs.make("urgent", 0, least=1, priority=5)
    cluster.claim("single")
    cluster.pod("single", "single", gates=[names.JOINT_GATE], priority=3)
    cluster.settle()
    assert jobs.devices(urgent)
    assert cluster.devices("single") == []


def test_a_more_urgent_single_pod_takes_what_is_held(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4)
    jobs.lose(pods[1])
    cluster.settle()
    cluster.claim("single")
    cluster.pod("single", "single", gates=[names.JOINT_GATE], priority=3)
    cluster.settle()
    assert cluster.devices("single")


def test_without_a_hold_it_is_as_before(cluster: JointCluster, jobs: Jobs) -> None:
    pods = jobs.start("train", 4, terms={GANG_HOLD: "0"})
    jobs.lose(pods[1])
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    assert jobs.devices(other)
    assert [hold["spec"]["owner"] for hold in holds(cluster)] == ["gang default/other"]


def test_a_seat_on_a_cordoned_node_is_exchanged(cluster: JointCluster, jobs: Jobs) -> None:
    cluster = JointCluster(nodes=3, gpus=2)
    jobs = Jobs(cluster)
    pods = jobs.start("train", 4)
    gone = jobs.devices(pods[1])[0].partition("/")[0]
    jobs.lose(pods[1])
    cluster.settle()
    cluster.api.edit(NODES, gone, lambda found: found["spec"].update(unschedulable=True))
    again = jobs.make("train", 1, least=4)
    cluster.settle()
    assert not jobs.devices(again)[0].startswith(f"{gone}/")
    assert set(seats(cluster).values()) == {""}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(14))
def test_killed_at_any_write_no_seat_is_lost(step: int, after: bool) -> None:
    """The controller dies at a write of the start, of the loss or of the return; its successor goes on."""
    cluster = JointCluster(nodes=2, gpus=2)
    jobs, seen = Jobs(cluster), 0

    def dies(write: Write) -> None:
        nonlocal seen
        seen += write.verb == "patch" or (write.kind == "deviceholds" and write.verb == "create")
        if seen == step + 1 and (write.verb == "patch" or write.kind == "deviceholds"):
            seen += 100
            raise Killed

    def passes() -> None:
        setattr(cluster.api, "after" if after else "before", dies)
        try:
            cluster.settle()
        except Killed:
            cluster.api.before = cluster.api.after = lambda _write: None
            cluster.start_again()
            cluster.settle()
        cluster.api.before = cluster.api.after = lambda _write: None

    pods = [jobs.make("train", index, least=4) for index in range(4)]
    passes()
    jobs.run(*pods)
    passes()
    seat = jobs.devices(pods[3])
    jobs.lose(pods[3])
    other = jobs.make("other", 0, least=1)
    passes()
    again = jobs.make("train", 3, least=4)
    passes()
    assert jobs.devices(again) == seat
    assert jobs.devices(other) == []
    assert COMMITTED in objects.annotations_of(cluster.api.get(PODS, again))
    assert len(seats(cluster)) == 4
    assert set(seats(cluster).values()) == {""}


@pytest.mark.parametrize(
    ("account", "may"), [("koordra-controller", True), ("system:serviceaccount:team:operator", False)]
)
def test_only_who_decides_about_devices_writes_what_is_held(account: str, may: bool) -> None:
    (policy,) = policies(GANGS / "device-holds.yaml").values()
    hold = {"metadata": {"name": "h"}, "spec": {"owner": "gang team/train", "seats": []}}
    other = {**hold, "spec": {**hold["spec"], "priority": 9}}
    labelled = {**hold, "metadata": {"name": "h", "labels": {"a": "b"}}}

    def said(old: Object | None, new: Object) -> bool:
        return refusal(policy, old, new, account=account, decides=may) is None

    assert said(None, hold) is may
    assert said(hold, other) is may
    assert said(hold, labelled), "what is held is the same"


@pytest.mark.parametrize("spared", [False, True])
def test_a_member_that_was_to_be_evicted_and_stays_has_its_seat_again(
    cluster: JointCluster, jobs: Jobs, *, spared: bool
) -> None:
    """Its eviction was refused, or nobody needs it any more."""
    pods = jobs.start("train", 4)
    uid = objects.uid(cluster.api.get(PODS, pods[1]))
    cluster.reconciler.allocation.gangs.holds.give_up("default/train", {uid})
    cluster.settle()
    cluster.pass_time(SPARED_AFTER + 1 if spared else SPARED_AFTER - 1)
    cluster.settle()
    jobs.lose(pods[1])
    cluster.settle()
    assert [bool(until) for until in seats(cluster).values()].count(True) == spared


def test_a_member_that_is_lost_before_its_turn_gets_its_seat_again(cluster: JointCluster, jobs: Jobs) -> None:
    """It has its devices, and waits for the role before it to be Ready."""

    def terms(index: int) -> dict[str, str]:
        return {GANG_ROLE: "workers", GANG_START_AFTER: "head"} if index else {GANG_ROLE: "head"}

    pods = [jobs.make("train", index, least=3, terms=terms(index)) for index in range(3)]
    cluster.settle()
    jobs.run(pods[0])
    cluster.settle()
    had = jobs.devices(pods[2])
    assert objects.spec_of(cluster.api.get(PODS, pods[2])).get("schedulingGates")
    assert had
    jobs.lose(pods[2])
    cluster.settle()
    other = jobs.make("other", 0, least=1, count=2)
    again = jobs.make("train", 2, least=3, terms=terms(2))
    cluster.settle()
    assert (jobs.devices(again), jobs.devices(other)) == (had, [])
    cluster.api.edit(
        PODS, pods[0], lambda one: one["status"].update(conditions=[{"type": "Ready", "status": "True"}])
    )
    cluster.settle()
    assert COMMITTED in objects.annotations_of(cluster.api.get(PODS, again))

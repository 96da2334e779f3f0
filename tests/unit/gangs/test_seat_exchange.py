"""A held seat that does not do any more is exchanged before its pod comes, in the domain of its gang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG_ROLE, GANG_ROLE_TOPOLOGY, GANG_TOPOLOGY
from koordra.controller.gangs.declared.gang_ref import GangRef
from koordra.controller.gangs.declared.terms import Terms, terms_of
from koordra.controller.gangs.declared.workload_kind import KUBEFLOW
from koordra.controller.gangs.events import SEAT_EXCHANGED, SEAT_UNFIT
from koordra.controller.gangs.expected import seat_exchange
from koordra.controller.gangs.expected.job_reader import READ_AGAIN
from koordra.controller.gangs.seats.job_owner import KUBEFLOW_JOBS
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster, claim
from tests.fakes.kube_api import Killed, Write
from tests.unit.gangs.test_seats import Jobs, holds

ZONE = "topology.kubernetes.io/zone"


class Seats:
    """A gang of two on nodes of their own, and a node to spare; `lost`: where the member that is lost was."""

    def __init__(self, *, zones: str = "", gpus: int = 2, terms: dict[str, str] | None = None) -> None:
        self.cluster = JointCluster(nodes=len(zones) or 3, gpus=gpus)
        for number, zone in enumerate(zones):
            label(self.cluster, f"n{number}", zone)
        self.cluster.start_again()
        self.jobs = Jobs(self.cluster)
        self.terms = ({GANG_TOPOLOGY: "zone"} if zones else {}) if terms is None else terms
        self.pods = self.jobs.start("train", 2, count=gpus, terms=self.terms)
        self.lost = self.jobs.devices(self.pods[1])[0].partition("/")[0]
        self.gpus = gpus

    def lose(self) -> None:
        self.jobs.lose(self.pods[1])
        self.cluster.settle()

    def node(self) -> str:
        """Where the lost member's seat is held."""
        (found,) = [one for hold in holds(self.cluster) for one in hold["spec"]["seats"] if one.get("until")]
        assert {device["pool"] for device in found["devices"]} == {found["node"]}
        return str(found["node"])

    def told(self, reason: str) -> list[str]:
        return [one.message for one in self.cluster.told if one.reason == reason]

    def comes(self) -> list[str]:
        again = self.jobs.make("train", 1, least=2, count=self.gpus, terms=self.terms)
        self.cluster.settle()
        return self.jobs.devices(again)


def label(cluster: JointCluster, node: str, zone: str) -> None:
    cluster.api.edit(NODES, node, lambda one: one["metadata"]["labels"].update({ZONE: zone}))


def taint(cluster: JointCluster, node: str) -> None:
    def ill(one: Object) -> None:
        one["spec"]["devices"][0]["taints"].append({"key": "gpu-xid-79", "effect": "NoExecute"})

    cluster.api.edit(RESOURCE_SLICES, f"{node}-koordra", ill)


def cordon(cluster: JointCluster, node: str) -> None:
    cluster.api.edit(NODES, node, lambda one: one["spec"].update(unschedulable=True))


def remove(cluster: JointCluster, node: str) -> None:
    cluster.api.delete(NODES, node)
    cluster.api.delete(RESOURCE_SLICES, f"{node}-koordra")


def unpublish(cluster: JointCluster, node: str) -> None:
    cluster.api.edit(RESOURCE_SLICES, f"{node}-koordra", lambda one: one["spec"]["devices"].pop(0))


TROUBLE = {
    "tainted": (taint, "gpu-0 is tainted (gpu-xid-79:NoExecute)"),
    "cordoned": (cordon, "unschedulable"),
    "gone": (remove, "is gone"),
    "a device less": (unpublish, "gpu-0 is not published any more"),
}


@pytest.mark.parametrize("what", TROUBLE)
@pytest.mark.parametrize("first", [False, True], ids=["after the loss", "before the loss"])
def test_the_hold_moves_before_anybody_comes(what: str, *, first: bool) -> None:
    seats, (trouble, words) = Seats(), TROUBLE[what]
    if first:
        trouble(seats.cluster, seats.lost)
        seats.cluster.settle()
    seats.lose()
    if not first:
        assert seats.node() == seats.lost
        trouble(seats.cluster, seats.lost)
    seats.cluster.settle()
    spare = seats.node()
    assert spare != seats.lost
    (said,) = set(seats.told(SEAT_EXCHANGED))
    assert f"the place of train/1 is held on node {spare} now, not on {seats.lost}: " in said
    assert words in said
    seats.cluster.claim("single")
    seats.cluster.pod("single", "single", gates=["koordra.io/joint-allocation"])
    seats.cluster.settle()
    assert seats.cluster.node_of("single") != spare
    assert seats.comes() == [f"{spare}/gpu-0", f"{spare}/gpu-1"]


def test_a_seat_that_does_is_left_alone() -> None:
    seats = Seats()
    seats.lose()
    taint(seats.cluster, next(name for name in ("n0", "n1", "n2") if name != seats.lost))
    seats.cluster.settle()
    assert seats.node() == seats.lost
    assert not seats.told(SEAT_EXCHANGED)


def test_the_domain_that_is_required_is_kept_and_what_lacks_is_told() -> None:
    """n0 and n1 are in one zone with the gang, n2 in another, and comes to theirs later."""
    seats = Seats(zones="aab")
    seats.lose()
    taint(seats.cluster, seats.lost)
    for _ in range(3):
        seats.cluster.settle()
        assert seats.node() == seats.lost
    (said,) = seats.told(SEAT_UNFIT)
    assert f"the place of train/1 on node {seats.lost} does not do: {seats.lost}/gpu-0 is tainted" in said
    assert "there is no other (" in said
    assert "it is held until 2026-11-21T" in said
    label(seats.cluster, "n2", "a")
    seats.cluster.settle()
    assert seats.node() == "n2"
    assert seats.comes() == ["n2/gpu-0", "n2/gpu-1"]


def test_a_seat_whose_device_recovers_serves_again() -> None:
    seats = Seats(zones="aab")
    seats.lose()
    taint(seats.cluster, seats.lost)
    seats.cluster.settle()
    seats.cluster.api.edit(
        RESOURCE_SLICES, f"{seats.lost}-koordra", lambda one: one["spec"]["devices"][0]["taints"].pop()
    )
    seats.cluster.settle()
    assert seats.comes() == [f"{seats.lost}/gpu-0", f"{seats.lost}/gpu-1"]


@pytest.mark.parametrize("zones", ["aaba", "abab"], ids=["there is a place", "there is none"])
@pytest.mark.parametrize("first", [False, True], ids=["nobody is there", "one has come again"])
def test_of_a_gang_that_was_lost_as_a_whole_a_seat_moves_beside_those_that_are_held(
    zones: str, *, first: bool
) -> None:
    seats = Seats(zones=zones)
    cluster, jobs = seats.cluster, seats.jobs
    kept = jobs.devices(seats.pods[0])
    jobs.lose(*seats.pods)
    cluster.settle()
    again = jobs.make("train", 0, least=2, count=2, terms=seats.terms) if first else ""
    remove(cluster, seats.lost)
    cluster.settle()
    nodes = {one["name"]: one["node"] for hold in holds(cluster) for one in hold["spec"]["seats"]}
    spare = "n3" if zones == "aaba" else seats.lost
    assert nodes == {"train/0": kept[0].partition("/")[0], "train/1": spare}
    again = again or jobs.make("train", 0, least=2, count=2, terms=seats.terms)
    if spare != seats.lost:
        assert seats.comes() == [f"{spare}/gpu-0", f"{spare}/gpu-1"]
        assert jobs.devices(again) == kept


def test_after_a_change_of_leader_the_seat_of_a_lost_gang_waits_for_its_pod() -> None:
    """Nobody knows what it asked."""
    seats = Seats()
    seats.jobs.lose(*seats.pods)
    seats.cluster.settle()
    seats.cluster.start_again()
    taint(seats.cluster, seats.lost)
    seats.cluster.settle()
    assert seats.lost in {one["node"] for hold in holds(seats.cluster) for one in hold["spec"]["seats"]}


def test_the_domain_of_its_role_is_kept() -> None:
    """Two workers in one zone, and a master anywhere, which is in the other one."""
    cluster = JointCluster(nodes=4, gpus=2)
    for number, zone in enumerate("aabb"):
        label(cluster, f"n{number}", zone)
    cluster.start_again()
    jobs = Jobs(cluster)
    jobs.kind = KUBEFLOW_JOBS[0].type_meta

    def make(role: str, number: int) -> str:
        terms = {GANG_ROLE_TOPOLOGY: "zone"} if role == "worker" else {}
        name = jobs.make("train", None, least=3, count=2, terms=terms)
        labels = {"job-name": "train", "replica-type": role, "replica-index": str(number)}
        told = {f"{KUBEFLOW}{key}": value for key, value in labels.items()}
        cluster.api.edit(PODS, name, lambda one: one["metadata"].update(labels=told))
        return name

    pods = [make("master", 0), make("worker", 0), make("worker", 1)]
    cluster.settle()
    jobs.run(*pods)
    cluster.settle()
    head, _, lost = ({place.partition("/")[0] for place in jobs.devices(pod)}.pop() for pod in pods)
    jobs.lose(pods[2])
    cluster.settle()
    cordon(cluster, lost)
    cluster.settle()

    def held() -> str:
        (found,) = [one for hold in holds(cluster) for one in hold["spec"]["seats"] if one.get("until")]
        return str(found["node"])

    assert held() == lost
    (spare,) = (
        {"n0", "n1", "n2", "n3"} - {jobs.devices(pod)[0].partition("/")[0] for pod in pods[:2]} - {lost}
    )
    zone = cluster.api.get(NODES, lost)["metadata"]["labels"][ZONE]
    assert zone != cluster.api.get(NODES, head)["metadata"]["labels"][ZONE]
    label(cluster, spare, zone)
    cluster.settle()
    assert held() == spare


@pytest.mark.parametrize("first", [0, 1], ids=["all come back", "the workers are gone"])
def test_who_is_of_another_role_does_not_say_what_is_asked_of_a_seat(first: int) -> None:
    """Pods of one row, of which the first is a head: a level of the workers' is none of its."""
    cluster = JointCluster(nodes=4, gpus=2)
    for number, zone in enumerate("abbc"):
        label(cluster, f"n{number}", zone)
    cluster.start_again()
    jobs = Jobs(cluster)

    def make(number: int) -> str:
        role = {GANG_ROLE: "workers", GANG_ROLE_TOPOLOGY: "zone"} if number else {GANG_ROLE: "head"}
        return jobs.make("train", number, least=3, count=2, terms=role)

    pods = [make(number) for number in range(3)]
    cluster.settle()
    jobs.run(*pods)
    cluster.settle()
    lost = jobs.devices(pods[2])[0].partition("/")[0]
    jobs.lose(*pods[first:])
    cluster.settle()
    for number in range(0 if first else 3):
        make(number)
    cordon(cluster, lost)
    cluster.settle()
    held = {one["name"]: one["node"] for hold in holds(cluster) for one in hold["spec"]["seats"]}
    zones = {name: cluster.api.get(NODES, node)["metadata"]["labels"][ZONE] for name, node in held.items()}
    assert zones["train/1"] == zones["train/2"], held


def test_where_no_other_of_its_row_lives_the_jobs_object_says_what_the_lost_member_asked() -> None:
    """The master of a PyTorchJob; its node is ill before the operator makes it again."""
    cluster = JointCluster(nodes=4, gpus=2)
    jobs = Jobs(cluster)
    jobs.kind = KUBEFLOW_JOBS[0].type_meta

    def make(role: str, count: int) -> str:
        name = jobs.make("train", None, least=2, count=count)
        labels = {"job-name": "train", "replica-type": role, "replica-index": "0"}
        labels |= {"job-role": "master"} if role == "master" else {}
        told = {f"{KUBEFLOW}{key}": value for key, value in labels.items()}
        cluster.api.edit(PODS, name, lambda one: one["metadata"].update(labels=told))
        return name

    master, worker = make("master", 2), make("worker", 1)
    cluster.settle()
    jobs.run(master, worker)
    cluster.settle()
    (ill,) = {place.partition("/")[0] for place in jobs.devices(master)}
    jobs.lose(master)
    taint(cluster, ill)
    cluster.settle()

    def held() -> str:
        (found,) = [one for hold in holds(cluster) for one in hold["spec"]["seats"] if one.get("until")]
        return str(found["node"])

    assert held() == ill, "nobody knows what it asked"
    two = claim("two", count=2)["spec"]
    cluster.api.create(
        RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": two}}
    )
    asked = {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    said = objects.annotations_of(cluster.api.get(PODS, worker))
    template = {"metadata": {"annotations": dict(said)}, "spec": asked}
    roles = {role: {"replicas": 1, "template": template} for role in ("Master", "Worker")}
    body = {
        "metadata": {"name": "train", "namespace": "default", "uid": "uid-train"},
        "spec": {"pytorchReplicaSpecs": roles},
    }
    cluster.api.create(KUBEFLOW_JOBS[0], body)
    cluster.pass_time(READ_AGAIN)
    taint(cluster, jobs.devices(worker)[0].partition("/")[0])  # something happens
    cluster.settle()
    spare = held()
    assert spare != ill
    again = make("master", 2)
    cluster.settle()
    assert jobs.devices(again) == [f"{spare}/gpu-0", f"{spare}/gpu-1"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_the_exchange_the_next_one_goes_on(*, after: bool) -> None:
    seats = Seats()
    seats.lose()
    cluster = seats.cluster
    taint(cluster, seats.lost)

    def dies(write: Write) -> None:
        if write.kind == "deviceholds":
            raise Killed

    setattr(cluster.api, "after" if after else "before", dies)
    with pytest.raises(Killed):
        cluster.settle()
    nothing: Callable[[Write], None] = lambda _write: None  # noqa: E731
    cluster.api.before = cluster.api.after = nothing
    cluster.start_again()
    cluster.settle()
    spare = seats.node()
    assert spare != seats.lost
    assert seats.comes() == [f"{spare}/gpu-0", f"{spare}/gpu-1"]
    assert objects.name(cluster.api.get(NODES, spare)) == spare


def test_an_exchange_without_an_answer_is_written_before_the_old_place_is_given_out() -> None:
    """Also where an audit told of every object again meanwhile."""
    seats = Seats()
    seats.lose()
    cluster = seats.cluster
    cordon(cluster, seats.lost)

    def is_lost(write: Write) -> None:
        if write.kind == "deviceholds":
            raise ApiUnreachable("nobody answers")

    cluster.api.before = is_lost
    with suppress(ApiUnreachable):
        cluster.settle()
    cluster.api.edit(NODES, seats.lost, lambda one: one["spec"].update(unschedulable=False))
    cluster.claim("single")
    cluster.pod("single", "single", gates=["koordra.io/joint-allocation"])
    cluster.reconciler.cache.touch_all()
    written: list[str] = []
    cluster.api.before = lambda write: written.append(write.kind)
    cluster.settle()
    assert "resourceclaims" in written
    assert written.index("deviceholds") < written.index("resourceclaims")


def test_a_seat_that_its_own_member_has_taken_is_left_alone() -> None:
    """The pass that places a gang again is cut off before it lifts the gates."""
    seats = Seats()
    cluster = seats.cluster
    places = [seats.jobs.devices(pod) for pod in seats.pods]
    seats.jobs.lose(*seats.pods)
    cluster.settle()
    again = [seats.jobs.make("train", index, least=2, count=seats.gpus) for index in (0, 1)]

    def dies(_write: Write) -> None:
        if all(map(seats.jobs.devices, again)):
            raise Killed

    cluster.api.after = dies
    with pytest.raises(Killed):
        cluster.settle()
    cluster.api.after = lambda _write: None
    cluster.start_again()
    cluster.settle()
    assert not seats.told(SEAT_EXCHANGED)
    assert [seats.jobs.devices(pod) for pod in again] == places


def test_two_seats_that_are_exchanged_in_one_pass_both_move() -> None:
    """They are in one object."""
    cluster = JointCluster(nodes=5, gpus=1)
    jobs = Jobs(cluster)
    pods = jobs.start("train", 3)
    lost = [jobs.devices(pod)[0].partition("/")[0] for pod in pods[1:]]
    jobs.lose(*pods[1:])
    cluster.settle()
    for name in lost:
        taint(cluster, name)
    other = jobs.make("other", 0, least=1)
    cluster.settle()
    moved = [one["node"] for hold in holds(cluster) for one in hold["spec"]["seats"] if one.get("until")]
    assert len(set(moved)) == 2
    assert not set(moved) & set(lost)
    assert jobs.devices(other) == []


def test_what_a_large_gang_costs_is_paid_for_seats_that_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gang that was lost as a whole all seats are looked at in one pass."""
    cluster = JointCluster(nodes=14, gpus=1)
    jobs = Jobs(cluster)
    pods = jobs.start("train", 12)
    read = list[int]()

    def counted(ref: GangRef, pods: list[Object], *rest: Any, **named: Any) -> Terms | None:
        read.append(len(pods))
        return terms_of(ref, pods, *rest, **named)

    monkeypatch.setattr(seat_exchange, "terms_of", counted)
    jobs.lose(*pods)
    cluster.settle()
    assert not read
    taint(cluster, "n0")
    cluster.settle()
    assert read == [12]

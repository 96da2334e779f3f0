"""Reservations through the reconciler: what is kept, for whom, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESERVATIONS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.allocation.reserved.ahead import LOOK_AGAIN, RUNS_INTO
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster, explode_at
from tests.fakes.kube_api import Killed, Write

OURS = {"labelSelector": {"matchLabels": {"team": "a"}}}
START = "2026-11-21T00:16:40Z"
"""When the cluster's clock begins."""


def reservation(name: str = "r", *, count: int = 1, memory: str | None = None, **spec: Any) -> Object:
    exactly: Object = {"deviceClassName": names.CLASS_GPU, "count": count}
    if memory:
        exactly["capacity"] = {"requests": {"memory": memory}}
    claims = [{"name": "gpu", "devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}]
    metadata = {"name": name, "namespace": "default", "creationTimestamp": START}
    return {"metadata": metadata, "spec": {"owners": [OURS], "claims": claims, "ttl": "1h", **spec}}


class Cluster(JointCluster):
    def reserve(self, name: str = "r", **said: Any) -> None:
        self.api.create(RESERVATIONS, reservation(name, **said))
        self.settle()

    def comes(self, name: str, *, team: str = "b", priority: int | None = None, **claim: Any) -> None:
        self.claim(name, **claim)
        self.pod(name, name, gates=[names.JOINT_GATE], priority=priority)
        self.api.edit(PODS, name, lambda pod: pod["metadata"].update(labels={"team": team}))
        self.settle()

    def ends(self, name: str) -> None:
        self.scheduler_binds(name, name)
        self.settle()
        self.pod_ends(name, name)
        self.settle()

    def status(self, name: str = "r") -> Object:
        found: Object = self.api.get(RESERVATIONS, name)["status"]
        return found

    def ready(self, name: str = "r") -> tuple[str, str]:
        (condition,) = self.status(name)["conditions"]
        return condition["reason"], condition["message"]

    def seats(self) -> list[Object]:
        return [seat for hold in self.api.all(DEVICE_HOLDS) for seat in hold["spec"]["seats"]]

    def kept(self) -> list[str]:
        return sorted(f"{one['pool']}/{one['device']}" for seat in self.seats() for one in seat["devices"])

    def told_about(self, name: str) -> list[str]:
        return [one.message for one in self.told if any(objects.name(obj) == name for obj in one.about)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(nodes=2, gpus=2)


def test_what_is_reserved_is_for_its_owners_alone(cluster: Cluster) -> None:
    cluster.reserve(seats=2, count=2)
    assert len(cluster.kept()) == 4
    assert cluster.ready() == ("Kept", "2 of 2 seats are there: 2 held, 0 used; until 2026-11-21T01:16:40Z")
    (hold,) = cluster.api.all(DEVICE_HOLDS)
    (owner,) = hold["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["apiVersion"]) == ("Reservation", "r", "koordra.io/v1alpha1")
    cluster.comes("other")
    assert cluster.node_of("other") is None
    assert any(
        "held for reservation default/r until 2026-11-21T01:16:40Z" in one
        for one in cluster.told_about("other")
    )
    cluster.comes("mine", team="a", count=2)
    assert cluster.node_of("mine")
    assert cluster.ready()[1].startswith("2 of 2 seats are there: 1 held, 1 used")
    assert cluster.node_of("other") is None


def test_what_an_owner_leaves_stays_reserved_and_what_it_had_is_again(cluster: Cluster) -> None:
    cluster.reserve(count=2)
    place = cluster.kept()
    cluster.comes("mine", team="a")
    assert cluster.devices("mine")[0] in place
    assert [*cluster.kept(), *cluster.devices("mine")] == sorted(
        place, key=lambda one: one in cluster.devices("mine")
    )
    for name in ("x", "y", "z"):
        cluster.comes(name)
    assert [cluster.node_of(name) is None for name in ("x", "y", "z")] == [False, False, True]
    cluster.ends("mine")
    assert cluster.kept() == place
    assert cluster.node_of("z") is None


def test_shares_of_a_card_are_reserved_and_taken_in_part() -> None:
    cluster = Cluster(nodes=1, gpus=1)
    cluster.reserve(memory="60Gi")
    cluster.comes("mine", team="a", memory="20Gi")
    assert cluster.node_of("mine")
    assert [one["consumedCapacity"] for seat in cluster.seats() for one in seat["devices"]] == [
        {"memory": "40Gi"}
    ]
    cluster.comes("big", memory="30Gi")
    cluster.comes("small", memory="20Gi")
    assert (cluster.node_of("big"), cluster.node_of("small")) == (None, "n0")
    cluster.comes("again", team="a", memory="40Gi")
    assert cluster.node_of("again") == "n0"


def test_an_owner_may_have_more_than_is_reserved(cluster: Cluster) -> None:
    cluster.reserve(count=1, nodeSelector={"kubernetes.io/hostname": "n1"})
    assert cluster.kept()[0].startswith("n1/")
    cluster.comes("mine", team="a", count=2)
    cluster.comes("too", team="a", count=2)
    assert {cluster.node_of("mine"), cluster.node_of("too")} == {"n0", "n1"}


def test_once_used_a_seat_for_one_pod_is_over(cluster: Cluster) -> None:
    cluster.reserve(count=2, allocateOnce=True)
    cluster.comes("mine", team="a")
    for name in ("x", "y", "z"):
        cluster.comes(name)
        assert cluster.node_of(name), "what the pod left is free"
    cluster.ends("mine")
    assert cluster.ready()[0] in ("Waiting", "Kept")


def test_it_expires(cluster: Cluster) -> None:
    cluster.reserve(seats=2, count=2)
    cluster.comes("other")
    cluster.pass_time(3601)
    cluster.settle()
    assert cluster.node_of("other")
    assert cluster.api.all(DEVICE_HOLDS) == []
    assert cluster.ready() == ("Over", "expired at 2026-11-21T01:16:40Z")


def test_it_is_deleted(cluster: Cluster) -> None:
    cluster.reserve(seats=2, count=2)
    cluster.comes("other")
    cluster.api.delete(RESERVATIONS, "r")
    cluster.settle()
    assert cluster.node_of("other")
    assert cluster.api.all(DEVICE_HOLDS) == []


def test_at_its_start_it_takes_what_is_free_and_waits_for_the_rest(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.comes(name)
        cluster.scheduler_binds(name, name)
    cluster.api.edit(PODS, "a", lambda pod: pod["spec"].update(activeDeadlineSeconds=600))
    cluster.api.edit(PODS, "a", lambda pod: pod["status"].update(startTime=START))
    cluster.api.edit(PODS, "b", lambda pod: pod["spec"].update(activeDeadlineSeconds=7200))
    cluster.api.edit(PODS, "b", lambda pod: pod["status"].update(startTime=START))
    cluster.reserve(seats=3, start="2026-11-21T00:46:40Z")
    assert cluster.ready() == ("Ahead", "begins at 2026-11-21T00:46:40Z; 2 of 3 seats would be free then")
    assert cluster.api.all(DEVICE_HOLDS) == []
    warned = {objects.name(one.about[0]): one.message for one in cluster.told if one.reason == RUNS_INTO}
    assert "a" not in warned
    assert len(warned) == 1
    ((who, words),) = warned.items()
    assert "is booked from 2026-11-21T00:46:40Z for reservation default/r" in words
    assert ("runs until 2026-11-21T02:16:40" in words) is (who == "b")
    cluster.pass_time(LOOK_AGAIN)
    cluster.settle()
    assert len([one for one in cluster.told if one.reason == RUNS_INTO]) == 1, "told once"
    cluster.pass_time(1800)
    cluster.settle()
    assert cluster.status()["held"] == 1
    reason, message = cluster.ready()
    assert reason == "Waiting"
    assert message.startswith("1 of 3 seats are there: 1 held, 0 used; ")
    cluster.comes("late")
    cluster.ends("a")
    assert cluster.status()["held"] == 2, "what becomes free is its own"
    assert cluster.node_of("late") is None


def comes_until(cluster: Cluster, name: str, seconds: int | None, claim: str) -> None:
    """A pod that runs for so long on a card, alone or with others who come."""
    if claim not in {objects.name(one) for one in cluster.api.all(RESOURCE_CLAIMS)}:
        cluster.claim(claim)
    cluster.pod(name, claim, gates=[names.JOINT_GATE])
    cluster.settle()
    cluster.scheduler_binds(name, claim)
    if seconds is not None:
        cluster.api.edit(PODS, name, lambda pod: pod["spec"].update(activeDeadlineSeconds=seconds))
        cluster.api.edit(PODS, name, lambda pod: pod["status"].update(startTime=START))


def warned(cluster: Cluster) -> list[str]:
    return sorted(objects.name(one.about[0]) for one in cluster.told if one.reason == RUNS_INTO)


def test_beside_a_pod_that_ends_in_time_only_the_other_one_is_warned() -> None:
    cluster = Cluster(nodes=1, gpus=2)
    comes_until(cluster, "ends", 600, "c")
    comes_until(cluster, "stays", None, "d")
    cluster.reserve(count=2, start="2026-11-21T00:46:40Z")
    assert cluster.ready()[1].endswith("0 of 1 seats would be free then")
    assert warned(cluster) == ["stays"]


def test_a_card_that_two_pods_share_is_free_when_both_have_ended() -> None:
    cluster = Cluster(nodes=1, gpus=1)
    comes_until(cluster, "ends", 600, "shared")
    comes_until(cluster, "stays", None, "shared")
    cluster.reserve(start="2026-11-21T00:46:40Z")
    assert cluster.ready()[1].endswith("0 of 1 seats would be free then")
    assert warned(cluster) == ["stays"]


def test_of_two_nodes_those_on_the_emptier_one_are_warned() -> None:
    cluster = Cluster(nodes=2, gpus=3)
    for name, node in (("a", "n0"), ("b", "n0"), ("c", "n1")):
        cluster.claim(name)
        cluster.pod(name, name, gates=[names.JOINT_GATE], nodeSelector={"kubernetes.io/hostname": node})
        cluster.settle()
        cluster.scheduler_binds(name, name)
    cluster.reserve(count=3, start="2026-11-21T00:46:40Z")
    assert warned(cluster) == ["c"]


def test_a_more_urgent_pod_takes_what_is_reserved(cluster: Cluster) -> None:
    cluster.reserve(seats=4, priority=3)
    cluster.comes("equal", priority=3)
    cluster.comes("urgent", priority=4)
    assert cluster.node_of("equal") is None
    assert cluster.node_of("urgent")


def test_members_of_a_gang_have_the_seats_that_are_reserved_for_them(cluster: Cluster) -> None:
    cluster.reserve(seats=2, count=2)
    said = {"annotations": {GANG: "train", GANG_MIN: "4"}, "labels": {"team": "a"}}
    for number in range(4):
        cluster.claim(f"w{number}")
        cluster.pod(f"w{number}", f"w{number}", gates=[names.JOINT_GATE])
        cluster.api.edit(PODS, f"w{number}", lambda pod: pod["metadata"].update(said))
    cluster.settle()
    assert all(cluster.node_of(f"w{number}") for number in range(4))
    cluster.assert_no_device_twice()
    assert cluster.status()["used"] == 2
    assert cluster.kept() == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"owners": []}, "spec.owners: name whom it is for"),
        ({"owners": [{}]}, "spec.owners[0]: say labelSelector, controller or pod"),
        ({"claims": []}, "spec.claims: name 1 to 16"),
        ({"seats": 0}, "spec.seats: 1 to 1000"),
        ({"ttl": "soon"}, "spec.ttl: write a time"),
        ({"start": "tomorrow"}, "spec.start, spec.expires: write times"),
        ({"expires": "2026-11-20T00:00:00Z"}, "spec.expires: is not after the start"),
        ({"expires": "2027-11-20T00:00:00Z"}, "spec.expires: 30 days after the start at most"),
    ],
)
def test_what_cannot_be_meant_is_told_and_keeps_nothing(cluster: Cluster, spec: Object, words: str) -> None:
    cluster.reserve(**spec)
    reason, message = cluster.ready()
    assert reason == "Invalid"
    assert words in message
    assert cluster.api.all(DEVICE_HOLDS) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(9))
def test_killed_at_any_write_nothing_is_lost_or_given_twice(step: int, after: bool) -> None:
    """The controller dies at a write of the filling, of an owner's start or of its end."""
    cluster = Cluster(nodes=1, gpus=2)
    seen = 0

    def dies(write: Write) -> None:
        nonlocal seen
        seen += write.verb == "patch" or (write.kind == "deviceholds" and write.verb == "create")
        if seen == step + 1:
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

    cluster.api.create(RESERVATIONS, reservation(count=2))
    passes()
    assert cluster.kept() == ["n0/gpu-0", "n0/gpu-1"]
    for name, team in (("mine", "a"), ("other", "b")):
        cluster.claim(name)
        cluster.pod(name, name, gates=[names.JOINT_GATE])
        cluster.api.edit(PODS, name, lambda pod, team=team: pod["metadata"].update(labels={"team": team}))
    passes()
    assert cluster.node_of("mine") == "n0"
    assert cluster.node_of("other") is None
    assert sorted([*cluster.kept(), *cluster.devices("mine")]) == ["n0/gpu-0", "n0/gpu-1"]
    cluster.scheduler_binds("mine", "mine")
    passes()
    cluster.pod_ends("mine", "mine")
    passes()
    assert cluster.kept() == ["n0/gpu-0", "n0/gpu-1"]
    assert cluster.node_of("other") is None
    assert objects.status_of(cluster.api.get(RESOURCE_CLAIMS, "other")) == {}


def test_an_allocation_that_is_not_written_leaves_the_seat_whole(cluster: Cluster) -> None:
    cluster.reserve(seats=2, count=2)
    cluster.claim("mine", count=2)
    cluster.pod("mine", "mine", gates=[names.JOINT_GATE])
    cluster.api.edit(PODS, "mine", lambda pod: pod["metadata"].update(labels={"team": "a"}))
    cluster.caches.deliver()
    cluster.api.before = explode_at(1, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.before = lambda _write: None
    cluster.api.delete(PODS, "mine")
    cluster.start_again()
    cluster.settle()
    assert len(cluster.kept()) == 4


@pytest.mark.parametrize("landed", [False, True], ids=["lost on its way", "landed"])
def test_what_a_hold_without_an_answer_keeps_is_nobody_elses(landed: bool) -> None:
    """The creation of the DeviceHold has no answer, and no watch tells of it before the next pass."""
    cluster = Cluster(nodes=1, gpus=1)
    asked: list[str] = []

    def silent(write: Write) -> None:
        if (write.verb, write.kind) == ("create", "deviceholds"):
            asked.append(write.name)
            if len(asked) == 1:
                raise ApiUnreachable("no answer")

    setattr(cluster.api, "after" if landed else "before", silent)
    cluster.api.create(RESERVATIONS, reservation())
    cluster.caches.deliver()
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.claim("other")
    cluster.pod("other", "other", gates=[names.JOINT_GATE])
    cluster.caches.deliver(PODS)
    cluster.caches.deliver(RESOURCE_CLAIMS)
    cluster.reconciler.reconcile()
    assert cluster.node_of("other") is None
    assert len(asked) == (1 if landed else 2), "the second one is refused before it is a write"
    cluster.settle()
    assert cluster.kept() == ["n0/gpu-0"]
    assert cluster.ready()[0] == "Kept"
    cluster.api.delete(RESERVATIONS, "r")
    cluster.settle()
    assert cluster.node_of("other") == "n0"

"""The record of a gang's seats: whose it is, how large it gets, and what becomes of each seat."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.gangs.seats.device_holds import MOST_SEATS
from koordra.controller.gangs.seats.job_owner import job_of
from koordra.controller.gangs.seats.recorded import Now, renewed
from koordra.placement.holders.device_hold import DeviceHold, Seat, held_seats

API = {
    "Pod": "v1",
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "RayCluster": "ray.io/v1",
    "MPIJob": "kubeflow.org/v2beta1",
    "PodClique": "grove.io/v1alpha1",
    "PodCliqueScalingGroup": "grove.io/v1alpha1",
    "PodCliqueSet": "grove.io/v1alpha1",
    "Trainer": "example.com/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "RayJob": "ray.io/v1",
}


def obj(kind: str, name: str, owner: tuple[str, str] | None = None) -> Object:
    metadata: Object = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    if owner is not None:
        of, called = owner
        reference = {"apiVersion": API[of], "kind": of, "name": called, "uid": f"uid-{called}"}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    return {"kind": kind, "metadata": metadata}


CHAINS = {
    "a Job": ([obj("Pod", "p", ("Job", "train")), obj("Job", "train")], "Job train"),
    "a JobSet": (
        [obj("Pod", "p", ("Job", "train-0")), obj("Job", "train-0", ("JobSet", "train"))],
        "JobSet train",
    ),
    "a TrainJob's JobSet": (
        [
            obj("Pod", "p", ("Job", "train-0")),
            obj("Job", "train-0", ("JobSet", "train")),
            obj("JobSet", "train", ("TrainJob", "top")),
        ],
        "JobSet train",
    ),
    "workers of a LeaderWorkerSet": (
        [
            obj("Pod", "p", ("StatefulSet", "serve-0")),
            obj("StatefulSet", "serve-0", ("Pod", "leader")),
            obj("Pod", "leader", ("StatefulSet", "serve")),
            obj("StatefulSet", "serve", ("LeaderWorkerSet", "serve")),
        ],
        "LeaderWorkerSet serve",
    ),
    "a RayJob's RayCluster, which it suspends": (
        [obj("Pod", "p", ("RayCluster", "ray")), obj("RayCluster", "ray", ("RayJob", "top"))],
        "RayCluster ray",
    ),
    "the launcher of an MPIJob": (
        [obj("Pod", "p", ("Job", "train-launcher")), obj("Job", "train-launcher", ("MPIJob", "train"))],
        "MPIJob train",
    ),
    "a PodClique of a scaling group": (
        [
            obj("Pod", "p", ("PodClique", "serve-0-sg-0-decode")),
            obj("PodClique", "serve-0-sg-0-decode", ("PodCliqueScalingGroup", "serve-0-sg")),
            obj("PodCliqueScalingGroup", "serve-0-sg", ("PodCliqueSet", "serve")),
        ],
        "PodCliqueSet serve",
    ),
    "a kind that nobody knows": (
        [obj("Pod", "p", ("Trainer", "t")), obj("Trainer", "t", ("Job", "x"))],
        "Trainer t",
    ),
    "a Job that is gone": ([obj("Pod", "p", ("Job", "gone"))], "Job gone"),
    "nobody": ([obj("Pod", "p")], None),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_record_belongs_to_the_top_of_what_makes_the_pods(name: str) -> None:
    chain, wanted = CHAINS[name]
    there = {(one["kind"], one["metadata"]["name"]): one for one in chain}

    def read(kind: Kind, called: str, namespace: str) -> Object | None:
        return there.get((kind.kind, called)) if namespace == "team" else None

    def pod_of(uid: str) -> Object | None:
        return next((one for one in chain if one["metadata"]["uid"] == uid), None)

    found = job_of(chain[0], read=read, pod_of=pod_of)
    assert (None if found is None else f"{found['kind']} {found['name']}") == wanted


def seat(name: str, *, pod: str = "", until: str = "", devices: int = 1, **more: Any) -> Seat:
    made = tuple(
        {"driver": names.DRIVER, "pool": f"node-{name}", "device": f"gpu-{at}", "shareID": "x" * 36}
        for at in range(devices)
    )
    return Seat(
        name, f"node-{name}", pod or f"pod-{name}", ((f"c-{name}", f"u-{name}"),), made, until, **more
    )


def test_a_full_record_of_whole_nodes_fits_into_an_object() -> None:
    """etcd takes 1.5 MB; a tray has 8 GPUs and 8 NICs."""
    seats = tuple(seat(f"worker/job/{number}", devices=16) for number in range(MOST_SEATS))
    spec = DeviceHold({"metadata": {}}, "gang team/train", 0, 600, seats).spec()
    assert len(json.dumps(spec)) < 1_000_000


def now(room: int = 9, **more: Any) -> Now:
    nothing: Any = lambda _: None  # noqa: E731
    never: Any = lambda _: False  # noqa: E731
    return Now((), nothing, nothing, "2026-01-01T00:10:00Z", never, never, room, **more)


def test_no_more_seats_are_held_than_there_is_room_for() -> None:
    became, new = renewed([seat("0"), seat("1"), seat("2")], [], now(room=2))
    assert [one and one.until for one in became] == ["2026-01-01T00:10:00Z"] * 2 + [None]
    assert new == []


def test_a_replacement_that_lost_its_claim_before_it_began_has_the_seat_until_its_time() -> None:
    """What ends it is its time: by then the pod may still wait, and has not begun."""
    waits = replace(now(), never_began={"pod-0"})
    again, _ = renewed([seat("0", before="2026-01-01T00:05:00Z")], [], waits)
    assert [one and one.until for one in again] == ["2026-01-01T00:05:00Z"]
    still = [one for one in again if one is not None]
    assert renewed(still, [], waits)[0] == again
    assert renewed(still, [], replace(waits, is_over=lambda _: True))[0] == [None]


def test_a_seat_that_was_lost_is_held_though_its_pod_is_read_from_before_it_began() -> None:
    """A new leader's copies of pods and of records are not of one moment."""
    lost = seat("0", until="2026-01-01T00:05:00Z")
    assert renewed([lost], [], replace(now(), never_began={"pod-0"}))[0] == [lost]


def test_what_is_read_is_what_was_written_and_only_held_seats_take_devices() -> None:
    seats = (seat("0"), seat("1", until="2026-01-01T00:10:00Z"), seat("2", given_up=True, before="x"))
    metadata = {"name": "h", "namespace": "team", "uid": "u"}
    hold = DeviceHold({"metadata": metadata}, "gang team/train", 3, 600, seats)
    read = DeviceHold.of({"metadata": metadata, "spec": json.loads(json.dumps(hold.spec()))})
    assert (read.seats, read.priority, read.seconds) == (seats, 3, 600)
    (words,) = held_seats({"metadata": metadata, "spec": hold.spec()})
    assert words == "held for gang team/train until 2026-01-01T00:10:00Z (seat 1)"


def test_who_comes_back_takes_the_seat_of_its_position_wherever_it_is_by_then() -> None:
    before = [seat("0", until="x"), seat("1", until="x")]
    moved = seat("1", pod="new", devices=2)
    became, new = renewed(before, [moved], now())
    assert became[0] == before[0]
    assert became[1] is not None
    assert (became[1].pod, became[1].until, became[1].before) == ("new", "", "x")
    assert new == []


def test_a_lost_seat_is_not_taken_by_another_position_that_has_its_devices_now() -> None:
    """Only what nobody had yet goes to whoever has its devices."""
    lost, never = seat("0", until="x"), replace(seat("1", until="x"), pod="")
    other = [replace(seat("5", pod=f"new-{at}"), devices=one.devices) for at, one in enumerate((lost, never))]
    became, new = renewed([lost, never], other, now())
    assert became[0] == lost
    assert became[1] is not None
    assert became[1].pod == "new-1"
    assert [one.pod for one in new] == ["new-0"]

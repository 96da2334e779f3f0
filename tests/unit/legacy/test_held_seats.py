"""What is held for a gang that lost a member counts in quotas as its pod did, and never beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS
from koordra.compat.quota_charges import charged_as
from koordra.controller.gangs.declared.annotations import GANG, GANG_HOLD, GANG_MIN, GANG_START
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.controller.quota import bounds
from koordra.controller.quota.bounds import Charge
from koordra.controller.quota.held_seats import HeldSeats
from koordra.placement.holders.device_hold import Seat
from tests.unit.legacy.cluster import Cluster, Object, a_quota, of_kind, pod
from tests.unit.legacy.test_quota_enforcement import GPU, TWO_CARDS, Leader, leader

__all__ = ["leader"]

HOLD = 60.0


class Gang:
    """Of two pods of a Job, each of one card, under a quota of two cards on a node of eight."""

    def __init__(self, cluster: Leader) -> None:
        self.cluster, self.made = cluster, 0
        self.webhook = Cluster()

    def admit(self, index: int | None, **said: str) -> str:
        self.made += 1
        name = f"p{self.made}"
        stored = self.webhook.admitted(pod(GPU, name=name, annotations=said), uid=f"u-{self.made}")
        stored["metadata"]["creationTimestamp"] = f"2026-11-21T10:00:{self.made:02d}Z"
        if index is not None:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
            stored["metadata"] |= {"ownerReferences": [owner], "labels": {COMPLETION_INDEX: str(index)}}
        self.cluster.admitted(stored, of_kind(self.webhook)[0])
        return name

    def member(self, index: int) -> str:
        return self.admit(index, **{GANG: "train", GANG_MIN: "2", GANG_HOLD: f"{HOLD:.0f}s"})

    def settle(self) -> None:
        self.cluster.settle()
        for hold in self.cluster.api.all(DEVICE_HOLDS):
            self.cluster.keeper.on_hold("MODIFIED", hold)
        self.cluster.settle()

    def start(self) -> list[str]:
        pods = [self.member(0), self.member(1)]
        self.settle()
        for name in pods:
            self.cluster.scheduler_binds(name, name)
            self.cluster.api.edit(PODS, name, lambda found: found["status"].update(phase="Running"))
        self.settle()
        return pods

    def lose(self, name: str) -> None:
        gone = self.cluster.api.get(PODS, name)
        self.cluster.pod_ends(name, name)
        self.cluster.api.edit(RESOURCE_CLAIMS, name, lambda one: one["metadata"].pop("finalizers"))
        self.cluster.api.delete(RESOURCE_CLAIMS, name)
        self.cluster.hear("DELETED", gone)


def test_a_held_seat_counts_until_who_it_is_for_is_there(leader: Callable[..., Leader]) -> None:
    cluster = leader(TWO_CARDS)
    gang = Gang(cluster)
    first, lost = gang.start()
    assert cluster.served() == [first, lost]
    gang.lose(lost)
    gang.settle()
    other = gang.admit(None)
    gang.settle()
    assert cluster.served() == [first], "six cards are free, and none in the quota"
    (said,) = {one.message for one in cluster.told if one.reason == "QuotaExceeded"}
    assert "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2" in said
    again = gang.member(1)
    gang.settle()
    assert cluster.served() == [first, again], "its pod is charged, and the seat no longer"
    assert other not in cluster.served()


def test_it_counts_no_longer_than_it_is_held(leader: Callable[..., Leader]) -> None:
    cluster = leader(TWO_CARDS)
    gang = Gang(cluster)
    first, lost = gang.start()
    gang.lose(lost)
    other = gang.admit(None)
    gang.settle()
    assert cluster.served() == [first]
    cluster.pass_time(HOLD + 1)
    gang.settle()
    assert cluster.served() == [first, other]


# --- one gang's seats, as values


def member(name: str, index: int | None, *, uid: str | None = None, least: str = "2") -> Object:
    labels = {} if index is None else {COMPLETION_INDEX: str(index)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": uid or name,
        "annotations": {GANG: "train", GANG_MIN: least},
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": {}}


TEMPLATE = f"koordra-nvidia-{'0' * 32}"
CHARGED = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}]}


def charges(seats: list[tuple[str, str]], pods: list[tuple[Object, int]], **more: Any) -> int:
    """`seats`: name and pod; `pods` with the cards that each is charged. What the seats add up to, of four
    cards each."""
    held = HeldSeats(lambda template: {"nvidia.com/gpu": 4} if template == TEMPLATE else None)
    listed = [Seat(name, "n", pod, (), (), "2026-11-21T10:00:00Z", charged=CHARGED) for name, pod in seats]
    spec = {"owner": "gang team/train", "seats": [seat.to_dict() for seat in listed]}
    held.on_hold("ADDED", {"metadata": {"namespace": "team", "name": "h"}, "spec": spec})
    there = {objects.name(pod): Charge(pod, {"nvidia.com/gpu": cards}) for pod, cards in pods}
    found = held.charges("team", there)
    assert len(held.pods()) == len(seats)
    return sum(charge.amounts["nvidia.com/gpu"] or 0 for charge in found.charges.values())


@pytest.mark.parametrize(
    ("seats", "pods", "cards"),
    [
        pytest.param([("train/0", "a"), ("train/1", "b")], [], 8, id="all are lost"),
        pytest.param([("train/0", "a"), ("train/1", "b")], [(member("a", 0), 4)], 4, id="one lives"),
        pytest.param([("train/0", "a")], [(member("a2", 0), 4)], 0, id="another is at its position"),
        pytest.param([("train/0", "a")], [(member("a2", 1), 4)], 4, id="another is at another position"),
        pytest.param([("train/0", "a")], [(member("a2", 0), 1)], 3, id="which asks less"),
        pytest.param([("", "a"), ("", "b")], [(member("c", None), 4)], 4, id="nobody is numbered"),
        pytest.param([("w-to-come-1", "")], [(member("c", 1), 4)], 0, id="a place that nobody had yet"),
    ],
)
def test_a_seat_is_charged_beyond_who_is_in_its_place(
    seats: list[tuple[str, str]], pods: list[tuple[Object, int]], cards: int
) -> None:
    assert charges(seats, pods) == cards


def test_what_quotas_look_at_of_a_pod_is_kept_in_bounded_size() -> None:
    term = {"namespaces": ["other"], "topologyKey": "x" * 1000}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {
        "resourceClaims": [*CHARGED["resourceClaims"], {"name": "own", "resourceClaimTemplateName": "mine"}],
        "affinity": {"podAntiAffinity": {required: [term] * 100}},
        "priorityClassName": "urgent",
        "containers": [{"name": "main"}],
    }
    kept = {"spec": charged_as({"spec": spec})}
    assert kept["spec"]["resourceClaims"] == CHARGED["resourceClaims"]
    assert len(str(kept)) < 500
    for scope in ("CrossNamespacePodAffinity", "PriorityClass", "NotTerminating"):
        scoped = a_quota({"requests.nvidia.com/gpu": "1"}, scopes=[scope])
        assert bounds.in_scope(scoped, kept) is bounds.in_scope(scoped, {"spec": spec}) is True
    assert charged_as({"spec": {"resourceClaims": [{"name": "own", "resourceClaimName": "c"}]}}) == {}


def test_a_leader_waits_until_the_quota_has_room_for_its_workers_too(leader: Callable[..., Leader]) -> None:
    """One of two cards is taken: the leader alone would get the other, and its worker none."""
    cluster = leader(TWO_CARDS)
    gang = Gang(cluster)
    other = gang.admit(None)
    gang.settle()
    first = gang.admit(0, **{GANG: "train", GANG_MIN: "2", GANG_START: "LeaderFirst"})
    gang.settle()
    assert cluster.served() == [other]
    (said,) = {one.message for one in cluster.told if one.reason == "QuotaExceeded"}
    assert "gang default/train waits as a whole" in said
    gang.lose(other)
    gang.settle()
    assert cluster.served() == [first]
    late = gang.admit(None)
    gang.settle()
    assert late not in cluster.served(), "what is held for the worker is in the quota"

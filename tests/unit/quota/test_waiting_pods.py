"""The leader over claims that users write: what was there before the bound waits beyond it; what is reserved
counts beside it. No pods of other stacks are served here."""

from __future__ import annotations

from collections.abc import Callable

from koordra.api import objects
from koordra.api.kinds import PODS, RESERVATIONS, RESOURCE_CLAIMS
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.pods import pod_document
from koordra.controller.quota.bounds import charge_name
from koordra.controller.quota.held_seats import HeldSeats
from tests.fakes.joint_cluster import pod
from tests.unit.allocator.machines import device_classes
from tests.unit.legacy.test_quota_enforcement import Leader, leader
from tests.unit.quota.replicas import Object, a_quota, a_slice
from tests.unit.reservations.test_reservation_quota import ready, seats, with_reservations
from tests.unit.reservations.test_reservations import OURS, reservation

__all__ = ["leader"]


def with_classes(cluster: Leader) -> Leader:
    for one in device_classes():
        cluster.keeper.on_class("ADDED", dict(one))
    cluster.keeper.on_slice("ADDED", a_slice("node-0", "80Gi"))
    return with_reservations(cluster)


def comes(cluster: Leader, name: str, *, at: int, claims: tuple[str, ...] = (), **pod: object) -> None:
    for each in claims or (name,):
        if each not in cluster.claims():
            stored: Object = cluster.claim(each, memory="10Gi")
            cluster.keeper.on_claim("ADDED", stored)
    created = f"2026-11-21T00:00:{at:02d}Z"
    stored = cluster.pod(name, *(claims or (name,)), created=created, **pod)  # type: ignore[arg-type]


def test_the_youngest_waits_and_is_told_why(leader: Callable[..., Leader]) -> None:
    cluster = with_classes(leader(a_quota(gpu="2", gpu_memory="20Gi")))
    for at, name in enumerate(("c", "b", "a")):
        comes(cluster, name, at=at)
    cluster.settle()
    assert cluster.served() == ["b", "c"]
    (text,) = {one.message for one in cluster.told if one.reason == "QuotaExceeded"}
    assert "claim a: " in text
    assert "exceeded quota: gpus, requested: requests.koordra.io/gpu-memory=10Gi" in text or (
        "exceeded quota: gpus, requested: requests.koordra.io/gpu=1" in text
    )
    gone = cluster.api.get(RESOURCE_CLAIMS, "c")
    cluster.pod_ends("c", "c")
    cluster.api.delete(RESOURCE_CLAIMS, "c")
    cluster.keeper.on_claim("DELETED", gone)
    cluster.settle()
    assert {"a", "b"} <= set(cluster.served())


def test_a_claim_of_several_pods_counts_once(leader: Callable[..., Leader]) -> None:
    cluster = with_classes(leader(a_quota(gpu="1")))
    for at, name in enumerate(("p", "q")):
        comes(cluster, name, at=at, claims=("shared",))
    cluster.settle()
    assert cluster.served() == ["shared"]


def test_a_pod_whose_claim_was_refused_is_told_how_far_the_quota_is_used(
    leader: Callable[..., Leader],
) -> None:
    cluster = with_classes(leader(a_quota(gpu="2", gpu_memory="15Gi")))
    comes(cluster, "a", at=0)
    entry = {"name": "gpu", "resourceClaimTemplateName": "part"}
    cluster.api.create(PODS, pod("late", (), resourceClaims=[entry]))
    cluster.settle()
    view = leader_view(cluster.reconciler)
    told = pod_document(view, cluster.api.get(PODS, "late"))["waits"]
    assert "(Event FailedResourceClaimCreation): gpus: " in told
    assert "requests.koordra.io/gpu 1 of 2" in told
    assert "requests.koordra.io/gpu-memory 10Gi of 15Gi" in told
    assert pod_document(view, cluster.api.get(PODS, "a"))["waits"] is None


def test_without_a_quota_of_devices_nobody_is_asked(leader: Callable[..., Leader]) -> None:
    bound = a_quota()
    bound["spec"]["hard"] = {"pods": "3"}
    cluster = with_classes(leader(bound))
    assert not cluster.keeper.is_bounding()
    comes(cluster, "a", at=0)
    cluster.settle()
    assert cluster.served() == ["a"]


def test_what_is_reserved_counts_beside_claims_and_its_owner_not_twice(leader: Callable[..., Leader]) -> None:
    cluster = with_classes(leader(a_quota(gpu="2")))
    cluster.api.create(RESERVATIONS, reservation(seats=1))
    cluster.settle()
    comes(cluster, "a", at=0)
    comes(cluster, "b", at=1)
    cluster.settle()
    assert cluster.served() == ["a"], "one is reserved"
    labels = OURS["labelSelector"]["matchLabels"]
    comes(cluster, "mine", at=2)
    pod = cluster.api.get(PODS, "mine")
    pod["metadata"]["labels"] = labels
    cluster.api.update(PODS, pod)
    cluster.settle()
    assert cluster.served() == ["a", "mine"]
    assert objects.name(cluster.api.get(RESOURCE_CLAIMS, "b")) == "b"


def test_no_more_is_reserved_than_claims_leave(leader: Callable[..., Leader]) -> None:
    cluster = with_classes(leader(a_quota(gpu="2")))
    comes(cluster, "a", at=0)
    cluster.settle()
    cluster.api.create(RESERVATIONS, reservation(seats=2))
    cluster.settle()
    assert seats(cluster) == 1
    assert ready(cluster)["reason"] == "QuotaExceeded"


def test_what_is_held_for_a_gang_of_claims_that_users_wrote_counts_as_its_devices() -> None:
    devices = [
        {"driver": "koordra.io", "pool": "n", "device": "gpu-0", "consumedCapacity": {"memory": "10Gi", "cores": "20"}},
        {"driver": "koordra.io", "pool": "n", "device": "gpu-0-mig-1g.10gb-0"},
        {"driver": "koordra.io", "pool": "n", "device": "nic-0", "consumedCapacity": {"share": "25"}},
        {"driver": "koordra.io", "pool": "n", "device": "nic-0-vf-3"},
        {"driver": "gpu.example.com", "pool": "n", "device": "gpu-0"},
    ]  # fmt: skip
    seat = {
        "name": "0",
        "node": "n",
        "pod": "lost",
        "claims": [{"name": "c", "uid": "c"}],
        "devices": devices,
    }
    hold = {
        "kind": "DeviceHold",
        "metadata": {"name": "h", "namespace": "team"},
        "spec": {"owner": "gang team/g", "priority": 0, "seconds": 60, "seats": [seat]},
    }
    seats = HeldSeats(lambda _: None)
    seats.on_hold("ADDED", hold)
    (charge,) = seats.charges("team", {}).charges.values()
    assert dict(charge.amounts) == {
        "koordra.io/gpu": 2,
        "koordra.io/gpu-memory": 10 << 30,
        "koordra.io/gpu-cores": 20,
        "koordra.io/nic": 2,
        "koordra.io/nic-share": 125,
    }
    living = {charge_name({"metadata": {"uid": "c"}}): charge}
    assert not seats.charges("team", living).charges, "its claim is there, and counts by itself"

"""What of a seat is left when claims have taken some of it, and whom it is kept for."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.compat.settings import Settings
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.admission import admitted
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.placement import plan
from koordra.placement.holders.reservation import Reservation, owns
from koordra.placement.holders.reserved_seats import left_of, taken_by
from koordra.quantity import parse
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.unit.reservations.test_reservations import OURS, reservation


def result(device: str, memory: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"driver": "d", "pool": "p", "device": device}
    return found if memory is None else {**found, "consumedCapacity": {"memory": f"{memory}Gi"}}


def test_whole_devices_are_left_or_taken() -> None:
    kept = [result("a"), result("b"), result("c")]
    assert left_of(kept, taken_by([result("b"), result("z")])) == (kept[0], kept[2])


@given(
    kept=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    taken=st.lists(st.integers(1, 60), max_size=5),
)
def test_amounts_are_taken_once_over_all_seats_of_a_device(kept: list[int], taken: list[int]) -> None:
    """Of seats on one device, one after the other: what is left together is what was kept without what was
    taken, as far as that goes."""
    uses = taken_by([result("a", amount) for amount in taken])
    left = [one for amount in kept for one in left_of([result("a", amount)], uses)]
    amounts = [parse(one["consumedCapacity"]["memory"]) for one in left]
    assert sum(amounts) == Decimal(max(0, sum(kept) - sum(taken))) * 1024**3
    assert all(amount > 0 for amount in amounts)


POD = {
    "metadata": {
        "namespace": "team",
        "name": "w-0",
        "labels": {"app": "train"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "w", "controller": True}],
    }
}


@pytest.mark.parametrize(
    ("owner", "is_one"),
    [
        ({"labelSelector": {"matchLabels": {"app": "train"}}}, True),
        ({"labelSelector": {"matchLabels": {"app": "serve"}}}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, True),
        ({"labelSelector": {}}, False),
        ({"controller": {"kind": "Job", "name": "w"}}, True),
        ({"controller": {"kind": "Job", "name": "v"}}, False),
        ({"pod": "w-0"}, True),
        ({"pod": "w-1"}, False),
        ({"labelSelector": {"matchLabels": {"app": "train"}}, "pod": "w-1"}, False),
        ({"labelSelector": "app", "controller": []}, False),
    ],
)
def test_an_owner_is_a_pod_that_an_entry_describes_with_all_it_says(owner: Any, is_one: bool) -> None:
    assert owns([owner], "team", POD) is is_one
    assert not owns([owner], "others", POD)


def test_a_reservation_of_koordinators_is_none_of_these() -> None:
    assert Reservation.of({"apiVersion": "scheduling.koordinator.sh/v1alpha1", **reservation()}) is None


def cluster(*, team: str, count: int) -> list[dict[str, Any]]:
    """A node of two cards, both reserved for team a; a claim of a pod of the team."""
    devices = [{"driver": "koordra.io", "pool": "n0", "device": f"gpu-{at}"} for at in range(2)]
    seat = {"name": "0", "node": "n0", "devices": devices, "until": "2026-11-21T01:00:00Z", "whole": devices}
    spec = {"owner": "reservation default/r", "owners": [OURS], "seats": [seat]}
    user = pod("p", ["c"])
    user["metadata"]["labels"] = {"team": team}
    return [
        {"kind": "Node", **node("n0")},
        {"kind": "DeviceClass", **device_class("gpu.koordra.io", "gpu")},
        {"kind": "ResourceSlice", **gpu_slice("n0", 2)},
        {"kind": "DeviceHold", "metadata": {"namespace": "default", "name": "h"}, "spec": spec},
        {"kind": "ResourceClaim", **claim("c", count=count)},
        {"kind": "Pod", **user},
    ]


def test_plan_gives_owners_what_is_reserved_and_tells_others() -> None:
    mine = plan(cluster(team="a", count=2))
    assert mine.nodes == {"default/c": "n0"}
    others = plan(cluster(team="b", count=1))
    (reasons,) = others.unsatisfiable.values()
    assert any("held for reservation default/r until 2026-11-21T01:00:00Z" in str(one) for one in reasons)


def without_holds(*, team: str, count: int) -> list[dict[str, Any]]:
    """As they are in an API, with the gate that the webhook puts on the pod."""
    found = [one for one in cluster(team=team, count=count) if one["kind"] != "DeviceHold"]
    for one in found:
        one["metadata"] |= {"uid": f"uid-{one['kind']}", "resourceVersion": "1"}
        if one["kind"] == "Pod":
            one["spec"]["schedulingGates"] = [{"name": "koordra.io/joint-allocation"}]
    return found


def test_a_forecast_fills_a_reservation_that_is_not_filled_yet() -> None:
    """`plan` and `explain` go through the controller's own passes."""
    asked = {"kind": "Reservation", "apiVersion": "koordra.io/v1alpha1", **reservation(count=2)}
    asked["metadata"] |= {"uid": "uid-r", "resourceVersion": "1"}
    now = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
    mine = forecast(tables_of([*without_holds(team="a", count=2), asked]), Terms(now))
    assert mine.planned["default/c"].node == "n0"
    free = forecast(tables_of(without_holds(team="b", count=1)), Terms(now))
    assert free.planned["default/c"].node == "n0"
    others = forecast(tables_of([*without_holds(team="b", count=1), asked]), Terms(now))
    assert others.planned == {}


@pytest.mark.parametrize(("cards", "node_name"), [("2", "n0"), ("3", None)])
def test_a_forecast_reserves_no_more_than_the_quota_allows(cards: str, node_name: str | None) -> None:
    """Of two cards each is a seat where the quota has room for both beside the claim; with less the other
    card is everybody's."""
    asked = {"kind": "Reservation", "apiVersion": "koordra.io/v1alpha1", **reservation(seats=2)}
    asked["metadata"] |= {"uid": "uid-r", "resourceVersion": "1"}
    bound = {"spec": {"hard": {"requests.koordra.io/gpu": cards}}}
    named = {"name": "cards", "namespace": "default", "uid": "uid-q", "resourceVersion": "1"}
    quota = {"kind": "ResourceQuota", "apiVersion": "v1", "metadata": named, **bound}
    stored = admitted([*without_holds(team="b", count=1), asked, quota], Settings())
    found = forecast(stored.cluster, Terms(datetime(2026, 11, 21, 0, 30, tzinfo=UTC), quotas=stored.quotas))
    given = found.planned.get("default/c")
    assert (given and given.node) == node_name

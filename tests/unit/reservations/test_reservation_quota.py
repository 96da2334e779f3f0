"""A reservation counts in its namespace's quotas, once."""

from __future__ import annotations

from collections.abc import Callable

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESERVATIONS
from koordra.controller.allocation.reserved.reservations import TRIED_FOR
from koordra.controller.reconcile.reconciler import Reconciler
from tests.unit.legacy.cluster import Cluster, Object, a_quota, of_kind, pod
from tests.unit.legacy.test_quota_enforcement import GPU, Leader, leader
from tests.unit.reservations.test_reservations import OURS, reservation

__all__ = ["leader"]

TWO = a_quota({"requests.koordra.io/gpu": "2"})


def with_reservations(cluster: Leader) -> Leader:
    cluster.reconciler = Reconciler(
        cluster.caches,
        cluster.writer,
        clock=lambda: cluster.now,
        report=cluster.told.append,
        quotas=cluster.keeper,
    )
    return cluster


def seats(cluster: Leader) -> int:
    return sum(len(hold["spec"]["seats"]) for hold in cluster.api.all(DEVICE_HOLDS))


def ready(cluster: Leader) -> Object:
    found: Object = cluster.api.get(RESERVATIONS, "r")["status"]["conditions"][0]
    return found


def test_no_more_is_reserved_than_the_quota_allows(leader: Callable[..., Leader]) -> None:
    cluster = with_reservations(leader(TWO))
    cluster.api.create(RESERVATIONS, reservation(seats=3))
    cluster.settle()
    assert seats(cluster) == 2, "eight cards are free"
    condition = ready(cluster)
    assert condition["reason"] == "QuotaExceeded"
    assert "exceeded quota: gpus, requested: requests.koordra.io/gpu=1" in condition["message"]
    quota = cluster.keeper._quotas.all()[0]
    raised = {**quota, "spec": {"hard": {"requests.koordra.io/gpu": "3"}}}
    cluster.keeper._quotas._changed("MODIFIED", raised)
    cluster.pass_time(TRIED_FOR)
    cluster.settle()
    assert seats(cluster) == 3
    assert ready(cluster)["reason"] == "Kept"


def test_an_owner_is_not_counted_beside_what_is_reserved_for_it(leader: Callable[..., Leader]) -> None:
    cluster, webhook = with_reservations(leader(TWO)), Cluster()
    cluster.api.create(RESERVATIONS, reservation(seats=1))
    cluster.settle()

    def comes(name: str, labels: dict[str, str], at: int) -> None:
        stored = webhook.admitted(pod(GPU, name=name, labels=labels), uid=f"u-{name}")
        stored["metadata"]["creationTimestamp"] = f"2026-11-21T10:00:{at:02d}Z"
        cluster.admitted(stored, of_kind(webhook)[0])
        cluster.settle()

    ours = OURS["labelSelector"]["matchLabels"]
    comes("mine", ours, 1)
    assert cluster.served() == ["mine"]
    comes("other", {}, 2)
    assert cluster.served() == ["mine", "other"], "one is reserved and used, one is the other's"
    comes("more", {}, 3)
    assert cluster.served() == ["mine", "other"]
    said = [one.message for one in cluster.told if one.reason == "QuotaExceeded"]
    assert any("requests.koordra.io/gpu=2" in one for one in said)
    assert names.JOINT_GATE in str(objects.spec_of(cluster.api.get(PODS, "more")))

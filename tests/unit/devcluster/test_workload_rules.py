"""The arithmetic of rollouts, the notation of indexes and the order in which pods go: pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from koordra_devcluster.controllers.workloads import indexes, pods, rollout

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def deployment(replicas: int, **rolling: Any) -> dict[str, Any]:
    return {"spec": {"replicas": replicas, "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}


def replica_set(name: str, replicas: int, available: int, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name, "uid": name, "creationTimestamp": "2026-11-21T12:00:00Z", "annotations": annotations
        },
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "availableReplicas": available},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (3, 0, 0, (0, 1)),
        (2, 1, 5, (1, 2)),
        (0, 3, 3, (0, 0)),
    ],
)
def test_limits(replicas: int, surge: Any, unavailable: Any, expected: tuple[int, int]) -> None:
    found = rollout.limits(deployment(replicas, maxSurge=surge, maxUnavailable=unavailable))
    assert (found.surge, found.unavailable) == expected


def test_a_rolling_update_step_by_step() -> None:
    """Five pods, one more and one less allowed: never more than six, never fewer than four available."""
    allowed = rollout.limits(deployment(5, maxSurge=1, maxUnavailable=1))
    old, new = replica_set("old", 5, 5), replica_set("new", 0, 0)
    for _ in range(40):
        for one, count in rollout.scaled(allowed, new, [old]).items():
            changed = new if one == "new" else old
            changed["spec"]["replicas"] = count
        available = min(old["spec"]["replicas"], old["status"]["availableReplicas"])
        assert old["spec"]["replicas"] + new["spec"]["replicas"] <= 6
        assert available + new["status"]["availableReplicas"] >= 4
        old["status"]["availableReplicas"] = available
        if new["status"]["availableReplicas"] < new["spec"]["replicas"]:
            new["status"]["availableReplicas"] += 1
    assert (old["spec"]["replicas"], new["spec"]["replicas"]) == (0, 5)


def test_pods_that_are_not_available_go_first() -> None:
    allowed = rollout.limits(deployment(4, maxSurge=0, maxUnavailable=1))
    broken, new = replica_set("broken", 4, 1), replica_set("new", 0, 0)
    assert rollout.scaled(allowed, new, [broken]) == {"broken": 3}


def test_scaling_in_the_middle_of_a_rollout_is_shared_out() -> None:
    allowed = rollout.limits(deployment(20, maxSurge=0, maxUnavailable=1))
    notes = {rollout.MOST: "10"}
    first, second = replica_set("a", 8, 8, **notes), replica_set("b", 2, 2, **notes)
    assert rollout.proportions(allowed, [first, second]) == {"a": 16, "b": 4}


@pytest.mark.parametrize(
    ("numbers", "text"), [(set(), ""), ({3}, "3"), ({0, 1}, "0,1"), ({0, 1, 2, 5, 7, 8, 9}, "0-2,5,7-9")]
)
def test_indexes_are_written_as_runs(numbers: set[int], text: str) -> None:
    assert indexes.text(numbers) == text
    assert indexes.parse(text) == numbers


def test_the_lowest_free_indexes_are_taken() -> None:
    assert indexes.lowest_free({0, 2}, 3, 5) == [1, 3, 4]
    assert indexes.lowest_free({0, 1}, 3, 3) == [2]


def pod(name: str, **status: Any) -> dict[str, Any]:
    head = {"name": name, "uid": name, "creationTimestamp": "2026-11-21T11:00:00Z"}
    return {"metadata": head, "spec": {"nodeName": status.pop("node", "")}, "status": status}


def test_those_that_lose_least_go_first() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T11:30:00Z"}
    order = [
        pod("unscheduled", phase="Pending"),
        pod("pending", phase="Pending", node="a"),
        pod("starting", phase="Running", node="a"),
        pod("serving", phase="Running", node="a", conditions=[ready]),
    ]
    assert pods.first_to_go(list(reversed(order)), NOW) == order


def test_a_pod_is_available_after_its_seconds() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T11:59:57Z"}
    assert pods.available_in(pod("a", phase="Running"), 5, NOW) is None
    assert pods.available_in(pod("a", conditions=[ready]), 5, NOW) == 2.0
    assert pods.available_in(pod("a", conditions=[ready]), 3, NOW) == 0.0


def test_a_template_has_one_hash() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    assert pods.template_hash(template) == pods.template_hash(dict(reversed(template.items())))
    assert pods.template_hash(template) != pods.template_hash(template, 1)

"""Who is told, and who is evicted, when a claim has more of a card than its share."""

from __future__ import annotations

from typing import Any, cast

import pytest

from koordra.api import kinds
from koordra.errors import ApiError, ApiUnreachable, CheckpointError, NotFound
from koordra.kube import KubeClient
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.status.overuse_report import OveruseReporter
from koordra.node_state.claim_ref import ClaimRef

GIB = 1 << 30


class Api:
    """Claims of one pod each, Events by name, evictions by pod; `down`: it cannot be reached."""

    def __init__(self, claims: int) -> None:
        self.claims = {f"claim-{number}": number for number in range(claims)}
        self.events: dict[str, Any] = {}
        self.evicted: list[tuple[str, str]] = []
        self.down = False
        self.more_pods: list[str] = []
        self.budgets: set[str] = set()
        """Of pods that may not be evicted now."""
        self.gone: set[str] = set()

    def get(self, kind: kinds.Kind, name: str, *, namespace: str) -> Any:
        if self.down:
            raise ApiUnreachable("no route")
        if name not in self.claims:
            raise NotFound(name, code=404, reason="NotFound")
        number = self.claims[name]
        pods = [f"pod-{number}", *self.more_pods]
        reserved = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"} for pod in pods]
        reserved.append({**reserved[0], "apiGroup": "example.org", "name": "no-pod"})
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{number}"},
            "status": {"reservedFor": reserved},
        }

    def create(self, kind: kinds.Kind, body: Any, *, namespace: str, **where: str) -> Any:
        if where.get("subresource") == "eviction":
            assert body["deleteOptions"]["preconditions"]["uid"]
            if where["name"] in self.gone:
                raise NotFound(where["name"], code=404, reason="NotFound")
            if where["name"] in self.budgets:
                raise ApiError("the disruption budget needs 1 healthy pod", code=429)
            self.evicted.append((namespace, where["name"]))
        else:
            self.events[body["metadata"]["name"]] = body
        return body


class Reported:
    def __init__(self, *, claims: int = 1, evict: bool) -> None:
        self.api, self.over, self.time = Api(claims), dict[str, Overuse](), 0.0
        records = [
            ClaimRecord(
                ClaimRef("team", f"claim-{each}", f"uid-{each}"),
                "node",
                "0" * 32,
                "boot",
                State.COMPLETED,
                (),
            )
            for each in range(claims)
        ]
        self.reporter = OveruseReporter(
            cast(KubeClient, self.api),
            records=lambda: records,
            overused=lambda: self.over,
            evict=evict,
            clock=lambda: self.time,
        )

    def overuse(self, *numbers: int) -> None:
        self.over = {
            f"uid-{each}": Overuse(f"uid-{each}", "GPU-1", 5 * GIB, 4 * GIB, 1 << 29) for each in numbers
        }


def test_by_default_the_pods_are_told_once_and_nobody_is_evicted() -> None:
    reported = Reported(evict=False)
    reported.overuse(0)
    for _ in range(3):
        reported.reporter.attempt()
    (event,) = reported.api.events.values()
    assert (event["reason"], event["involvedObject"]["name"]) == ("OverLimit", "pod-0")
    assert "5120Mi" in event["message"]
    assert reported.api.evicted == []


def test_where_the_operator_says_so_the_pods_of_the_claim_are_evicted_once() -> None:
    reported = Reported(claims=2, evict=True)
    reported.reporter.attempt()
    assert reported.api.evicted == []
    reported.overuse(1)
    for _ in range(3):
        reported.reporter.attempt()
    assert reported.api.evicted == [("team", "pod-1")]


def test_a_budget_keeps_its_own_pods_and_nobody_elses() -> None:
    reported = Reported(claims=2, evict=True)
    reported.overuse(0, 1)
    reported.api.budgets = {"pod-0"}
    assert reported.reporter.attempt().at_most is not None
    assert reported.api.evicted == [("team", "pod-1")]
    assert len(reported.api.events) == 2
    reported.api.budgets.clear()
    assert reported.reporter.attempt().at_most is None
    assert reported.api.evicted == [("team", "pod-1"), ("team", "pod-0")]


def test_all_pods_of_a_claim_are_told_and_evicted_whatever_keeps_one() -> None:
    reported = Reported(evict=True)
    reported.api.more_pods = ["second", "third"]
    reported.api.budgets = {"second"}
    reported.overuse(0)
    for _ in range(2):
        reported.reporter.step()
    assert reported.api.evicted == [("team", "pod-0"), ("team", "third")], "nobody twice"
    assert len(reported.api.events) == 3
    reported.api.budgets.clear()
    assert reported.reporter.step().at_most is None
    assert len(reported.api.evicted) == 3


def test_a_pod_that_is_gone_meanwhile_needs_no_eviction() -> None:
    reported = Reported(evict=True)
    reported.api.gone = {"pod-0"}
    reported.overuse(0)
    assert reported.reporter.step().at_most is None


def test_a_claim_that_is_over_again_is_told_to_its_pods_of_then() -> None:
    reported = Reported(evict=True)
    for pods in ([], ["second"]):
        reported.api.more_pods = pods
        reported.overuse(0)
        reported.reporter.step()
        reported.overuse()
        reported.reporter.step()
    assert reported.api.evicted == [("team", "pod-0"), ("team", "second")]
    assert len(reported.api.events) == 2


def test_a_server_that_is_down_is_asked_again() -> None:
    reported = Reported(evict=True)
    reported.overuse(0)
    reported.api.down = True
    assert reported.reporter.attempt().at_most is not None
    reported.api.down = False
    assert reported.reporter.attempt().at_most is None
    assert reported.api.evicted == [("team", "pod-0")]


def test_a_checkpoint_that_cannot_be_read_is_read_again() -> None:
    def unreadable() -> tuple[ClaimRecord, ...]:
        raise CheckpointError("input/output error")

    reported = Reported(evict=True)
    reported.overuse(0)
    readable, reported.reporter._records = reported.reporter._records, unreadable
    assert reported.reporter.attempt().at_most is not None
    reported.reporter._records = readable
    assert reported.reporter.attempt().at_most is None


@pytest.mark.parametrize("gone", [True, False])
def test_a_claim_that_is_gone_needs_nothing(gone: bool) -> None:
    reported = Reported(evict=True)
    reported.overuse(0)
    if gone:
        reported.api.claims.clear()
    else:
        reported.api.claims["claim-0"] = 7  # another claim under its name
    assert reported.reporter.attempt().at_most is None
    assert reported.api.evicted == []


def test_no_more_than_five_pods_are_evicted_in_ten_minutes() -> None:
    reported = Reported(claims=8, evict=True)
    reported.overuse(*range(8))
    reported.reporter.attempt()
    reported.reporter.attempt()
    assert len(reported.api.evicted) == 5
    reported.time = 601.0
    reported.reporter.attempt()
    assert len(reported.api.evicted) == 8

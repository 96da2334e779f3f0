"""Who is told, and whose eviction is asked for, when a claim has more of a card than its share."""

from __future__ import annotations

from typing import Any, cast

import pytest

from koordra.api import kinds
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError, ApiUnreachable, CheckpointError, NotFound
from koordra.evictions import OF_PLUGIN, EvictionRequests, decode
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.status.overuse_report import OveruseReporter
from koordra.node_state.claim_ref import ClaimRef

GIB = 1 << 30


class Api:
    """Claims of one pod each, Events by name, what the node asks for; `down`: it cannot be reached."""

    def __init__(self, claims: int) -> None:
        self.claims = {f"claim-{number}": number for number in range(claims)}
        self.events: dict[str, Any] = {}
        self.entries: dict[str, str | None] = {}
        self.down = False
        self.more_pods: list[str] = []
        self.has_component = True

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

    def create(self, kind: kinds.Kind, body: Any, *, namespace: str) -> Any:
        self.events[body["metadata"]["name"]] = body
        return body

    def patch(self, kind: kinds.Kind, name: str, body: Any, *, namespace: str) -> Any:
        assert (kind, name, namespace) == (CONFIG_MAPS, OF_PLUGIN, "koordra-system")
        if self.down:
            raise ApiUnreachable("no route")
        if not self.has_component:
            raise NotFound(name, code=404, reason="NotFound")
        self.entries |= body["data"]

    @property
    def asked(self) -> list[str]:
        return [one.pod for one in decode(self.entries.get("node") or "[]")]


class Reported:
    def __init__(self, *, claims: int = 1, evict: bool) -> None:
        self.api, self.over = Api(claims), dict[str, Overuse | OverTime]()
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
            evictions=EvictionRequests(
                cast(KubeClient, self.api), OF_PLUGIN, node="node", namespace="koordra-system"
            )
            if evict
            else None,
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
    assert reported.api.entries == {}


def test_where_the_operator_says_so_the_pods_of_the_claim_are_to_go_while_it_is_over() -> None:
    reported = Reported(claims=2, evict=True)
    reported.api.entries = {"node": "what the process before has left", "other": "kept"}
    reported.reporter.attempt()
    assert reported.api.entries == {"node": None, "other": "kept"}
    reported.overuse(1)
    for _ in range(3):
        reported.reporter.attempt()
    assert reported.api.asked == ["team/pod-1"]
    assert decode(reported.api.entries["node"] or "")[0].uid == "uid-of-pod-1"
    reported.overuse()
    reported.reporter.attempt()
    assert reported.api.entries == {"node": None, "other": "kept"}


def test_who_has_had_more_time_is_told_and_stays() -> None:
    """Its pod may be honest, with kernels that are too long to be paced. More memory besides is told too."""
    reported = Reported(evict=True)
    reported.over = {"uid-0": OverTime("uid-0", "GPU-1", 62.0, 20.0, 30.0)}
    for _ in range(3):
        reported.reporter.attempt()
    (event,) = reported.api.events.values()
    assert (event["reason"], event["message"]) == (
        "OverTime",
        "ResourceClaim claim-0: the driver saw its kernels on GPU-1 for 62% of 20 s, the share is 30%",
    )
    assert reported.api.asked == []
    reported.overuse(0)
    reported.reporter.attempt()
    assert [each["reason"] for each in reported.api.events.values()] == ["OverTime", "OverLimit"]
    assert reported.api.asked == ["team/pod-0"]


def test_all_pods_of_a_claim_are_told_and_asked_for() -> None:
    reported = Reported(evict=True)
    reported.api.more_pods = ["second", "third"]
    reported.overuse(0)
    reported.reporter.step()
    assert reported.api.asked == ["team/pod-0", "team/second", "team/third"]
    assert len(reported.api.events) == 3


def test_a_claim_that_is_over_again_is_told_to_its_pods_of_then() -> None:
    reported = Reported(evict=True)
    for pods in ([], ["second"]):
        reported.api.more_pods = pods
        reported.overuse(0)
        reported.reporter.step()
        assert reported.api.asked == ["team/pod-0", *(f"team/{pod}" for pod in pods)]
        reported.overuse()
        reported.reporter.step()
    assert len(reported.api.events) == 2


def test_a_server_that_is_down_is_asked_again() -> None:
    reported = Reported(evict=True)
    reported.overuse(0)
    reported.api.down = True
    assert reported.reporter.attempt().at_most is not None
    reported.api.down = False
    assert reported.reporter.attempt().at_most is None
    assert reported.api.asked == ["team/pod-0"]


def test_a_missing_component_is_named_and_its_pods_are_told_all_the_same() -> None:
    reported = Reported(evict=True)
    reported.overuse(0)
    reported.api.has_component = False
    with pytest.raises(ApiError, match="add the component deploy/kustomize/kubelet-plugin-evict"):
        reported.reporter.step()
    assert len(reported.api.events) == 1
    reported.api.has_component = True
    reported.reporter.step()
    assert reported.api.asked == ["team/pod-0"]
    assert len(reported.api.events) == 1


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
    assert reported.api.asked == []

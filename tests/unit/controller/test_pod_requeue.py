"""A kubelet that has given a pod up for a minute is woken, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api.kinds import RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.reconcile.pod_requeue import A_SECOND, LOOK_AGAIN, MOST, PodRequeue, has_ours
from koordra.errors import ApiUnreachable, NotFound


class Node:
    """Pods as the watch tells them, the clock, and what was written."""

    def __init__(self) -> None:
        self.now = 100.0
        self.leading = True
        self.written: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.refused: set[str] = set()
        self.waking = PodRequeue(
            self,
            ours=lambda pod: pod["metadata"]["name"] != "foreign",
            clock=lambda: self.now,
            may_write=lambda: self.leading,
        )

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Object:
        assert body["metadata"]["uid"] == f"uid-{name}"
        if self.error:
            raise self.error
        if name in self.refused:
            raise ApiUnreachable("the webhook failed", code=500)
        self.written.append((name, body["metadata"]["annotations"][LOOK_AGAIN]))
        return {}

    def pod(
        self, name: str = "p", *, ready: str | None = "False", event: str = "MODIFIED", **more: Any
    ) -> None:
        conditions = [{"type": "PodReadyToStartContainers", "status": ready}] if ready else []
        made = {
            "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **more.get("metadata", {})},
            "spec": {"nodeName": "n", "resourceClaims": [{"name": "d"}], **more.get("spec", {})},
            "status": {"phase": "Pending", "conditions": conditions, **more.get("status", {})},
        }
        self.waking.on_pod(event, made)

    def after(self, seconds: float) -> list[tuple[str, str]]:
        """What is written in so many seconds, with a look a second."""
        before = len(self.written)
        for _ in range(int(seconds)):
            self.now += 1.0
            self.waking.sync()
        return self.written[before:]


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_without_a_sandbox_is_told_of_again_and_again_ever_more_seldom(node: Node) -> None:
    node.pod()
    assert node.after(2) == []
    assert node.after(1) == [("p", "1")]
    assert node.after(4) == []
    assert node.after(1) == [("p", "2")]
    assert len(node.after(3600)) == MOST - 2
    assert node.after(3600) == []


@pytest.mark.parametrize(
    "now",
    [
        {"ready": "True"},
        {"event": "DELETED"},
        {"status": {"phase": "Failed"}},
        {"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}},
    ],
    ids=str,
)
def test_once_it_has_one_or_is_gone_nothing_is_written(node: Node, now: dict[str, Any]) -> None:
    node.pod()
    node.pod(**now)
    assert node.after(100) == []


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": {"nodeName": ""}},
        {"spec": {"resourceClaims": []}},
        {"ready": None},
        {"name": "foreign"},
    ],
    ids=str,
)
def test_who_is_left_alone(node: Node, pod: dict[str, Any]) -> None:
    """Not bound, without claims, not seen by a kubelet yet, another driver's."""
    node.pod(**pod)
    assert node.after(100) == []


def test_our_own_annotation_does_not_begin_it_anew(node: Node) -> None:
    node.pod()
    node.after(3)
    node.pod(metadata={"annotations": {LOOK_AGAIN: "1"}})
    assert node.after(4) == []
    assert node.after(1) == [("p", "2")]


def test_news_of_the_pod_does_not_put_it_off(node: Node) -> None:
    for _ in range(3):
        node.pod(status={"message": "still nothing"})
        node.after(1)
    assert node.written == [("p", "1")]


def test_another_leader_goes_on_where_the_last_one_was(node: Node) -> None:
    node.pod(metadata={"annotations": {LOOK_AGAIN: str(MOST)}})
    node.pod("q", metadata={"annotations": {LOOK_AGAIN: "what people write"}})
    assert node.after(600)[0] == ("q", "1")
    assert {name for name, _ in node.written} == {"q"}


def test_who_is_no_leader_writes_nothing(node: Node) -> None:
    node.pod()
    node.leading = False
    assert node.after(30) == []


def test_many_at_once_are_spread(node: Node) -> None:
    for number in range(A_SECOND + 7):
        node.pod(f"p{number}")
    assert len(node.after(3)) == A_SECOND
    assert len(node.after(1)) == 7


def test_a_pod_that_is_gone_is_no_trouble_and_a_server_that_is_away_is_asked_later(node: Node) -> None:
    node.pod()
    node.error = NotFound("gone", code=404)
    assert node.after(5) == []
    node.error = ApiUnreachable("away")
    with pytest.raises(ApiUnreachable):
        node.after(10)
    node.error = None
    assert node.after(1) == [("p", "2")]


def test_pods_of_others_take_nobodys_turn(node: Node) -> None:
    for number in range(3 * A_SECOND):
        node.pod("foreign", metadata={"uid": f"other-{number}"})
    node.pod()
    assert node.after(3) == [("p", "1")]


def test_a_pod_that_cannot_be_written_does_not_stop_the_others(node: Node) -> None:
    """A webhook that fails for one namespace answers as a server that is away."""
    node.pod("poison")
    node.pod("q")
    node.refused = {"poison"}
    for _ in range(2):
        with pytest.raises(ApiUnreachable):
            node.after(4)
    assert node.written == [("q", "1")]


def test_whose_claims_they_are() -> None:
    def holding(driver: str) -> Object:
        result = {"driver": driver, "pool": "n", "device": "d", "request": "r"}
        return {"metadata": {}, "status": {"allocation": {"devices": {"results": [result]}}}}

    found = {"team/ours": holding("koordra.io"), "team/theirs": holding("example.com")}

    def find(kind: Kind, key: str) -> Object | None:
        assert kind is RESOURCE_CLAIMS
        return found.get(key)

    def pod(*claims: str) -> Object:
        entries = [{"name": name, "resourceClaimName": name} for name in claims]
        return {"metadata": {"namespace": "team"}, "spec": {"resourceClaims": entries}}

    assert has_ours(pod("theirs", "ours"), find)
    assert not has_ours(pod("theirs", "unknown"), find)

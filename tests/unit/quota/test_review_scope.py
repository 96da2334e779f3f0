"""About which namespaces the API server asks, and claims that came before it did."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from koordra.api import objects
from koordra.controller.quota import scope
from koordra.controller.quota.scope import KEY, LOOK_EVERY, MOST, SPARED, ReviewScope, selector
from koordra.controller.quota.unreviewed import SETTLE
from koordra.controller.quota.watch import QuotaWatch
from koordra.controller.webhook.cert_rotation import CONFIGURATIONS, NAME
from koordra.errors import ApiUnreachable, Conflict
from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.native import ROOT
from tests.unit.quota.replicas import Object, Replica, Server, a_claim, a_quota, a_slice, asks

SLICE = a_slice("n0", *["80Gi"] * 8)
SHIPPED = ROOT / "deploy" / "kustomize" / "webhook" / "validating.yaml"


class Installed:
    """The configuration as it is shipped, and the leader that narrows it."""

    def __init__(self) -> None:
        self.api = FakeKubeApi()
        self.now, self.leads = 0.0, True
        self.apply()
        self.leader = ReviewScope(self.api, lambda: self.leads, clock=lambda: self.now)  # type: ignore[arg-type]

    def apply(self) -> None:
        shipped = yaml.safe_load(SHIPPED.read_text())
        if (CONFIGURATIONS[1].plural, "", NAME) in self.api.objects:
            self.api.delete(CONFIGURATIONS[1], NAME)
        self.api.create(CONFIGURATIONS[1], shipped)

    def selectors(self) -> dict[str, Object]:
        found = self.api.get(CONFIGURATIONS[1], NAME)["webhooks"]
        return {entry["name"]: entry.get("namespaceSelector") for entry in found}

    def asks_about(self, namespace: str) -> bool:
        """By both, or by neither."""
        both = {_matches(self.selectors()[name], namespace) for name in scope.WEBHOOKS}
        (same,) = both
        return same


def _matches(found: Object, namespace: str) -> bool:
    (one,) = found["matchExpressions"]
    assert one["key"] == KEY
    if one["operator"] == "DoesNotExist":
        assert "values" not in one
        return False
    assert one["values"], "the API server refuses none"
    return (namespace in one["values"]) is (one["operator"] == "In")


def test_only_namespaces_with_quotas_are_asked_about() -> None:
    cluster = Installed()
    others = {name: found for name, found in cluster.selectors().items() if name not in scope.WEBHOOKS}
    assert cluster.asks_about("team"), "as it is shipped, nothing is let in uncounted"
    cluster.leader.follow(["team"])
    assert cluster.asks_about("team")
    assert not cluster.asks_about("other")
    cluster.leader.follow([])
    assert not cluster.asks_about("team")
    assert {name: found for name, found in cluster.selectors().items() if name in others} == others


@pytest.mark.parametrize("spared", SPARED)
def test_namespaces_that_are_spared_stay_so(spared: str) -> None:
    assert not _matches(selector([spared, "team"]), spared)
    assert not _matches(selector([spared]), spared)
    assert not _matches(selector([spared, *map(str, range(MOST + 1))]), spared)


def test_too_many_namespaces_are_every_namespace() -> None:
    assert _matches(selector(map(str, range(MOST + 1))), "other")
    assert not _matches(selector(map(str, range(MOST))), "other")


def test_manifests_that_are_applied_again_are_narrowed_again_at_the_next_look() -> None:
    cluster = Installed()
    cluster.leader.follow(["team"])
    cluster.apply()
    cluster.leader.follow(["team"])
    assert cluster.asks_about("other"), "nobody looks all the time"
    cluster.now += LOOK_EVERY
    cluster.leader.follow(["team"])
    assert not cluster.asks_about("other")


def test_nothing_is_written_by_whoever_leads_no_more_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Installed()
    cluster.leads = False
    cluster.leader.follow(["team"])
    assert cluster.asks_about("other")
    cluster.leads = True
    cluster.leader.follow(["team"])
    cluster.now += LOOK_EVERY

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(cluster.api, "patch", never)
    cluster.leader.follow(["team"])


def test_what_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Installed()
    for error in (Conflict("modified", code=409), ApiUnreachable("nobody answers")):
        with monkeypatch.context() as patched:

            def failing(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            patched.setattr(cluster.api, "patch", failing)
            cluster.leader.follow(["team"])
    cluster.leader.follow(["team"])
    assert not cluster.asks_about("other")


def test_without_webhooks_there_is_nothing_to_narrow() -> None:
    cluster = Installed()
    cluster.api.delete(CONFIGURATIONS[1], NAME)
    cluster.leader.follow(["team"])


def test_a_namespace_is_asked_about_while_it_has_a_quota_on_koordras_names() -> None:
    client: Any = FakeKubeApi()
    watch = QuotaWatch(client)
    foreign = {**a_quota("cpu"), "spec": {"hard": {"requests.cpu": "1", "requests.nvidia.com/gpu": "8"}}}
    watch._changed("ADDED", foreign)
    assert watch.terms == {}
    watch._changed("ADDED", a_quota("a", gpu="1"))
    began = watch.term("team")
    assert watch.terms == {"team": began}
    watch._changed("ADDED", a_quota("b", nic="1"))
    watch._changed("DELETED", a_quota("a", gpu="1"))
    assert watch.term("team") == began, "it goes on"
    watch._changed("MODIFIED", a_quota("b"))
    assert watch.terms == {}
    watch._changed("MODIFIED", a_quota("b", gpu="2"))
    assert watch.term("team") not in (0, began), "what came meanwhile came unasked"


def test_claims_that_came_unasked_count_although_no_watch_has_shown_them() -> None:
    server = Server(a_quota(gpu="1"))
    before = a_claim("before", asks())
    server.claims[objects.uid(before)] = before
    replica = Replica(server, SLICE)
    assert "used: requests.koordra.io/gpu=1" in replica.refuses(a_claim("a", asks()))
    replica.shown(before)
    assert "used: requests.koordra.io/gpu=1" in replica.refuses(a_claim("a", asks())), "once"
    replica.shown(before, event="DELETED")
    del server.claims[objects.uid(before)]
    assert replica.admits(a_claim("a", asks()))


def test_the_api_server_is_asked_for_claims_only_at_first() -> None:
    server = Server(a_quota(gpu="9"))
    replica = Replica(server, SLICE)
    assert replica.admits(a_claim("a", asks()))
    server.now += SETTLE + 1
    lists = server.lists
    assert replica.admits(a_claim("b", asks()))
    assert lists == server.lists == 1


def test_where_they_cannot_be_read_nobody_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(a_quota(gpu="9"))
    replica = Replica(server, SLICE)

    def away(*_: object, **__: object) -> None:
        raise ApiUnreachable("nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr(server, "list", away)
        assert replica.review(a_claim("a", asks())).code == 503
    assert replica.admits(a_claim("b", asks()))

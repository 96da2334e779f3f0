"""Whose eviction the hook asks for: a wrong eviction is worse than a late one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from koordra.errors import ApiUnreachable
from koordra.evictions import OF_HOOK, EvictionRequests, decode
from koordra.kube.client import KubeClient
from koordra.nri.verify.api_reporter import ApiReporter
from koordra.nri.verify.drift import Drift, Finding
from tests.unit.nri.node_state import NODE, container


class Api:
    def __init__(self) -> None:
        self.entry: str | None = "what the hook before has left"
        self.down = False

    def create(self, kind: Any, body: Any, **where: Any) -> None:
        assert "subresource" not in where, "the hook evicts nobody itself"
        if self.down:
            raise ApiUnreachable("no route")

    def patch(self, kind: Any, name: str, body: Any, **where: Any) -> None:
        assert name == OF_HOOK
        if self.down:
            raise ApiUnreachable("no route")
        self.entry = body["data"][NODE]

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(one.name, one.reason) for one in decode(self.entry or "[]")]


def reporter(api: Api) -> ApiReporter:
    client = cast("KubeClient", api)
    requests = EvictionRequests(client, OF_HOOK, node=NODE, namespace="koordra-system")
    return ApiReporter(client, node=NODE, evictions=requests)


def finding(pod: str, kind: str = "ForeignDevice", *, earlier: bool = False, name: str = "") -> Finding:
    drift = Drift(kind, "it can open a card")
    return Finding(container(pod=pod, pod_uid=f"uid-{pod}", id=name or pod), drift, earlier)


def test_a_pod_is_to_go_while_one_of_its_containers_has_what_it_should_not_have() -> None:
    api = Api()
    ours = reporter(api)
    ours.ask_for_evictions()
    assert api.entry is None
    first, second = finding("a"), finding("a", name="sidecar")
    for each in (first, second, finding("b", "InterfaceMissing"), finding("c", "NotConfined")):
        ours.found(each)
    ours.ask_for_evictions()
    assert api.asked == [("a", "ForeignDevice")]
    ours.gone(first)
    ours.ask_for_evictions()
    assert api.asked == [("a", "ForeignDevice")]
    ours.gone(second)
    ours.ask_for_evictions()
    assert api.entry is None


def test_one_older_than_the_hook_and_one_that_is_no_pods_never() -> None:
    api = Api()
    ours = reporter(api)
    for each in (finding("old", earlier=True), finding("")):
        ours.found(each)
    ours.ask_for_evictions()
    assert api.asked == []


def test_a_server_that_is_down_is_asked_again() -> None:
    api = Api()
    ours = reporter(api)
    ours.found(finding("a"))
    api.down = True
    with pytest.raises(ApiUnreachable):
        ours.ask_for_evictions()
    api.down = False
    ours.ask_for_evictions()
    assert api.asked == [("a", "ForeignDevice")]


def test_without_the_operators_word_nothing_is_asked_for() -> None:
    api = Api()
    ours = ApiReporter(cast("KubeClient", api), node=NODE)
    ours.found(finding("a"))
    ours.ask_for_evictions()
    assert api.entry == "what the hook before has left"

"""Which pods are evicted, and how many at once: a wrong eviction is worse than a late one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from koordra.errors import ApiUnreachable
from koordra.kube import KubeClient
from koordra.nri.verify.api_reporter import ApiReporter
from koordra.nri.verify.drift import Drift, Finding
from tests.unit.nri.node_state import NODE, container


class Api:
    def __init__(self) -> None:
        self.evicted: list[str] = []

    def create(self, kind: Any, body: Any, **where: Any) -> None:
        if where.get("subresource") == "eviction":
            self.evicted.append(where["name"])


def finding(pod: str, *, earlier: bool = False) -> Finding:
    drift = Drift("ForeignDevice", "it can open a card")
    return Finding(container(pod=pod, pod_uid=f"uid-{pod}", id=pod), drift, earlier)


def test_a_pod_is_evicted_once_and_one_older_than_the_hook_never() -> None:
    api = Api()
    reporter = ApiReporter(cast("KubeClient", api), node=NODE, evict=True)
    for each in (finding("a"), finding("a"), finding("old", earlier=True)):
        reporter.found(each)
    assert api.evicted == ["a"]


def test_what_hits_many_pods_is_not_answered_by_evicting_them_all() -> None:
    api, now = Api(), [0.0]
    reporter = ApiReporter(cast("KubeClient", api), node=NODE, evict=True, clock=lambda: now[0])
    for n in range(5):
        reporter.found(finding(f"pod-{n}"))
    with pytest.raises(ApiUnreachable, match="too many"):  # the loop asks again
        reporter.found(finding("pod-5"))
    now[0] = 601
    reporter.found(finding("pod-5"))
    assert api.evicted == [f"pod-{n}" for n in range(6)]

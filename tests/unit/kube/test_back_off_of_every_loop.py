"""Every loop that talks to the API server, for a simulated hour in which the server answers nothing but one
and the same no: how often it is asked. docs/api-server.md has these loops as a table."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import pytest
import urllib3

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.controller.cache.changes import Informers
from koordra.controller.explain.questions import Questions
from koordra.controller.reconcile import reconcile_loop
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.controller.reconcile.pod_requeue import PodRequeue
from koordra.controller.reconcile.reconcile_loop import ReconcileLoop, run_passes
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_recorder import EventRecorder
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.controller.run import Readiness, _Process, _stand_by_and_lead
from koordra.controller.settings import Settings
from koordra.controller.webhook.cert_rotation import WebhookSettings, rotate_keys
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.request_limit import RequestLimit
from koordra.kube.watch import WatchCache, negotiate
from koordra.kubelet_plugin.publish.publisher import Publisher
from koordra.kubelet_plugin.status.node_labels import NodeLabels
from koordra.metrics import Metrics
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.machine import Machine
from tests.fakes.joint_cluster import claim

HOUR: Final = 3600.0


class Hour:
    """A clock, and events that are waited for: waiting moves the clock, and sets `stop` when it is over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stop = self.event()

    def monotonic(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= HOUR:
            self.stop.set()

    def event(self) -> threading.Event:
        hour = self

        class Waiting(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None, "it would wait for ever"
                if not self.is_set():
                    hour.passes(timeout)
                return self.is_set()

        return Waiting()


class Answers(Protocol):
    def __call__(self, method: str, url: str, **_: Any) -> urllib3.HTTPResponse: ...


class NoServer:
    """An API server that says one thing to everything, after `takes` seconds; counts what it is asked."""

    def __init__(self, hour: Hour, status: int, headers: Mapping[str, str], takes: float) -> None:
        self._hour, self._status, self._headers, self._takes = hour, status, headers, takes
        self.asked: list[str] = []

    def request(self, method: str, url: str, **_: Any) -> urllib3.HTTPResponse:
        self.asked.append(f"{method} {url}")
        assert len(self.asked) < 50_000, "asked without a pause"
        self._hour.passes(self._takes)
        if not self._status:
            raise urllib3.exceptions.ReadTimeoutError(None, url, "timed out")  # type: ignore[arg-type]
        body = io.BytesIO(b'{"message": "no"}')
        return urllib3.HTTPResponse(body, self._headers, status=self._status, preload_content=False)


def watch(client: KubeClient, hour: Hour) -> None:
    WatchCache(client, kinds.PODS).run(hour.stop)


def versions(client: KubeClient, hour: Hour) -> None:
    while not hour.stop.is_set():
        negotiate(client, hour.stop)
        hour.passes(HOUR)  # a no that is an answer is taken for one


def optional_kinds(client: KubeClient, hour: Hour) -> None:
    """Each is asked for once, in a leader's term; until it is answered."""
    informers = Informers(client, changed=[], stop=hour.stop, listeners={})
    informers._is_served(kinds.NAMESPACES)


def crds(client: KubeClient, hour: Hour) -> None:
    ReconcileLoop(
        client,
        lambda _caches: None,
        name="x",
        crds=(kinds.NODES,),
        gather=0.0,
        stop=hour.stop,
        changed=hour.event(),
    ).run()


def passes(client: KubeClient, hour: Hour) -> None:
    def one_pass() -> None:
        client.patch(kinds.NODES, "n", {})

    run_passes(one_pass, name="x", gather=0.02, changed=hour.event(), stop=hour.stop)


def requeue(client: KubeClient, hour: Hour) -> None:
    requeued = PodRequeue(client, ours=lambda _pod: True, clock=hour.monotonic, may_write=lambda: True)
    for number in range(500):
        condition = {"type": "PodReadyToStartContainers", "status": "False"}
        requeued.on_pod(
            "ADDED",
            {
                "metadata": {"name": f"p{number}", "namespace": "a", "uid": str(number)},
                "spec": {"nodeName": "n", "resourceClaims": [{"name": "x"}]},
                "status": {"phase": "Pending", "conditions": [condition]},
            },
        )
    run_passes(requeued.sync, name="x", gather=0.0, changed=hour.event(), stop=hour.stop)


def events(client: KubeClient, hour: Hour) -> None:
    recorder = EventRecorder(client, now=lambda: "now", identity="me", clock=hour.monotonic)
    recorder._wake = hour.event()
    for number in range(100):
        recorder(ClaimEvent("Tainted", "x", (claim(f"c{number}", uid=str(number)),)))
    recorder.run(hour.stop)


def lease(client: KubeClient, hour: Hour) -> None:
    metrics = Metrics()
    process = _Process(
        client,
        Settings("me", times=LeaseTimes()),
        (),
        ControllerMetrics(metrics),
        LeaderFigures(metrics, node_metrics=False),
        Readiness(),
        Questions(),
    )
    _stand_by_and_lead(process, hour.stop, is_well=lambda: True)


def webhook_keys(client: KubeClient, hour: Hour) -> None:
    server: Any = SimpleNamespace(is_ready=lambda: False)
    rotate_keys(client, WebhookSettings(), server, stop=hour.stop, legacy=True)


def part(made: Callable[[KubeClient], Wakeable]) -> Callable[[KubeClient, Hour], None]:
    """Of the kubelet plugin: woken the whole time, which is no reason to ask."""

    def run(client: KubeClient, hour: Hour) -> None:
        one = made(client)
        one._woken = hour.event()
        hour_wait = hour.stop.wait

        def wait(timeout: float | None = None) -> bool:
            one.wake()
            return hour_wait(timeout)

        hour.stop.wait = wait  # type: ignore[method-assign]
        one.run(hour.stop)

    return run


class Writer(Wakeable):
    """A part that could not do all of it, which it has told already."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__()
        self._client = client

    def step(self) -> Pause | None:
        try:
            self._client.patch(kinds.NODES, "n", {})
        except ApiError:
            return None
        return Pause(0.0, None)


def nothing(_node: Object, _generation: int) -> list[Object]:
    return []


GROWS: Final = 3600 / 15 + 20
"""Pauses that double to 30 s, of which the shortest is 15."""
LEADER: Final = 3600 / 5 + 20
"""The leader's passes: to 10 s."""
LOOPS: Final[dict[str, tuple[Callable[[KubeClient, Hour], None], float]]] = {
    "watch": (watch, GROWS),
    "versions": (versions, 3 * GROWS),  # three requests a try
    "optional kinds": (optional_kinds, GROWS),
    "kinds of CRDs": (crds, GROWS),
    "passes": (passes, LEADER),
    "requeue": (requeue, 50 * LEADER),  # a pass goes on to the next pod where a no concerns that pod alone
    "events": (events, GROWS + 8),
    "lease": (lease, 3600 / 1.8 + 20),  # fixed: renewing in time is what it is for
    "webhook keys": (webhook_keys, GROWS),
    "publish": (part(partial(Publisher, node="n", build=nothing)), GROWS),
    "node labels": (part(lambda client: NodeLabels(client, node="n", machine=Machine)), GROWS),
    "status and evictions": (part(Writer), GROWS),
}
NOES: Final[dict[str, tuple[int, dict[str, str], float]]] = {
    "500": (500, {}, 0.0),
    "429": (429, {}, 0.0),
    "429, Retry-After": (429, {"Retry-After": "20"}, 0.0),
    "403": (403, {}, 0.0),
    "time-out": (0, {}, 5.0),
}


@pytest.mark.parametrize("no", NOES)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_hour_of_a_server_that_says_no(loop: str, no: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hour, (run, most) = Hour(), LOOPS[loop]
    monkeypatch.setattr(reconcile_loop, "time", hour)
    server = NoServer(hour, *NOES[no])
    limit = RequestLimit(clock=hour.monotonic, sleep=hour.passes)
    client = KubeClient("http://x", server, dict, timeout=5.0, user_agent="u", limit=limit)  # type: ignore[arg-type]
    run(client, hour)
    assert hour.now >= HOUR or no == "403"
    assert 0 < len(server.asked) <= most
    if no == "429, Retry-After" and loop != "lease":
        assert len(server.asked) <= HOUR / 20 + 5


def test_the_page_has_a_row_for_each_loop() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "api-server.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert [loop for loop in LOOPS if not any(line.startswith(f"| {loop} |") for line in rows)] == []

"""Who looks after the cluster hears of a node's thread that stands still, and nobody waits for that."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.errors import ApiUnreachable
from koordra.kube.stuck_event import REASON, StuckEvents
from koordra.metrics import Metrics
from koordra.nri.service import Options, told_of_stuck
from koordra.process import progress
from koordra.process.watchdog import LOOKS, Watchdog
from tests.fakes.kube_api import FakeKubeApi
from tests.patience import PATIENCE


def test_a_thread_that_stands_still_is_an_event_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "threads", {})
    api, written = FakeKubeApi(), threading.Semaphore(0)
    events = StuckEvents(
        api,  # type: ignore[arg-type]
        node="node-a",
        program="nri",
        effect="Nothing\x1b starts.",
        now=lambda: "now",
    )
    write = events.write

    def counted(stuck: Collection[str]) -> None:
        write(stuck)
        written.release()

    monkeypatch.setattr(events, "write", counted)
    watchdog = Watchdog(Metrics(), told=events, write_stacks=lambda: None)
    with progress.watched("verification"):
        for _ in range(3 * LOOKS):
            watchdog.look()
    assert written.acquire(timeout=PATIENCE)
    assert not written.acquire(blocking=False), "once"
    (event,) = api.list(kinds.EVENTS)[0]
    assert event["reason"] == REASON == "ThreadStuck"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert event["message"] == "no step for two minutes: verification. Nothing\\x1b starts."
    assert (event["type"], event["source"]) == ("Warning", {"component": "koordra-nri", "host": "node-a"})


def test_an_api_server_that_is_away_ends_nothing() -> None:
    class Away:
        def create(self, *_: Any, **__: Any) -> None:
            raise ApiUnreachable("away")

    StuckEvents(Away(), node="n", program="nri", effect="").write({"x"})  # type: ignore[arg-type]


def test_the_hook_tells_with_access_to_the_api_alone(tmp_path: Path) -> None:
    options = Options("n", tmp_path, tmp_path / "nri.sock", "90", frozenset())
    assert not isinstance(told_of_stuck(options), StuckEvents)
    client: Any = FakeKubeApi()
    options = replace(options, client=client)
    assert isinstance(told_of_stuck(options), StuckEvents)

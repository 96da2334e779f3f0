"""The loop of the reconcilers beside the main one: it waits for its CRDs, and no failure of a pass ends
it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from koordra.api.kinds import DEVICE_CLASSES
from koordra.controller.reconcile import reconcile_loop
from koordra.errors import ApiError, NotFound
from koordra.process import backoff


class Client:
    """Serves the kind from the second time on that it is asked for."""

    def __init__(self) -> None:
        self.probes = 0

    def newest(self, kind: object) -> str:
        self.probes += 1
        if self.probes == 1:
            raise NotFound("no such kind", code=404, reason="NotFound")
        return "1"


class Synced:
    def __init__(self, client: Client, kind: object, *, on_change: Any) -> None:
        self.changed = on_change

    def start(self, stop: threading.Event) -> None:
        """Everything is listed already."""

    def wait_synced(self, seconds: float) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_loop, "WatchCache", Synced)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(reconcile_loop, "PERIOD", 0.05)


def test_failed_passes_are_repeated_and_a_change_is_a_pass() -> None:
    client, stop, changed = Client(), threading.Event(), threading.Event()
    outcomes: list[Exception | None] = [
        ApiError("away", code=503, reason=""),
        ValueError("a defect"),
        None,
        None,
    ]
    passes = 0

    def reconcile(caches: reconcile_loop.Caches) -> None:
        nonlocal passes
        assert list(caches) == [DEVICE_CLASSES]
        passes += 1
        outcome = outcomes[passes - 1]
        if passes == len(outcomes):
            stop.set()
        elif outcome is None:
            changed.set()
        if outcome is not None:
            raise outcome

    reconcile_loop.ReconcileLoop(
        client,  # type: ignore[arg-type]
        reconcile,
        name="test",
        kinds=(DEVICE_CLASSES,),
        crds=(DEVICE_CLASSES,),
        gather=0,
        changed=changed,
        stop=stop,
    ).run()
    assert (client.probes, passes) == (2, 4)


def test_a_term_that_ends_before_the_crds_are_there_makes_no_pass() -> None:
    client, stop = Client(), threading.Event()
    client.probes = -(10**6)

    def never(_caches: reconcile_loop.Caches) -> None:
        pytest.fail("a pass without its kinds")

    stop.set()
    reconcile_loop.ReconcileLoop(
        client,  # type: ignore[arg-type]
        never,
        name="test",
        kinds=(),
        crds=(DEVICE_CLASSES,),
        gather=0,
        changed=threading.Event(),
        stop=stop,
    ).run()


def test_work_that_passes_share_is_done_by_the_first_and_then_once_a_period() -> None:
    now, done, to_the_end = 100.0, [], True

    def work() -> bool:
        done.append(now)
        return to_the_end

    after_pass = reconcile_loop.seldom(work, period=1.0, clock=lambda: now)
    assert after_pass() is None
    now = 100.75
    assert after_pass() == pytest.approx(0.25), "the pass after which it is told is due"
    now, to_the_end = 101.0, False
    assert after_pass() == 0.0
    assert after_pass() == 0.0, "what is not done to the end is not put off"
    to_the_end = True
    assert after_pass() is None
    assert done == [100.0, 101.0, 101.0, 101.0]

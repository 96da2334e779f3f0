"""A hook that hangs refuses, is told, and is restarted by nobody: a restart would open a gap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import ttrpc_pb2
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri import service
from koordra.nri.hook.ledger import Ledger
from koordra.nri.service import Options
from koordra.nri.transport.ttrpc import Code, Decoder
from koordra.nri.transport.ttrpc_server import MOST_OPEN, MOST_WORKERS, Dispatcher
from koordra.nri.verify.bundles import Bundles
from koordra.nri.verify.verification import Verification
from koordra.process import progress
from koordra.process.watchdog import LOOKS, Watchdog
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE
from tests.unit.nri.transport.test_ttrpc_server import request


@pytest.fixture(autouse=True)
def nobody_else_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "threads", {})


class Gate:
    """What hangs until the test is over."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._inside = threading.Semaphore(0)

    def __call__(self, *_: Any) -> bytes:
        self._inside.release()
        assert self._open.wait(10 * PATIENCE)
        return b""

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self._inside.acquire(timeout=PATIENCE)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def test_with_every_worker_in_a_handler_that_hangs_all_is_refused_and_told(gate: Gate) -> None:
    metrics, answers, arrived = Metrics(), {}, threading.Semaphore(0)

    def write(message: bytes) -> None:
        (frame,) = Decoder().feed(message)
        answers[frame.stream] = ttrpc_pb2.Response.FromString(frame.data).status.code
        arrived.release()

    dispatcher = Dispatcher({("s", "CreateContainer"): gate}, write)
    watchdog = Watchdog(metrics, write_stacks=lambda: None)
    try:
        for number in range(MOST_WORKERS + 1):
            dispatcher.on_frame(request(2 * number + 1, "CreateContainer", timeout=0.2))
        gate.wait_for(MOST_WORKERS)
        for _ in range(MOST_WORKERS + 1):
            assert arrived.acquire(timeout=PATIENCE)
        assert set(answers.values()) == {Code.DEADLINE_EXCEEDED}, "none is created"
        for _ in range(LOOKS + 1):
            watchdog.look()
        assert watchdog.stuck == {"answer CreateContainer"}
        assert sample(metrics, "koordra_stuck_threads") == 1
    finally:
        dispatcher.close()


def test_what_was_answered_in_place_of_hung_handlers_is_kept_no_longer(gate: Gate) -> None:
    arrived = threading.Semaphore(0)
    dispatcher = Dispatcher({("s", "m"): gate}, lambda _message: arrived.release())
    try:
        for number in range(MOST_WORKERS):
            dispatcher.on_frame(request(2 * number + 1, "m", timeout=0.2))
        gate.wait_for(MOST_WORKERS)
        for number in range(MOST_WORKERS, MOST_WORKERS + 60):
            dispatcher.on_frame(request(2 * number + 1, "m", timeout=0.2))
        for _ in range(MOST_WORKERS + 60):
            assert arrived.acquire(timeout=PATIENCE)
        assert dispatcher._waiting == {}
    finally:
        dispatcher.close()


def test_requests_that_nobody_answers_are_so_many_and_then_refused(gate: Gate) -> None:
    """Without a time limit none is answered in its handler's place."""
    answers: dict[int, int] = {}
    arrived = threading.Semaphore(0)

    def write(message: bytes) -> None:
        (frame,) = Decoder().feed(message)
        answers[frame.stream] = ttrpc_pb2.Response.FromString(frame.data).status.code
        arrived.release()

    dispatcher = Dispatcher({("s", "m"): gate}, write)
    try:
        for number in range(MOST_OPEN + 3):
            dispatcher.on_frame(request(2 * number + 1, "m"))
        refused = {2 * number + 1 for number in range(MOST_OPEN, MOST_OPEN + 3)}
        assert answers == dict.fromkeys(refused, Code.RESOURCE_EXHAUSTED)
        gate.open()
        assert dispatcher.wait_idle(PATIENCE)
        assert len(answers) == MOST_OPEN + 3, "the others in time"
        dispatcher.on_frame(request(2 * MOST_OPEN + 7, "m"))
        assert dispatcher.wait_idle(PATIENCE)
        assert answers[2 * MOST_OPEN + 7] == Code.OK
    finally:
        dispatcher.close()


def test_a_verification_that_makes_no_step_is_told(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, stop = Metrics(), threading.Event()
    bundles = Bundles(tmp_path)
    monkeypatch.setattr(Bundles, "containers", lambda _self: gate())
    verification = Verification(
        StateReader(tmp_path, node_name="n"), ledger=Ledger(tmp_path), bundles=bundles, metrics=metrics
    )
    thread = threading.Thread(target=verification.run, args=(stop,), name="verification", daemon=True)
    thread.start()
    gate.wait_for(1)
    watchdog = Watchdog(metrics, write_stacks=lambda: None)
    for _ in range(LOOKS + 1):
        watchdog.look()
    assert watchdog.stuck == {"verification"}
    stop.set()
    gate.open()
    thread.join(PATIENCE)


def test_no_probe_of_the_hook_follows_its_watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet would restart it, or an update delete it early: a gap that whoever made it hang can use."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(service, "serve", lambda _metrics, _address, **said: asked.update(said))
    stuck = frozenset({"verification"})
    monkeypatch.setattr(Watchdog, "start", lambda self, _stop: setattr(self, "stuck", stuck))
    ends: list[Any] = []
    made = Watchdog.__init__

    def make(self: Watchdog, metrics: Metrics, **said: Any) -> None:
        ends.append(said.get("end"))
        made(self, metrics, **said)

    monkeypatch.setattr(Watchdog, "__init__", make)
    registered: list[bool] = []

    def serve_runtime(_options: Options, _stop: threading.Event, *, observer: Any, **_: Any) -> None:
        observer.connected(True)
        registered.append(asked["ready"]())

    monkeypatch.setattr(service, "_serve", serve_runtime)
    options = Options("n", tmp_path, tmp_path / "nri.sock", "90", frozenset())
    service.run(options, threading.Event())
    assert registered == [True]
    assert asked["stuck"]() == {"verification"}
    assert "well" not in asked or asked["well"]()
    assert ends == [None]

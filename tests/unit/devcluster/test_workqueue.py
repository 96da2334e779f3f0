"""The work queue: once, one at a time, again after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from koordra.errors import ApiError, Conflict
from koordra_devcluster.controllers.workqueue import WorkQueue
from tests.fakes.clock import Clock
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually


class Worker:
    """A queue with some threads; `seen` holds (key, when) in order."""

    def __init__(self, threads: int = 1) -> None:
        self.seen: list[tuple[str, float]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.errors: list[Exception] = []
        self.again: list[float] = []
        self.stop = threading.Event()
        self.queue = WorkQueue("test", self._handle)
        for _ in range(threads):
            threading.Thread(target=self.queue.run, args=(self.stop,), daemon=True).start()

    def _handle(self, key: str) -> float | None:
        self.seen.append((key, time.monotonic()))
        self.hold.wait(PATIENCE)
        if self.errors:
            raise self.errors.pop(0)
        return self.again.pop(0) if self.again else None

    def worked(self) -> list[str]:
        return [key for key, _ in self.seen]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the queues that are made after it."""
    found = Clock()
    monkeypatch.setattr("koordra_devcluster.controllers.workqueue.time", found)
    return found


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(threads=3)
    yield made
    made.stop.set()


def test_a_waiting_key_is_there_once(clock: Clock) -> None:
    worker = Worker()
    for _ in range(5):
        worker.queue.add("a", after=0.1)
    worker.queue.add("b", after=0.15)
    clock.now += 0.2
    eventually(lambda: "b" in worker.worked())
    assert worker.worked() == ["a", "b"]
    worker.stop.set()


@pytest.mark.usefixtures("clock")
def test_an_earlier_time_replaces_a_later_one(worker: Worker) -> None:
    worker.queue.add("a", after=30)
    worker.queue.add("a")
    worker.queue.add("a", after=30)
    eventually(lambda: worker.worked() == ["a"])


@pytest.mark.usefixtures("clock")
def test_a_key_is_never_worked_on_twice_at_a_time(worker: Worker) -> None:
    """What came meanwhile is due at once: on a clock that stands still nothing comes later."""
    worker.hold.clear()
    worker.queue.add("a")
    eventually(lambda: worker.worked() == ["a"])
    worker.queue.add("a")
    worker.queue.add("b")
    eventually(lambda: worker.worked() == ["a", "b"])
    worker.hold.set()
    eventually(lambda: worker.worked() == ["a", "b", "a"])


def test_a_failure_comes_again_and_others_go_on(worker: Worker) -> None:
    worker.errors = [ApiError("no"), Conflict("stale"), KeyError("a defect")]
    worker.queue.add("a")
    worker.queue.add("b", after=0.02)
    eventually(lambda: worker.worked().count("a") + worker.worked().count("b") == 5)


def test_a_handler_may_ask_to_see_a_key_again(worker: Worker) -> None:
    worker.again = [0.05]
    worker.queue.add("a")
    eventually(lambda: worker.worked() == ["a", "a"])
    assert worker.seen[1][1] - worker.seen[0][1] >= 0.05

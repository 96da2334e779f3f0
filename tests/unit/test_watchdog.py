"""A watchdog counts steps and looks, never time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Generator

import pytest
import urllib3

from koordra.api.kinds import PODS
from koordra.errors import ApiUnreachable
from koordra.kube import wire
from koordra.kube.client import KubeClient
from koordra.metrics import Metrics
from koordra.process import progress
from koordra.process.progress import resting, step, watched
from koordra.process.watchdog import LOOKS, MOST_LOOKS, Watchdog, write_stacks
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def nobody_else_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that other tests have left behind, a watch that still listens, are none of these tests'."""
    monkeypatch.setattr(progress, "threads", {})


class Looked:
    """A watchdog, and what it did."""

    def __init__(self, *, may_end: bool = True) -> None:
        self.metrics = Metrics()
        self.stacks = self.ends = 0
        self.dog = Watchdog(self.metrics, end=self._end if may_end else None, write_stacks=self._write)

    def _end(self) -> None:
        self.ends += 1

    def _write(self) -> None:
        self.stacks += 1

    def look(self, times: int, between: Callable[[], object] = lambda: None) -> None:
        for _ in range(times):
            self.dog.look()
            between()

    def well(self) -> bool:
        assert sample(self.metrics, "koordra_stuck_threads") == len(self.dog.stuck)
        return self.dog.is_well()


def test_a_thread_that_makes_no_step_is_stuck_after_so_many_looks(capsys: pytest.CaptureFixture[str]) -> None:
    looked = Looked()
    with watched("worker"):
        looked.look(LOOKS)
        assert looked.well(), "one look sees it first, and so many more that nothing has changed"
        looked.look(1)
        assert not looked.well()
        assert looked.dog.stuck == {"worker"}
        looked.look(5)
        assert looked.stacks == 1, "not with every look"
        step()
        looked.look(1)
        assert looked.well()
    told = capsys.readouterr().err
    assert (told.count("thread_stuck"), told.count("thread_gets_on")) == (1, 1)


def test_a_thread_that_makes_a_step_between_two_looks_is_never_stuck() -> None:
    looked = Looked()
    with watched("worker"):
        looked.look(10 * MOST_LOOKS, step)
        assert looked.well()
        looked.look(LOOKS)
        step()
        looked.look(LOOKS)
        assert looked.well(), "the looks are counted from the last step on"
    assert (looked.stacks, looked.ends) == (0, 0)


def test_a_thread_that_rests_may_do_so_for_ever() -> None:
    looked = Looked()
    with watched("worker"):
        with resting():
            looked.look(10 * MOST_LOOKS)
            assert looked.well()
        looked.look(LOOKS)
        assert looked.well(), "the end of a rest is a step"
        looked.look(1)
        assert not looked.well()


def test_a_thread_that_is_no_longer_watched_is_not_stuck() -> None:
    looked = Looked()
    with watched("first"):
        looked.look(LOOKS)
    with watched("second"):
        looked.look(LOOKS)
        assert looked.well(), "its looks are not those of the one before it"
        looked.look(1)
        assert looked.dog.stuck == {"second"}
    looked.look(1)
    assert looked.well()
    step()
    with resting():
        pass
    assert not progress.threads, "a thread that nobody watches is none"


def test_what_is_watched_within_what_is_watched_is_one_thread() -> None:
    looked = Looked()
    with watched("worker"):
        looked.look(LOOKS)
        with watched("a pass"):
            looked.look(LOOKS)
            assert looked.well(), "entering was a step"
        looked.look(1)
        assert looked.dog.stuck == {"worker"}


def test_each_thread_makes_its_own_steps() -> None:
    looked, go, gone = Looked(), threading.Event(), threading.Event()

    def other() -> None:
        with watched():
            gone.set()
            assert go.wait(PATIENCE)

    thread = threading.Thread(target=other, name="stands still")
    thread.start()
    assert gone.wait(PATIENCE)
    with watched("gets on"):
        looked.look(LOOKS + 1, step)
    assert looked.dog.stuck == {"stands still"}
    go.set()
    thread.join()


@pytest.mark.parametrize("may_end", [True, False])
def test_a_process_that_stays_stuck_ends_where_it_may(may_end: bool) -> None:
    looked = Looked(may_end=may_end)
    with watched("worker"):
        looked.look(MOST_LOOKS)
        assert (looked.ends, looked.stacks) == (0, 1)
        looked.look(1)
        assert looked.ends == int(may_end)


def test_a_watch_that_nothing_happens_on_rests() -> None:
    """And each event is a step."""
    looked, chunks = Looked(), 3

    class Response(urllib3.HTTPResponse):
        def stream(
            self, amt: int | None = None, decode_content: bool | None = None
        ) -> Generator[bytes, None, None]:
            for _ in range(chunks):
                looked.look(10 * LOOKS)
                yield b'{"type":"BOOKMARK"}\n'

    with watched("watch-pods"):
        for _ in wire.lines(Response()):
            looked.look(LOOKS)
        assert looked.well()
        looked.look(1)
    assert looked.stacks == 0


def test_a_server_that_does_not_begin_to_answer_a_watch_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = Looked()

    def answer(*_: object, **__: object) -> None:
        looked.look(10 * LOOKS)
        raise ApiUnreachable("after a while")

    monkeypatch.setattr(KubeClient, "_open", answer)
    client = KubeClient("http://api", urllib3.PoolManager(), dict, timeout=1, user_agent="test")
    with watched("watch-pods"):
        with pytest.raises(ApiUnreachable):
            next(client.watch(PODS, resource_version="1"))
        assert looked.well()


class StopAfter(threading.Event):
    """Set after so many waits, which take no time."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.left, self.waits = waits, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.left -= 1
        if not self.left:
            self.set()
        return self.is_set()


def test_it_looks_every_five_seconds_and_a_timer_in_c_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes without a step are stuck, five are the end."""
    told: list[tuple[int, object]] = []  # by thread: a watchdog of another test may look, too

    def tell(said: object) -> None:
        told.append((threading.get_ident(), said))

    later = "koordra.process.watchdog.faulthandler.{}dump_traceback_later".format
    monkeypatch.setattr(later(""), lambda seconds, file: tell((seconds, file is sys.__stderr__)))
    monkeypatch.setattr(later("cancel_"), lambda: tell("cancelled"))
    looked, stop = Looked(), StopAfter(61)
    with watched("worker"):
        (dog := looked.dog.start(stop)).join(PATIENCE)
    assert stop.waits == [5.0] * 61
    assert [said for by, said in told if by == dog.ident] == [(120.0, True)] * 61 + ["cancelled"]
    assert (looked.stacks, looked.ends) == (1, 1)
    assert (5.0 * LOOKS, 5.0 * MOST_LOOKS) == (120.0, 300.0)


def test_the_stacks_of_all_threads_go_to_the_real_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    write_stacks()
    assert "test_the_stacks_of_all_threads" in capfd.readouterr().err


STUCK = """
import sys, threading, time
from koordra.process import lifecycle, progress, watchdog
from koordra.metrics import Metrics
stop = lifecycle.stop_on_signals()
watchdog.PERIOD = 0.01
def loop():
    with progress.watched():
        an_endless_loop()
def an_endless_loop():
    while True: time.sleep(0.001)
lifecycle.spawn(loop, name="worker", until=stop)
dog = watchdog.Watchdog(Metrics(), end=lifecycle.end_failed)
dog.start(stop)
stop.wait()
print("well" if dog.is_well() else "not well", flush=True)
"""


def test_a_stuck_process_leaves_its_stacks_and_ends() -> None:
    found = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (found.returncode, found.stdout) == (70, "not well\n")
    for part in ("thread_stuck", "worker", "an_endless_loop", "process_stuck"):
        assert part in found.stderr


KEEPS_THE_INTERPRETER = """
import ctypes, threading
from koordra.process import lifecycle, watchdog
from koordra.metrics import Metrics
watchdog.PERIOD = 0.01
stop = threading.Event()
watchdog.Watchdog(Metrics()).start(stop)
def a_call_that_does_not_return():
    ctypes.PyDLL(None).usleep(600_000)
a_call_that_does_not_return()
"""


def test_a_library_that_keeps_the_interpreter_leaves_its_stack() -> None:
    found = subprocess.run(
        [sys.executable, "-c", KEEPS_THE_INTERPRETER],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert found.returncode == 0
    assert "a_call_that_does_not_return" in found.stderr

"""A process ends on the first signal, wherever its main thread waits, with its parent, and with a thread that
it relies on; never does a thread end unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from koordra.metrics import Metrics
from koordra.process import lifecycle
from koordra.process.watchdog import Watchdog
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE

WAITS = """
import sys, threading
from koordra.process.lifecycle import stop_on_signals
stop = stop_on_signals()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
stop.wait()
print("ended", flush=True)
if "deaf" in sys.argv:
    threading.Event().wait()
"""


def start(*arguments: str, parent: int | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "KOORDRA_PARENT": str(parent)} if parent else dict(os.environ)
    started = subprocess.Popen(
        [sys.executable, "-c", WAITS, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert started.stdout is not None
    if parent in {None, os.getpid()}:
        assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_main_thread_that_waits_without_limit_is_woken(number: signal.Signals) -> None:
    running = start()
    running.send_signal(number)
    out, _ = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out) == (0, "ended\n")


def test_the_second_signal_ends_at_once() -> None:
    running = start("deaf")
    running.send_signal(signal.SIGTERM)
    assert running.stdout is not None
    assert running.stdout.readline() == "ended\n"
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + signal.SIGTERM


def test_a_process_whose_parent_is_gone_does_not_start() -> None:
    running = start(parent=1 << 22)
    out, _ = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out) == (1, "")


def test_a_process_ends_with_its_parent() -> None:
    """A shell starts it and is killed; the kernel tells the child."""
    script = f"KOORDRA_PARENT=$$ {sys.executable} -c '{WAITS}' & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    assert parent.stdout.readline() == "ended\n"
    parent.stdout.close()
    deadline = time.monotonic() + PATIENCE
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}/exe")  # noqa: PTH110


FAILS = """
import sys, threading
from koordra.process import lifecycle
stop = lifecycle.stop_on_signals()
lifecycle.GRACE = 0.1 if "deaf" in sys.argv else 60.0
until = None if "task" in sys.argv else threading.Event() if "loop" in sys.argv else stop
def target():
    if "raise" in sys.argv: raise ValueError("a defect")
    if "exit" in sys.argv: sys.exit(0)
thread = lifecycle.spawn(target, name="worker-7", until=until)
if "task" in sys.argv:
    thread.join()
    print("goes on", flush=True)
    sys.exit(0)
if "deaf" in sys.argv:
    threading.Event().wait()
assert stop.wait(60)
print("ended", flush=True)
"""


def ended(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process one of whose threads fails."""
    found = subprocess.run(
        [sys.executable, "-c", FAILS, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize("loop", ["loop", "until-stop"])
@pytest.mark.parametrize(
    ("how", "word"),
    [("raise", "ValueError: a defect"), ("exit", "SystemExit"), ("return", "nobody had stopped it")],
)
def test_a_process_ends_with_a_thread_that_it_relies_on(loop: str, how: str, word: str) -> None:
    code, out, told = ended(loop, how)
    assert (code, out) == (lifecycle.FAILED, "ended\n"), (
        "in good order: what was to be done at the end is done"
    )
    for part in ("thread_failed", "worker-7", word):
        assert part in told


def test_a_process_that_does_not_end_in_good_order_is_ended() -> None:
    code, out, told = ended("loop", "raise", "deaf")
    assert (code, out) == (lifecycle.FAILED, "")
    assert "a defect" in told


def test_a_task_that_fails_is_told_and_the_process_goes_on() -> None:
    code, out, told = ended("task", "raise")
    assert (code, out) == (0, "goes on\n")
    for part in ("task_failed", "worker-7", "ValueError: a defect"):
        assert part in told


def test_errors_after_which_a_loop_went_on_are_a_metric() -> None:
    metrics, name = Metrics(), "a-loop-of-this-test"
    Watchdog(metrics)

    def loop() -> None:
        for _ in range(3):
            lifecycle.count_failure(ValueError("?"))

    lifecycle.spawn(loop, name=name).join(PATIENCE)
    labels = {"thread": name, "error": "ValueError"}
    assert sample(metrics, "koordra_loop_failures_total", labels) == 3
    assert (
        'koordra_loop_failures_total{error="ValueError",thread="a-loop-of-this-test"} 3.0' in metrics.text()
    )


def test_a_loop_that_was_stopped_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[None] = []
    monkeypatch.setattr(lifecycle, "_running", [threading.Event()])
    monkeypatch.setattr(lifecycle, "end_failed", lambda: failed.append(None))
    stopped = threading.Event()
    stopped.set()
    for target in (lambda: None, lambda: sys.exit(1)):
        lifecycle.spawn(target, name="stopped", until=stopped).join(PATIENCE)
    assert not failed
    lifecycle.spawn(lambda: None, name="not stopped", until=threading.Event()).join(PATIENCE)
    assert failed

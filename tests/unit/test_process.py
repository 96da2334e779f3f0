"""A process ends on the first signal, wherever its main thread waits, and with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.patience import PATIENCE

WAITS = """
import sys, threading
from koordra.process import stop_on_signals
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
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    if parent in {None, os.getpid()}:
        assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_main_thread_that_waits_without_limit_is_woken(number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "ended\n")


def test_the_second_signal_ends_at_once() -> None:
    process = start("deaf")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_process_whose_parent_is_gone_does_not_start() -> None:
    process = start(parent=1 << 22)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")


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

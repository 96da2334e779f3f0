"""How a long-running koordra process starts and ends, the same for all of them.

SIGTERM, SIGINT and SIGHUP (the terminal was closed) set one event; every loop waits on it instead of
sleeping, so that a process ends within its current step. A second signal ends at once. A process that was
started by the demo ends with it, however the demo ended. Threads are daemons: a thread that hangs in a
foreign library must not keep a node's process alive.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

PARENT_VARIABLE: Final = "KOORDRA_PARENT"
"""Environment variable: process id of the parent without which this process has no reason to run."""

_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_on_signals() -> threading.Event:
    """An event that is set by the first of these signals; the second one ends the process.

    Call it before any other thread is started: the signals are blocked in all threads and taken by one of
    their own. A Python signal handler runs only when the main thread gets to run, and the kernel may hand the
    signal to another thread, so a main thread that waits without a time limit would not notice.
    """
    stop = threading.Event()
    _end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def listen() -> None:
        signal.sigwait(_SIGNALS)
        stop.set()
        os._exit(128 + signal.sigwait(_SIGNALS))

    spawn(listen, name="signals")
    return stop


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent named by PARENT_VARIABLE is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != parent:
        raise SystemExit(f"the process {parent} that started this one is gone")


def spawn(target: Callable[[], object], *, name: str) -> threading.Thread:
    """Start a daemon thread; its name appears in logs and in py-spy."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread

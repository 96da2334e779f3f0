"""How a long-running koordra process starts and ends, the same for all of them.

SIGTERM, SIGINT and SIGHUP (the terminal was closed) set one event; every loop waits on it instead of
sleeping, so that a process ends within its current step. A second signal ends at once. A process that was
started by the demo ends with it, however the demo ended. Threads are daemons: a thread that hangs in a
foreign library must not keep a node's process alive.

No thread ends unseen. Every thread is started by `spawn`: a loop that the process relies on ends the process
where it ends before it was told to, with the traceback in the log, in good order where that works (a leader
gives its Lease away) and with exit code FAILED. A loop that meets an error and goes on counts it
(`count_failure`; the metric is koordra_loop_failures_total).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from koordra.errors import KoordraError
from koordra.logs import get_logger

log = get_logger(__name__)

PARENT_VARIABLE: Final = "KOORDRA_PARENT"
"""Environment variable: process id of the parent without which this process has no reason to run."""

FAILED: Final = 70
"""Exit code of a process one of whose threads has failed (EX_SOFTWARE of sysexits.h)."""
GRACE: Final = 25.0
"""Seconds for the rest of such a process to end in good order; Kubernetes kills after 30."""

COLLECT_AFTER: Final = 50_000
"""Objects made before Python looks for cycles among them (its default is 700). Lists and watches make dicts
by the hundred thousand, none of which is part of a cycle."""

failures: Final[Counter[tuple[str, str]]] = Counter()
"""(thread, class of the error) -> how often a loop went on after an error."""

_running: list[threading.Event] = []
"""What ends this process in good order; none where koordra is used as a library."""

_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_on_signals() -> threading.Event:
    """An event that is set by the first of these signals; the second one ends the process.

    Call it before any other thread is started: the signals are blocked in all threads and taken by one of
    their own. A Python signal handler runs only when the main thread gets to run, and the kernel may hand the
    signal to another thread, so a main thread that waits without a time limit would not notice.

    From here on a loop of `spawn` that fails ends the process too, and a crash in C leaves the stacks of all
    threads on stderr.
    """
    stop = threading.Event()
    _running.append(stop)
    if sys.__stderr__ is not None:
        faulthandler.enable(file=sys.__stderr__)
    _end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def listen() -> None:
        signal.sigwait(_SIGNALS)
        stop.set()
        os._exit(128 + signal.sigwait(_SIGNALS))

    spawn(listen, name="signals", until=threading.Event())
    return stop


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent named by PARENT_VARIABLE is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != parent:
        raise SystemExit(f"the process {parent} that started this one is gone")


def spawn(
    target: Callable[[], object], *, name: str, until: threading.Event | None = None
) -> threading.Thread:
    """Start a daemon thread; its name appears in logs, in metrics and in py-spy.

    `until`: the process relies on the thread until this is set; where it ends before, by an error or not, the
    process ends. Without `until` it is a task: it may end, and an error of its own is logged and counted.
    """

    def run() -> None:
        try:
            target()
            if until is not None and not until.is_set():
                raise KoordraError(f"the thread {name} has ended, and nobody had stopped it")
        except BaseException as error:
            if not _running:
                raise  # to threading.excepthook
            count_failure(error)
            if until is None or until.is_set():
                log.exception("task_failed", thread=name)
            else:
                log.exception("thread_failed", thread=name, consequence="the process ends", exit_code=FAILED)
                end_failed()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def count_failure(error: BaseException) -> None:
    """An error that the loop of this thread goes on after."""
    failures[threading.current_thread().name, type(error).__name__] += 1


def end_failed() -> None:
    """End the process with exit code FAILED: in good order, or without after GRACE seconds."""

    def end() -> None:
        for stop in _running:
            stop.set()
        threading.main_thread().join(GRACE)
        os._exit(FAILED)

    try:
        # No daemon: the interpreter waits for it, so that the process cannot end with another code.
        threading.Thread(target=end, name="ending", daemon=False).start()
    except RuntimeError:  # no room for a thread
        os._exit(FAILED)


def collect_seldom() -> None:
    """Have the cycle collector run as rarely as suits a process whose memory is the objects of a cluster."""
    gc.set_threshold(COLLECT_AFTER, 20, 50)

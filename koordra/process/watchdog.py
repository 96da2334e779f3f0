"""Whether the threads of a process get on.

A watchdog looks every PERIOD seconds whether the threads that are watched (koordra.process.progress) have
made a step since, and counts its looks, not time: a process that was stopped, or a machine that was
suspended, has not been looked at. After LOOKS looks without a step a thread is stuck. Then the stacks of all
threads go to stderr, the process is not well (`/healthz`, and a leader no longer renews its Lease) until the
thread makes a step, and after MOST_LOOKS it ends, where it may.

How long a pass takes says nothing: a first pass at 10,000 nodes makes thousands of steps, and a worker that
waits for a slow API server makes one with each request, since requests have a time limit. What makes no step
at all is an endless loop, a lock that nobody gives back, or a call into a library that does not return. One
that keeps the interpreter to itself stops the watchdog too: then a timer in C writes the stacks, and the
probes get no answer.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from koordra.logs import get_logger
from koordra.metrics import Metrics, bounded, counter, gauge
from koordra.process import progress
from koordra.process.lifecycle import failures, spawn
from koordra.process.progress import WatchedThread

log = get_logger(__name__)

PERIOD: Final = 5.0
LOOKS: Final = 24
"""Two minutes. The longest step of a first pass on 10,000 nodes takes 2.4 s of CPU time, and many times
that on a machine that is short of it; a leader that is taken for stuck while it works helps nobody."""
MOST_LOOKS: Final = 60


def write_stacks() -> None:
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__)


LOOP_FAILURES: Final = counter(
    "koordra_loop_failures_total",
    "Errors after which a loop of this process went on",
    thread=bounded("the names of this process's threads"),
    error=bounded("the classes of the errors"),
)
STUCK: Final = gauge(
    "koordra_stuck_threads", "Threads that have made no step for two minutes; their stacks are in the log"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    thread: WatchedThread
    steps: int
    looks: int


class Watchdog:
    """`end` ends the process; None where it has to go on, because nothing would be better without it. `told`
    gets the names of all threads that are stuck, when there is another one; it must not wait for anything."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        end: Callable[[], object] | None = None,
        told: Callable[[Collection[str]], object] = lambda _stuck: None,
        write_stacks: Callable[[], object] = write_stacks,
    ) -> None:
        self._end = end
        self._told = told
        self._write_stacks = write_stacks
        self._seen: dict[int, _Seen] = {}
        self.stuck: frozenset[str] = frozenset()
        """Names of threads."""
        metrics.gauge(STUCK).set_function(lambda: len(self.stuck))
        metrics.table(LOOP_FAILURES).follow(lambda: dict(sorted(failures.copy().items())))

    def is_well(self) -> bool:
        return not self.stuck

    def start(self, stop: threading.Event) -> threading.Thread:
        """Look until `stop`, in a thread of its own."""
        return spawn(partial(self._run, stop), name="watchdog", until=stop)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback_later(PERIOD * LOOKS, file=sys.__stderr__)
            self.look()
            stop.wait(PERIOD)
        faulthandler.cancel_dump_traceback_later()

    def look(self) -> None:
        """Look at every watched thread once."""
        self._seen = {ident: self._look(ident, thread) for ident, thread in list(progress.threads.items())}
        stuck = {one.thread.name: one.looks for one in self._seen.values() if one.looks >= LOOKS}
        before, self.stuck = self.stuck, frozenset(stuck)
        for name in before - self.stuck:
            log.warning("thread_gets_on", thread=name)
        if self.stuck - before:
            idents = {hex(ident): one.thread.name for ident, one in self._seen.items()}
            log.critical("thread_stuck", stuck=sorted(self.stuck), looks=LOOKS, period=PERIOD, threads=idents)
            self._write_stacks()
            self._told(self.stuck)
        if self._end is not None and any(looks >= MOST_LOOKS for looks in stuck.values()):
            log.critical("process_stuck", stuck=sorted(self.stuck), consequence="the process ends")
            self._end()

    def _look(self, ident: int, thread: WatchedThread) -> _Seen:
        before, steps = self._seen.get(ident), thread.steps
        is_same = before is not None and before.thread is thread and before.steps == steps
        looks = before.looks + 1 if before is not None and is_same and not thread.rests else 0
        return _Seen(thread, steps, looks)

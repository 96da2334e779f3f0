"""Loops of passes: a pass after any change, after the pause that the last one named, and after a failure when
a growing pause is over.

A reconciler beside the main one runs for a leader's term, with watches of its own kinds, and every half
minute at last. Where the CRDs are not installed there is nothing to do; they are looked for again, at last
every half minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache, retried, start_watches
from koordra.logs import get_logger
from koordra.process.backoff import Backoff
from koordra.process.lifecycle import count_failure, spawn
from koordra.process.progress import step, watched

log = get_logger(__name__)

Caches = Mapping[Kind, WatchCache]

PERIOD: Final = 30.0
LONGEST_PAUSE: Final = 10.0
"""Seconds after a pass that failed. Fewer than elsewhere: there is one leader, and everybody waits for it."""


@dataclass(frozen=True)
class ReconcileLoop:
    """Passes of a reconciler beside the main one, until `stop`. `changed` is also set by others who want a
    pass; changes of `gather` seconds share one. A pass may return the seconds until the next one, if nothing
    changes."""

    client: KubeClient
    reconcile: Callable[[Caches], float | None]
    _: KW_ONLY
    name: str
    kinds: Sequence[Kind] = ()
    crds: Sequence[Kind] = ()
    gather: float
    stop: threading.Event
    changed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> threading.Thread:
        return spawn(self.run, name=self.name, until=self.stop)

    def run(self) -> None:
        for kind in self.crds:
            served = retried(
                partial(self.client.newest, kind),
                stop=self.stop,
                errors=ApiError,
                longest=PERIOD,
                report=lambda error: log.info("kinds_not_served", reconciler=self.name, error=str(error)),
            )
            if served is None:
                return
        caches = {kind: WatchCache(self.client, kind, on_change=self._wake) for kind in self.kinds}

        def one_pass() -> float:
            pause = self.reconcile(caches)
            return PERIOD if pause is None else pause

        if start_watches(caches.values(), self.stop):
            run_passes(one_pass, name=self.name, gather=self.gather, changed=self.changed, stop=self.stop)

    def _wake(self, _event: str, _obj: Object, /) -> None:
        self.changed.set()


@watched()
def run_passes(
    one_pass: Callable[[], float | None],
    *,
    name: str,
    gather: float,
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    """Until `stop`. A pass returns the seconds until the next one, if nothing changes, None for never."""
    backoff = Backoff(longest=LONGEST_PAUSE)
    while not stop.is_set():
        step()
        changed.clear()
        try:
            pause = one_pass()
        except ApiError as error:
            count_failure(error)
            log.warning("reconcile_interrupted", reconciler=name, error=str(error), failures=backoff.failures)
        except Exception as defect:  # which must not end what others rely on, or who holds the lease
            count_failure(defect)
            log.exception("reconcile_failed", reconciler=name, failures=backoff.failures)
        else:
            backoff.reset()
            _wait_for_change(changed, stop, pause)
            stop.wait(gather)
            continue
        stop.wait(backoff.next())


def seldom(
    work: Callable[[], bool], *, period: float = 1.0, clock: Callable[[], float] = time.monotonic
) -> Callable[[], float | None]:
    """Work that many passes share: done by the first of them, and then once a period. Each call returns the
    seconds until it is due again, None for never; `work` whether it was done to the end, else it is due at
    once."""
    done_at: float | None = None

    def after_pass() -> float | None:
        nonlocal done_at
        if done_at is not None and (rest := done_at + period - clock()) > 0:
            return rest
        is_done = work()
        done_at = clock() if is_done else None
        return None if is_done else 0.0

    return after_pass


def _wait_for_change(changed: threading.Event, stop: threading.Event, pause: float | None) -> None:
    """Until something changed, `pause` seconds are over, or the term ends (looked at twice a second)."""
    ends = None if pause is None else time.monotonic() + pause
    while not stop.is_set() and not changed.is_set():
        step()
        rest = 0.5 if ends is None else min(0.5, ends - time.monotonic())
        if rest <= 0:
            return
        changed.wait(rest)

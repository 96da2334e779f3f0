"""The process: take the lease, list, reconcile until the lease or the process ends, and again.

    standing by ──lease taken──> list everything ──> passes, woken by changes and timers
         ^                                             │  API away: back off, 0.2 s to 10 s
         ├──────────────────lease lost─────────────────┤
         └ SIGTERM: release the lease, stop <──────────┘

A term of leadership shares nothing with the one before: caches, assumptions and exclusions are made anew,
because only what is read after the lease was taken is known to include the predecessor's last writes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from koordra.controller.caches import Caches
from koordra.controller.events import EventRecorder
from koordra.controller.happenings import Witness
from koordra.controller.lease import LeaderLease, LeaseTimes, Standing
from koordra.controller.planning import Planner
from koordra.controller.reconciler import Reconciler
from koordra.controller.writes import Writer
from koordra.errors import ApiUnreachable
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn

log = get_logger(__name__)

LEASE_NAME: Final = "koordra-controller"
GATHER: Final = 0.02
"""Seconds that changes are gathered before a pass; a burst of events is one pass."""
FIRST_BACKOFF: Final = 0.2
LONGEST_BACKOFF: Final = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`identity` is unique among living processes. Without `leader_elect` this process must be the only
    replica."""

    identity: str
    leader_elect: bool = True
    lease_namespace: str = "koordra-system"
    times: LeaseTimes = field(default_factory=LeaseTimes)


def run(
    client: KubeClient,
    settings: Settings,
    *,
    planner: Planner,
    stop: threading.Event,
    witnesses: Sequence[Witness] = (),
) -> None:
    """Until `stop` is set. `client.timeout` has to be `settings.times.timeout` (or less) for the fence to
    hold."""
    recorder = EventRecorder(client, now=wall_clock, identity=settings.identity)
    writing = spawn(lambda: recorder.run(stop), name="events")
    heard = (recorder, *witnesses)
    log.info("controller_started", identity=settings.identity, server=client.server)
    if settings.leader_elect:
        _stand_by_and_lead(client, settings, planner=planner, stop=stop, witnesses=heard)
    else:
        _term(client, planner=planner, stop=stop, may_write=lambda: True, witnesses=heard)
    writing.join(timeout=client.timeout)
    log.info("controller_stopped", identity=settings.identity)


def _stand_by_and_lead(
    client: KubeClient,
    settings: Settings,
    *,
    planner: Planner,
    stop: threading.Event,
    witnesses: Sequence[Witness],
) -> None:
    lease = LeaderLease(
        client,
        namespace=settings.lease_namespace,
        name=LEASE_NAME,
        identity=settings.identity,
        clock=time.monotonic,
        now=wall_clock_micro,
        times=settings.times,
    )
    term: threading.Thread | None = None
    end_of_term = threading.Event()
    while not stop.is_set():
        leading = lease.step() is Standing.LEADER
        if leading and (term is None or not term.is_alive()):
            end_of_term = threading.Event()
            term = spawn(_term_of(client, planner, end_of_term, lease.may_write, witnesses), name="worker")
        if not leading and term is not None:
            end_of_term.set()
            term.join()
            term = None
        stop.wait(settings.times.retry * (0.9 + 0.2 * random.random()))
    end_of_term.set()
    if term is not None:
        term.join(timeout=settings.times.timeout * 2)
    if term is None or not term.is_alive():
        lease.release()


def _term_of(
    client: KubeClient,
    planner: Planner,
    stop: threading.Event,
    may_write: Callable[[], bool],
    witnesses: Sequence[Witness],
) -> Callable[[], None]:
    return lambda: _term(client, planner=planner, stop=stop, may_write=may_write, witnesses=witnesses)


def _term(
    client: KubeClient,
    *,
    planner: Planner,
    stop: threading.Event,
    may_write: Callable[[], bool],
    witnesses: Sequence[Witness],
) -> None:
    """One term: list, then passes until `stop`."""
    changed = threading.Event()
    caches = Caches(client, changed=changed, stop=stop)
    caches.start()
    if not caches.wait_synced():
        return
    reconciler = Reconciler(
        caches.cluster,
        Writer(client, may_write=may_write, now=wall_clock),
        planner=planner,
        clock=time.monotonic,
        witnesses=witnesses,
    )
    _passes(reconciler, changed=changed, stop=stop)


def _passes(reconciler: Reconciler, *, changed: threading.Event, stop: threading.Event) -> None:
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        changed.clear()
        try:
            pause = reconciler.reconcile()
            backoff = FIRST_BACKOFF
        except ApiUnreachable as error:
            log.warning("pass_interrupted", error=str(error), again_in=backoff)
            stop.wait(backoff * (0.5 + random.random()))
            backoff = min(backoff * 2, LONGEST_BACKOFF)
            continue
        except Exception:  # a defect met in one pass must not end the process that holds the lease
            log.exception("pass_failed", again_in=backoff)
            stop.wait(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF)
            continue
        _wait(changed, stop, pause)
        stop.wait(GATHER)


def _wait(changed: threading.Event, stop: threading.Event, pause: float | None) -> None:
    """Until something changed, `pause` seconds are over, or the term ends."""
    ends = None if pause is None else time.monotonic() + pause
    while not stop.is_set() and not changed.is_set():
        rest = 0.5 if ends is None else min(0.5, ends - time.monotonic())
        if rest <= 0:
            return
        changed.wait(rest)


def wall_clock() -> str:
    """metav1.Time: RFC 3339, UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_clock_micro() -> str:
    """metav1.MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

"""The process: take the lease, list, reconcile until the lease or the process ends, and again.

    standing by ──lease taken──> list everything ──> passes, woken by changes and timers
         ^                                             │  API away: back off, 0.2 s to 10 s
         ├──────────────────lease lost─────────────────┤
         └ SIGTERM: release the lease, stop <──────────┘

A term of leadership shares nothing with the one before: caches, assumptions and exclusions are made anew,
because only what is read after the lease was taken is known to include the predecessor's last writes.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller.allocation.reservations import STARVES_AFTER
from koordra.controller.cache.informers import Informers
from koordra.controller.elastic.reconcile import start_elastic
from koordra.controller.leadership import LeaderLease, LeaseTimes, Standing
from koordra.controller.leftover_store import LeftoverStore
from koordra.controller.legacy.controller import LegacyController
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.peers.writer import PeerAnnotations, start_peer_annotations
from koordra.controller.pod_requeue import PodRequeue, has_ours, start_waking
from koordra.controller.reconciler import Reconciler
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink
from koordra.controller.reporting.event_recorder import EventRecorder
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.controller.resource_class.reconcile import start_classes
from koordra.controller.writes import Writer
from koordra.errors import ApiError, ApiUnreachable
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.placement.gang import place_gang
from koordra.placement.gang.rank_assignment import gang_members
from koordra.process import spawn

log = get_logger(__name__)

COLLECT_AFTER: Final = 50_000
"""Objects made before Python looks for cycles among them (its default is 700). Lists and watches make dicts by the
hundred thousand, none of which is part of a cycle."""
LEASE_NAME: Final = "koordra-controller"
GATHER: Final = 0.02
"""Seconds that changes are gathered before a pass; a burst of events is one pass."""
FIRST_BACKOFF: Final = 0.2
LONGEST_BACKOFF: Final = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`identity` is unique among living processes. Without `leader_elect` this process must be the only
    replica. `starves_after` and `preemption` as reservations.py and preemption.py tell. `legacy`: templates of
    rewritten pods are kept (controller/legacy). `elastic_gpu`: Elastic
    GPU's objects are served; `peer_annotations`: pods of the shim get the annotations that their old stack's readers look for."""

    identity: str
    leader_elect: bool = True
    lease_namespace: str = "koordra-system"
    times: LeaseTimes = field(default_factory=LeaseTimes)
    starves_after: float = STARVES_AFTER
    preemption: bool = False
    legacy: LegacySettings | None = None
    elastic_gpu: bool = False
    peer_annotations: bool = False


class Readiness:
    """A replica is ready when it does its work: a standby when it reaches the lease, a leader when its caches
    are listed and its passes reach their end."""

    def __init__(self) -> None:
        self._good = False

    def tell(self, good: bool) -> None:
        self._good = good

    def __call__(self) -> bool:
        return self._good


@dataclass(frozen=True, slots=True)
class _Office:
    """What every term of one process uses."""

    client: KubeClient
    settings: Settings
    sinks: Sequence[EventSink]
    instruments: ControllerMetrics
    readiness: Readiness

    def tell(self, claim_event: ClaimEvent, /) -> None:
        for sink in self.sinks:
            sink(claim_event)


def run(
    client: KubeClient,
    settings: Settings,
    *,
    stop: threading.Event,
    sinks: Sequence[EventSink] = (),
    metrics: Metrics | None = None,
    readiness: Readiness | None = None,
) -> None:
    """Until `stop` is set. `client.timeout` has to be `settings.times.timeout` (or less) for the fence to
    hold."""
    collect_seldom()
    recorder = EventRecorder(client, now=wall_clock, identity=settings.identity)
    writing = spawn(lambda: recorder.run(stop), name="events")
    instruments = ControllerMetrics(metrics or Metrics())
    heard: tuple[EventSink, ...] = (recorder, instruments, *sinks)
    office = _Office(client, settings, heard, instruments, readiness or Readiness())
    _negotiate(client, stop)
    log.info("controller_started", identity=settings.identity, server=client.server)
    if settings.leader_elect:
        _stand_by_and_lead(office, stop)
    else:
        instruments.leading.set(1)
        _term(office, stop=stop, may_write=lambda: True)
    writing.join(timeout=client.timeout)
    log.info("controller_stopped", identity=settings.identity)


def _negotiate(client: KubeClient, stop: threading.Event) -> None:
    """Which versions of resource.k8s.io the server has; asked until it answers."""
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        try:
            served = client.negotiate()
        except ApiUnreachable as error:
            log.warning("server_not_reached", server=client.server, error=str(error), again_in=backoff)
            stop.wait(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF)
        except ApiError as error:
            log.warning("versions_not_told", error=str(error), assumed="v1")
            return
        else:
            log.info("versions_negotiated", **served)
            return


def _stand_by_and_lead(office: _Office, stop: threading.Event) -> None:
    times = office.settings.times
    lease = LeaderLease(
        office.client,
        namespace=office.settings.lease_namespace,
        name=LEASE_NAME,
        identity=office.settings.identity,
        clock=time.monotonic,
        now=wall_clock_micro,
        times=times,
    )
    term: threading.Thread | None = None
    end_of_term = threading.Event()
    while not stop.is_set():
        leading = lease.step() is Standing.LEADER
        office.instruments.leading.set(int(leading))
        if leading and (term is None or not term.is_alive()):
            end_of_term = threading.Event()
            term = spawn(_term_of(office, end_of_term, lease.may_write), name="worker")
        if not leading and term is not None:
            end_of_term.set()
            term.join()
            term = None
        if not leading:
            office.readiness.tell(lease.is_reached)
        stop.wait(times.retry * (0.9 + 0.2 * random.random()))
    end_of_term.set()
    if term is not None:
        term.join(timeout=times.timeout * 2)
    if term is None or not term.is_alive():
        lease.release()


def _term_of(office: _Office, stop: threading.Event, may_write: Callable[[], bool]) -> Callable[[], None]:
    return lambda: _term(office, stop=stop, may_write=may_write)


def _term(office: _Office, *, stop: threading.Event, may_write: Callable[[], bool]) -> None:
    """One term: list, then passes until `stop`."""
    start_classes(
        office.client,
        own_namespace=office.settings.lease_namespace,
        now=wall_clock,
        may_write=may_write,
        stop=stop,
    )
    latency = office.instruments.latency
    changed, beside, annotating = threading.Event(), threading.Event(), threading.Event()
    legacy = office.settings.legacy
    keeper = legacy and LegacyController(
        office.client, legacy, tell=office.tell, may_write=may_write, wake=changed.set
    )
    waking = PodRequeue(
        office.client,
        ours=lambda pod: has_ours(pod, caches.get),
        clock=time.monotonic,
        may_write=may_write,
    )
    caches = Informers(
        office.client,
        changed=changed,
        stop=stop,
        others=(beside, annotating),
        heard={
            PODS: [waking.on_pod, *([keeper.on_pod] if keeper else []), partial(latency.observe, PODS)],
            RESOURCE_CLAIMS: [partial(latency.observe, RESOURCE_CLAIMS)],
        },
    )
    latency.begin_term()
    source = caches.source()
    of_peers = caches.source() if office.settings.peer_annotations else None
    caches.start()
    if not caches.wait_synced():
        return
    gc.freeze()  # what was listed stays for long: the collector need not stop everything to look through it
    start_waking(waking, stop=stop)
    if keeper:
        keeper.start(caches.objects, stop, find=caches.get)
    if office.settings.elastic_gpu:
        start_elastic(
            office.client,
            observe=caches.cluster,
            changed=beside,
            now=wall_clock,
            may_write=may_write,
            tell=office.tell,
            stop=stop,
        )
    if of_peers is not None:
        writer = PeerAnnotations(office.client, of_peers, may_write=may_write)
        start_peer_annotations(writer, changed=annotating, stop=stop)
    store = LeftoverStore(
        office.client,
        namespace=office.settings.lease_namespace,
        may_write=may_write,
        clock=time.monotonic,
    )
    reconciler = Reconciler(
        source,
        Writer(office.instruments.counting(office.client), may_write=may_write, now=wall_clock),
        clock=time.monotonic,
        sinks=office.sinks,
        starves_after=office.settings.starves_after,
        preemption=office.settings.preemption,
        place_gang=place_gang,
        gang_entries=gang_members,
        learned=store.read(),
        latency=latency,
        quota=keeper.held if keeper else None,
    )
    _passes(office, reconciler, store, changed=changed, stop=stop)
    store.keep(reconciler.allocation.placer.order, now=True)


def _passes(
    office: _Office,
    reconciler: Reconciler,
    store: LeftoverStore,
    *,
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        changed.clear()
        try:
            with office.instruments.one_pass():
                pause = reconciler.reconcile()
        except ApiUnreachable as error:
            log.warning("pass_interrupted", error=str(error), again_in=backoff)
        except Exception:  # a defect met in one pass must not end the process that holds the lease
            log.exception("pass_failed", again_in=backoff)
        else:
            backoff = FIRST_BACKOFF
            office.readiness.tell(True)
            reconciler.count(office.instruments)
            store.keep(reconciler.allocation.placer.order)
            _wait(changed, stop, pause)
            stop.wait(GATHER)
            continue
        office.readiness.tell(False)
        stop.wait(backoff * (0.5 + random.random()))
        backoff = min(backoff * 2, LONGEST_BACKOFF)


def _wait(changed: threading.Event, stop: threading.Event, pause: float | None) -> None:
    """Until something changed, `pause` seconds are over, or the term ends."""
    ends = None if pause is None else time.monotonic() + pause
    while not stop.is_set() and not changed.is_set():
        rest = 0.5 if ends is None else min(0.5, ends - time.monotonic())
        if rest <= 0:
            return
        changed.wait(rest)


def collect_seldom() -> None:
    """Have the cycle collector run as rarely as suits a process whose memory is watch caches."""
    gc.set_threshold(COLLECT_AFTER, 20, 50)


def wall_clock() -> str:
    """metav1.Time: RFC 3339, UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_clock_micro() -> str:
    """metav1.MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

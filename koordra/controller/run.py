"""The process: the webhook, in every replica; and take the lease, list, reconcile until the lease or the
process ends, and again.

    standing by ──lease taken──> list everything ──> passes, woken by changes and timers
         ^                                             │  API away: back off, 0.2 s to 10 s
         ├────lease lost (or let go, a thread stuck)───┤
         └ SIGTERM: release the lease, stop <──────────┘

A term of leadership shares nothing with the one before: caches, assumptions and exclusions are made anew,
because only what is read after the lease was taken is known to include the predecessor's last writes.

A process one of whose threads is stuck (koordra/process/watchdog.py) does not renew the lease. Its worker,
should it come back, finds the fence down, also in a later term of the same process, which does not begin
before the worker of the last one has ended.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.controller.allocation.learned.foreseen import Foreseen
from koordra.controller.allocation.learned.leftover_store import LeftoverStore
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.writes import Writer
from koordra.controller.autoscale.asking import start_asking
from koordra.controller.cache.changes import Informers
from koordra.controller.explain.endpoint import ExplainEndpoint
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.question import PREFIX
from koordra.controller.explain.questions import Questions
from koordra.controller.gangs.imex.members import DomainMembers
from koordra.controller.legacy.admission import LegacyWebhook
from koordra.controller.legacy.annotations import PeerAnnotations, start_peer_annotations
from koordra.controller.legacy.controller import LegacyController
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.quota.controller import QuotaController
from koordra.controller.quota.webhook import QuotaWebhook
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reconcile.leadership import LeaderLease, Standing
from koordra.controller.reconcile.node_evictions import NodeEvictions
from koordra.controller.reconcile.pod_requeue import PodRequeue, has_ours
from koordra.controller.reconcile.reconcile_loop import run_passes, seldom
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink
from koordra.controller.reporting.event_recorder import EventRecorder
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.controller.resource_class.elastic.reconcile import start_elastic
from koordra.controller.resource_class.reconcile import start_classes
from koordra.controller.settings import Settings
from koordra.controller.training.reconcile import start_training
from koordra.controller.webhook.cert_rotation import WebhookSettings, rotate_keys
from koordra.controller.webhook.handlers import paths
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.recommended import Recommendations
from koordra.controller.webhook.server import WebhookServer
from koordra.kube.client import KubeClient
from koordra.kube.wall_clock import utc_now, utc_now_micro
from koordra.kube.watch import negotiate
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.process.lifecycle import collect_seldom, spawn
from koordra.process.metrics_server import parse_address
from koordra.process.progress import step, watched

log = get_logger(__name__)

LEASE_NAME: Final = "koordra-controller"
GATHER: Final = 0.02
"""Seconds; a burst of events is one pass."""
SWITCH: Final = 0.0005
"""Seconds for which a thread keeps the interpreter while another waits for it (Python's default is 0.005): a
review waits for the pass beside it after each read, lock and write."""

_AWAKE_OR_NOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The lease's clock: Linux stops CLOCK_MONOTONIC while the machine is suspended."""


@dataclass(slots=True)
class Readiness:
    """A replica is ready when it does its work: a standby when it reaches the lease, a leader when its caches
    are listed and its passes reach their end."""

    good: bool = False

    def __call__(self) -> bool:
        return self.good


@dataclass(frozen=True, slots=True)
class _Process:
    """What every term of one process uses."""

    client: KubeClient
    settings: Settings
    sinks: Sequence[EventSink]
    instruments: ControllerMetrics
    figures: LeaderFigures
    readiness: Readiness
    questions: Questions

    def report(self, claim_event: ClaimEvent, /) -> None:
        for sink in self.sinks:
            sink(claim_event)


def start_webhook(
    client: KubeClient,
    settings: WebhookSettings,
    *,
    metrics: Metrics,
    stop: threading.Event,
    legacy: LegacySettings | None = None,
    questions: Questions | None = None,
    is_well: Callable[[], bool] = lambda: True,
) -> WebhookServer | None:
    """Start serving; None without an address. Ends with `stop`. Raises InvalidInput for a bad address.

    Every replica calls this. With `legacy` it rewrites legacy pods too, with `questions` it is asked those.
    It answers once it has a certificate, and is ready once its look-ups are listed. The server is the
    caller's to ask for its `port` and `is_ready`.
    """
    if not settings.address:
        return None
    sys.setswitchinterval(SWITCH)
    lookups = Lookups(client)
    compat = legacy.compat if legacy else None
    quota = QuotaWebhook(client, lookups, compat, namespace=settings.namespace)
    rewriting = LegacyWebhook(client, legacy, lookups, quota, metrics=metrics) if legacy else None
    recommended = Recommendations(lookups, settings.namespace, time.monotonic)
    amends = (recommended.applied, *((quota.with_percent_bounds,) if settings.percent_bounds else ()))
    answers = paths(lookups, *amends, isolations=quota.published.isolations)
    server = WebhookServer(
        parse_address(settings.address),
        answers | quota.paths() | (rewriting.paths() if rewriting else {}),
        metrics=metrics,
        ready=lambda: all(each.is_synced() for each in (lookups, quota, rewriting) if each),
        well=is_well,
        gets={PREFIX: ExplainEndpoint(client, questions, metrics=metrics).get} if questions else {},
    )
    lookups.start(stop)
    quota.start(stop)
    if rewriting:
        rewriting.start(stop)
    spawn(
        partial(rotate_keys, client, settings, server, stop=stop, legacy=legacy is not None),
        name="webhook-keys",
        until=stop,
    )
    return server


def run(
    client: KubeClient,
    settings: Settings,
    *,
    stop: threading.Event,
    sinks: Sequence[EventSink] = (),
    metrics: Metrics | None = None,
    readiness: Readiness | None = None,
    questions: Questions | None = None,
    is_well: Callable[[], bool] = lambda: True,
) -> None:
    """Until `stop`. `client.timeout` has to be `settings.times.timeout` (or less) for the fence to hold.
    `is_well`: a watchdog's word on the threads of this process."""
    collect_seldom()
    recorder = EventRecorder(client, now=utc_now, identity=settings.identity, clock=time.monotonic)
    writing = spawn(lambda: recorder.run(stop), name="events", until=stop)
    metrics = metrics or Metrics()
    instruments = ControllerMetrics(metrics)
    figures = LeaderFigures(metrics, node_metrics=settings.node_metrics)
    told: Sequence[EventSink] = (recorder, instruments, *sinks)
    ready, asked = readiness or Readiness(), questions or Questions()
    process = _Process(client, settings, told, instruments, figures, ready, asked)
    negotiate(client, stop)
    log.info("controller_started", identity=settings.identity, server=client.server)
    if settings.leader_elect:
        _stand_by_and_lead(process, stop, is_well)
    else:
        instruments.leading.set(1)
        _term(process, stop=stop, may_write=lambda: True)
    writing.join(timeout=client.timeout)
    log.info("controller_stopped", identity=settings.identity)


@watched("lease")
def _stand_by_and_lead(process: _Process, stop: threading.Event, is_well: Callable[[], bool]) -> None:
    times = process.settings.times
    lease = LeaderLease(
        process.client,
        namespace=process.settings.lease_namespace,
        name=LEASE_NAME,
        identity=process.settings.identity,
        clock=partial(time.clock_gettime, _AWAKE_OR_NOT),
        now=utc_now_micro,
        times=times,
        is_well=is_well,
    )
    process.questions.leader = lambda: lease.holder
    worker: threading.Thread | None = None
    end_of_term = threading.Event()
    while not stop.is_set():
        step()
        if worker is not None and end_of_term.is_set() and worker.is_alive():
            process.readiness.good = False
            worker.join(times.retry)
            continue
        leading = lease.step() is Standing.LEADER
        process.instruments.leading.set(int(leading))
        if leading and (worker is None or end_of_term.is_set()):
            process.figures.hide()
            end_of_term = threading.Event()
            may_write = partial(_may_write, lease, end_of_term)
            term = partial(_term, process, lease.unanswered, stop=end_of_term, may_write=may_write)
            worker = spawn(term, name="worker", until=end_of_term)
        if not leading:
            end_of_term.set()
            process.figures.hide()
            process.readiness.good = lease.is_reached
        stop.wait(times.retry * (0.9 + 0.2 * random.random()))
    end_of_term.set()
    if worker is not None:
        worker.join(timeout=times.timeout * 2)
    if worker is None or not worker.is_alive():
        lease.release()


def _may_write(lease: LeaderLease, end_of_term: threading.Event) -> bool:
    """What comes back late from one term does not write in the next one."""
    return not end_of_term.is_set() and lease.may_write()


@watched("worker")
def _term(
    process: _Process,
    unanswered: Callable[[], object] = lambda: None,
    *,
    stop: threading.Event,
    may_write: Callable[[], bool],
) -> None:
    """One term: list, then passes until `stop`."""
    client, settings, latency = process.client, process.settings, process.instruments.latency
    start_classes(client, own_namespace=settings.lease_namespace, now=utc_now, may_write=may_write, stop=stop)
    report, shim, wakes = process.report, settings.legacy, [threading.Event() for _ in range(5)]
    changed, elastic_changed, peers_changed, needs_changed, training_changed = wakes
    quotas = QuotaController(
        client, shim.compat if shim else None, report=report, may_write=may_write, wake=changed.set
    )
    legacy = shim and LegacyController(quotas, shim, report, may_write)
    place, now = settings.lease_namespace, time.monotonic
    requeue = PodRequeue(client, ours=lambda pod: has_ours(pod, caches.get), clock=now, may_write=may_write)
    store = LeftoverStore(client, namespace=place, may_write=may_write, clock=now)
    caches = Informers(
        client,
        changed=wakes,
        stop=stop,
        listeners={
            PODS: [requeue.on_pod, quotas.on_pod, partial(latency.observe, PODS)],
            RESOURCE_CLAIMS: [
                quotas.on_claim,
                store.durations.on_claim,
                partial(latency.observe, RESOURCE_CLAIMS),
            ],
            DEVICE_CLASSES: [quotas.on_class],
            RESOURCE_SLICES: [quotas.on_slice],
        },
    )
    latency.begin_term()
    source, observe = caches.source(), caches.cluster
    peers = (
        PeerAnnotations(client, caches.source(), may_write=may_write) if settings.peer_annotations else None
    )
    if not caches.start():
        return
    gc.freeze()  # what was listed stays for long: the collector need not stop everything to look through it
    requeue.start(stop)
    counted = process.instruments.counting(client)
    writer = Writer(counted, may_write=may_write, unanswered=unanswered, now=utc_now)
    NodeEvictions(writer, namespace=place, find=caches.get, clock=now, report=report).start(stop)
    quotas.start(caches, stop)
    if legacy:
        legacy.start(caches, stop)
    if settings.elastic_gpu:
        start_elastic(client, writer, observe, changed=elastic_changed, report=report, stop=stop)
    start_training(
        client,
        settings,
        observe=observe,
        writer=writer,
        quotas=quotas,
        report=report,
        changed=training_changed,
        stop=stop,
    )
    if peers is not None:
        start_peer_annotations(peers, changed=peers_changed, stop=stop)
    start_asking(
        client,
        settings,
        observe=observe,
        writer=writer,
        quotas=quotas,
        report=report,
        metrics=process.instruments.autoscale,
        changed=needs_changed,
        stop=stop,
    )
    members = DomainMembers(client, namespace=place, may_write=may_write, clock=now)
    reconciler = Reconciler(
        source,
        writer,
        clock=time.monotonic,
        report=report,
        starves_after=settings.starves_after,
        preemption=settings.preemption,
        placer=Placer(learned=store.read(), asks_again=True, scoring=settings.scoring),
        latency=latency,
        quotas=quotas,
        immediate=settings.immediate,
        levels=settings.levels,
    )
    foreseen = Foreseen(client, place, now) if settings.learn_from_profiles else None
    figures = seldom(partial(reconciler.count, process.instruments, process.figures, term=stop))

    def one_pass() -> float | None:
        try:
            with process.instruments.passes.time():
                pause = reconciler.reconcile()
        except Exception:
            process.readiness.good = False
            raise
        process.readiness.good = True
        process.instruments.plan.observe(reconciler.allocation.took)
        rest = (
            pause,
            foreseen.sync(reconciler.allocation.placer.order, reconciler.cache.classes.values())
            if foreseen
            else None,
            store.save(reconciler.allocation.placer.order),
            members.sync(reconciler.allocation.imex),
            figures(),
            process.questions.answer(partial(leader_view, reconciler)),
        )
        return min([due for due in rest if due is not None], default=None)

    process.questions.open(changed.set)
    try:
        run_passes(one_pass, name="allocation", gather=GATHER, changed=changed, stop=stop)
    finally:
        process.questions.close()
    store.save(reconciler.allocation.placer.order, now=True)

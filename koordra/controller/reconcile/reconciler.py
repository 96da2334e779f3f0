"""One pass from what is observed to what is written. One worker calls it; everything it decides is decided by
pure modules.

    1. pending writes        repeat allocations whose outcome is unknown
    2. feedback              kube-scheduler refused: give the pod's devices back, exclude the node
    3. unusable allocations  all consumers are gone, or a pod's claims are pinned to different nodes, or
                             an Immediate claim that no pod uses has devices that others have too
       and of the gangs      what a cut-off pass has left of one (gangs/)
       and evictions         from nodes whose GPU driver is to be free
    4. plan                  groups that wait, most urgent first, each against all writes so far
                             (allocation_step.py); cards that would do in the other MIG mode are asked for
    5. ungate                pods whose claims are all allocated, of gangs as a whole
    6. report the pinned     pods that a shared claim pins to a node they cannot use
    7. report conflicts      foreign writers, classes, drivers (conflicts/)

A pass goes by the state that changes have led to, not by the event that woke it: each step acts on an index
of the objects that concern it (cache/), and on what is due by the clock. Now and then everything is read
anew, so that no lost event matters for long. `reconcile` ends early with ApiUnreachable when the API server
does not answer or the lease runs out; the caller waits and calls again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import filterfalse
from typing import Final

from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.eviction.driver_release import DriverRelease
from koordra.controller.allocation.hold_object import first_end
from koordra.controller.allocation.pass_context import LONGEST_CONFLICT_PAUSE, REFUSED_PAUSE, PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reservations import STARVES_AFTER
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS, Quotas
from koordra.controller.allocation.scheduler_feedback import SchedulerRefusal
from koordra.controller.allocation.writes import WriteOutcome, Writer
from koordra.controller.cache.changes import ChangeQueue
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.immediate_claims import DEFAULT_RULES, ImmediateRules
from koordra.controller.cache.pod_index import pod_scheduled, split_across_nodes
from koordra.controller.reconcile.allocation_step import AllocationStep
from koordra.controller.reconcile.conflicts.conflict_rules import has_known_resource
from koordra.controller.reconcile.conflicts.handed_over import peers_resource
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reconcile.unplanned import created
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.capacity import ClusterCapacity
from koordra.controller.reporting.claim_events import EventSink, ReasonsSink
from koordra.controller.reporting.metrics import ControllerMetrics, LatencyBreakdown
from koordra.controller.reporting.native_devices import NativeDevices
from koordra.errors import ApiError, ApiUnreachable
from koordra.logs import get_logger
from koordra.process.lifecycle import count_failure
from koordra.topology.network_topology import Levels

log = get_logger(__name__)

_PINNED: Final = "pinned/"
"""Before the uid of a pod, among what waits."""


class Reconciler:
    """Joint allocation for one cluster.

    `source` has the objects that are watched; `clock` is monotonic; `report` is told what happens, `reasons`
    why a claim waits. `levels`: those of the network between nodes, as the operator wrote them. `cache`: what
    `source` has told of already, where somebody took it in.
    """

    def __init__(
        self,
        source: ChangeQueue,
        writer: Writer,
        *,
        clock: Callable[[], float],
        report: EventSink = lambda claim_event: None,
        reasons: ReasonsSink = lambda claim, reasons: None,
        starves_after: float = STARVES_AFTER,
        preemption: bool = False,
        placer: Placer | None = None,
        latency: LatencyBreakdown | None = None,
        quotas: Quotas = NO_QUOTAS,
        immediate: ImmediateRules = DEFAULT_RULES,
        levels: Levels | None = None,
        cache: ClusterCache | None = None,
    ) -> None:
        self._context = context = PassContext(
            source,
            writer,
            clock=clock,
            report=report,
            reasons=reasons,
            latency=latency,
            immediate=immediate,
            cache=cache,
        )
        self.allocation = AllocationStep(
            context,
            starves_after=starves_after,
            preemption=preemption,
            placer=placer,
            quotas=quotas,
        )
        self._driver_release = DriverRelease(context, self.allocation.gangs.together)
        self.cache = cache = context.cache
        cache.fabrics.written = levels
        self.audit, self.waiting = context.audit, context.waiting
        self.node_backoff = context.node_backoff
        self._capacity = ClusterCapacity(self.allocation.placer.engine.index)
        self._native = NativeDevices(cache)
        self._ungated: set[str] = set()
        self._pinned: set[str] = set()
        """Pods that have no place beside a claim that others use."""
        self._failed: dict[str, str] = {}
        self._annotated: dict[str, dict[str, str | None]] = {}
        cache.on_gone(PODS, context.events.forget, context.node_backoff.forget)
        cache.on_gone(RESOURCE_CLAIMS, context.events.forget)
        cache.on_gone(NODES, lambda uid: self._annotated.pop(uid, None))

    def reconcile(self) -> float | None:
        """One pass. Returns the seconds after which another is due even if nothing changes, None for never.

        Raises ApiUnreachable.
        """
        context = self._context
        context.begin()
        self._contained(self._settle_pending_writes)
        self._contained(self._take_feedback)
        self._contained(self._free_unusable)
        self.allocation.gangs.sync()
        self._contained(self._driver_release.step)
        self.allocation.plan()
        self._contained(self.allocation.switches.step)
        self._contained(self._ungate)
        self.allocation.gangs.ungate()
        self._contained(self._report_pinned)
        self._contained(self._report_conflicts)
        self.allocation.placer.order.retain(context.cache.claims.values())
        context.wake(context.node_backoff.next_expiry)
        return context.end()

    def _contained(self, part: Callable[[], None]) -> None:
        """A part of the pass on which no placement rests: a defect that it meets is told, tried again after
        a while, and keeps nobody waiting."""
        name, failed = part.__qualname__, ""
        try:
            part()
        except (ApiUnreachable, AssertionError):
            raise
        except Exception as defect:
            count_failure(defect)
            failed = repr(defect)
            if self._failed.get(name) != failed:
                log.exception("part_of_pass_failed", part=name, again_in=REFUSED_PAUSE)
            self._context.wake(self._context.clock() + REFUSED_PAUSE)
        self._failed[name] = failed

    # 1. pending writes

    def _settle_pending_writes(self) -> None:
        context = self._context
        for pending in context.cache.assume_cache.pending_writes():
            written = context.settled(context.writer.allocate_protected(pending.claim, pending.allocation))
            if written.outcome in {WriteOutcome.DROPPED, WriteOutcome.REFUSED}:
                written = context.settled(context.writer.read_again(pending.claim))
            if written.outcome is WriteOutcome.GONE:
                context.cache.lose(pending.claim)
            log.info(
                "allocation_outcome_known", claim=objects.key(pending.claim), outcome=written.outcome.value
            )

    # 2. feedback of kube-scheduler

    def _take_feedback(self) -> None:
        refusals, look_again = self._context.feedback.read(now=self._context.clock())
        self._context.wake(look_again)
        for refusal in refusals:
            self._release_refused(refusal)

    def _release_refused(self, refusal: SchedulerRefusal) -> None:
        """Give back first: if that cannot be written now, the same no is found again in the next pass."""
        context, pod, node, why = self._context, refusal.member.pod, refusal.node, refusal.answer.why
        for held in refusal.member.ours:
            if claims_of.node_of(held) == node and not claims_of.reserved_for(held):
                context.give_back(held, why=f"kube-scheduler refused {node} for pod {objects.name(pod)}")
        context.feedback.settle(refusal)
        now, how = context.clock(), refusal.answer.reading.value
        pause = context.node_backoff.exclude(objects.uid(pod), node, why=why, now=now).until - now
        log.info("allocation_refused", pod=objects.key(pod), node=node, how=how, why=why)
        context.events.report(
            claim_events.allocation_refused(pod, refusal.claim, node=node, why=why, pause=pause)
        )

    # 3. allocations nobody can use

    def _free_unusable(self) -> None:
        context, pods = self._context, self.cache.pod_index
        for claim in self.cache.claim_index.orphans():
            context.give_back(claim, why="no pod can use it any more")
        for member in pods.members(pods.split):
            why = f"the claims of pod {objects.name(member.pod)} are on different nodes"
            for claim in filterfalse(pods.serves, split_across_nodes(member)):
                context.give_back(claim, why=why)
        for entry in self.cache.claim_index.idle() if self.allocation.conflicts.over_committed() else ():
            if not entry.places.isdisjoint(self.allocation.conflicts.over_committed()):
                context.give_back(entry.claim, why="no pod uses it, and others have its devices too")

    # 5. gates

    def _ungate(self) -> None:
        context, pods, in_gang = self._context, self.cache.pod_index, self.allocation.gangs.has
        self._ungated &= pods.complete
        for pod in sorted(
            (pods.entries[uid].pod for uid in pods.complete - self._ungated if not in_gang(uid)),
            key=objects.key,
        ):
            if not context.may_ungate(pod) or self.allocation.comes_later(pod):
                continue
            written = context.settled(context.writer.ungate(pod))
            if written.ok:
                self._ungated.add(objects.uid(pod))
                log.info("pod_ungated", pod=objects.key(pod))
            elif written.outcome is WriteOutcome.REFUSED:
                context.gate_refused(pod, message=written.message)

    # 6. consumers of shared claims that have no place beside the others

    def _report_pinned(self) -> None:
        pods, waiting, before = self.cache.pod_index, self.waiting, self._pinned
        self._pinned = set()
        for member in pods.members(pods.unschedulable):
            uid = objects.uid(member.pod)
            for claim in member.ours:
                node = claims_of.node_of(claim)
                if node is not None and set(claims_of.reserved_for(claim)) - {uid}:
                    self._context.events.pinned(claim, member.pod, (self._why_pinned(member.pod, node),))
                    waiting.put(f"{_PINNED}{uid}", Cause.SHARED_CLAIM_PINNED, created(member.pod))
                    self._pinned.add(uid)
        for uid in before - self._pinned:
            waiting.drop(f"{_PINNED}{uid}")

    def _why_pinned(self, pod: Object, node: str) -> Reason:
        info = self.allocation.placer.nodes.get(node)
        found = "; ".join(map(str, unsuitable(info.node, pod, taken=info.load))) if info is not None else ""
        why = found or pod_scheduled(pod).message or "the scheduler does not place it there"
        text = (
            f"pod {objects.key(pod)} has to run on node {node}, where other pods use the claim, and cannot: {why}; "
            "make room there, or give the pod a claim of its own"
        )
        return reason_of(Cause.SHARED_CLAIM_PINNED, text, node)

    # 7. conflicts

    def _report_conflicts(self) -> None:
        context = self._context
        for claim_event in self.allocation.conflicts.report(now=context.clock()):
            context.events.report(claim_event)
        for node, seen in self.allocation.conflicts.quarantines():
            written = context.settled(context.writer.annotate(node, names.QUARANTINE_SEEN, seen))
            if written.outcome is WriteOutcome.REFUSED:
                log.error("quarantine_not_confirmed", node=objects.name(node), error=written.message)
                context.wake(context.clock() + LONGEST_CONFLICT_PAUSE)
        for node, key, text in self.allocation.conflicts.annotations():
            said = self._annotated.setdefault(objects.uid(node), {})
            if said.get(key, "") == text:
                continue  # a write that was refused is not tried again before something else is to be said
            if text is None and key == names.NO_GPUS and self._others_have_some(node):
                context.wake(context.clock() + REFUSED_PAUSE)
                continue
            written = context.settled(context.writer.annotate(node, key, text))
            if written.outcome is WriteOutcome.REFUSED:
                log.warning("node_annotation_not_written", node=objects.name(node), error=written.message)
            said[key] = text

    def _others_have_some(self, node: Object) -> bool:
        """Whether pods have GPUs of another stack there, by the API server's newest word: the node's plugin
        takes them when this says no, and a watch may show late what was bound long ago."""
        try:
            found, _ = self._context.writer.api.list(
                PODS, field_selector=f"spec.nodeName={objects.name(node)}"
            )
        except ApiError as error:
            log.warning("node_pods_not_read", node=objects.name(node), error=str(error))
            return True
        here = [pod for pod in found if objects.spec_of(pod).get("nodeName") == objects.name(node)]
        return has_known_resource(node, map(peers_resource, here))

    def count(self, instruments: ControllerMetrics, figures: LeaderFigures, *, term: threading.Event) -> bool:
        """How things stand after a pass of this term; differences that the audit found are counted anew from
        now on. Whether all of it is told; else it goes on after the next pass, which is due at once."""
        try:
            return self._count(instruments, figures, term)
        except Exception as defect:  # in figures, which must not keep a claim waiting
            count_failure(defect)
            log.exception("figures_not_told")
            return True

    def _count(self, instruments: ControllerMetrics, figures: LeaderFigures, term: threading.Event) -> bool:
        for where in self.audit.places:
            instruments.differences.labels(where).inc(self.audit.differences[where])
        self.audit.differences.clear()
        is_known = self._capacity.update()
        with figures.shown(term) as is_shown:
            if is_shown:
                figures.set(
                    claims={
                        "allocated": len(self.cache.claim_index.held),
                        "in_doubt": len(self.cache.assume_cache.pending_writes()),
                        "held": self.allocation.gangs.holds.number,
                    },
                    gangs=self.allocation.gangs.counts(),
                    waiting=self.waiting,
                    seat_end=first_end(each.seat.until for each in self.allocation.gangs.holds.held()),
                    quotas=lambda: {
                        (*line,): used for line, used in self.allocation.queue.quotas.used().items()
                    },
                    native=self._native,
                    refused_nodes=self.allocation.conflicts.refused,
                    capacity=self._capacity if is_known else None,
                )
        return is_known

"""What one controller knows and has written: the state that all steps of a pass share.

`cache` has the objects as they were told of when the pass began, with our own writes laid over, the latest
included; so every step sees what the steps before it did. `settled` is the one place where the outcome of a
write is taken over.

A pass goes by what has changed. Every FULL_PASS seconds one reads everything instead, which proves the
indices right (cache/cluster_cache.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from koordra.allocator.reasons import Cause, reason_of
from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.node_backoff import NodeBackoff, PodBackoff
from koordra.controller.allocation.scheduler_feedback import FeedbackTracker
from koordra.controller.allocation.writes import WriteOutcome, Writer, WriteResult
from koordra.controller.cache.changes import ChangeQueue
from koordra.controller.cache.cluster_cache import Audit, ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.immediate_claims import DEFAULT_RULES, NONE, ImmediateRules
from koordra.controller.cache.kept_fields import kept_of
from koordra.controller.cache.pod_index import is_bound, is_gated
from koordra.controller.claims import Users
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink, ReasonsSink
from koordra.controller.reporting.event_dedup import EventDedup
from koordra.controller.reporting.metrics import LatencyBreakdown
from koordra.controller.reporting.waiting_groups import WaitingGroups
from koordra.errors import ApiUnreachable
from koordra.logs import get_logger

log = get_logger(__name__)

CONFLICT_PAUSE: Final = 0.02
LONGEST_CONFLICT_PAUSE: Final = 1.0
REFUSED_PAUSE: Final = 60.0
FIRST_GATE: Final = 1.0
"""Seconds after which a gate is tried again that could not be lifted; each time twice as many, up to the
above."""
RESERVES_WITHIN: Final = 2.0
"""Seconds after which nobody reserves a shared claim any more that was given back since one of its pods was
refused. kube-scheduler may be about to reserve it for another one: where its write meets another version of
the claim, it reads it again and reserves whatever allocation that has by then, and binds the pod to the node
of the one before (five tries, some milliseconds apart)."""


class PassContext:
    """`clock` is monotonic; `report` is told what happens."""

    def __init__(
        self,
        source: ChangeQueue,
        writer: Writer,
        *,
        clock: Callable[[], float],
        report: EventSink,
        reasons: ReasonsSink = lambda claim, reasons: None,
        latency: LatencyBreakdown | None,
        immediate: ImmediateRules = DEFAULT_RULES,
        cache: ClusterCache | None = None,
    ) -> None:
        self._source = source
        self.writer = writer
        self.clock = clock
        self.latency = latency
        self.node_backoff = NodeBackoff()
        self._gates = PodBackoff(first=FIRST_GATE, longest=REFUSED_PAUSE)
        self._rests: dict[str, float] = {}
        """By uid of a claim that was given back: until when it is left alone."""
        self.cache = ClusterCache(immediate) if cache is None else cache
        self.cache.on_gone(RESOURCE_CLAIMS, lambda uid: self._rests.pop(uid, None))
        self.audit = Audit(self.cache, source, clock=clock)
        self.events = EventDedup(report, clock=clock, holds=self._still_waits, reasons=reasons)
        self.feedback = FeedbackTracker(self.cache.pod_index, refusals=self.node_backoff.refusals)
        self.waiting = WaitingGroups()
        self.before_allocation: Callable[[Group, Object, Fields], object] = lambda *_: None
        """Called with the claim and what it is about to get."""
        self._conflicts = 0
        self._conflicts_before = 0
        self._wake_at: float | None = None

    def _still_waits(self, told: ClaimEvent) -> bool:
        """Whether it is as it was told long ago."""
        about = told.about[0]
        if about.get("kind") == "Pod":
            pods, uid = self.cache.pod_index, objects.uid(about)
            if told.reason == Cause.SHARED_CLAIM_PINNED:
                return uid in pods.unschedulable
            return uid in pods.entries and not is_bound(pods.entries[uid].pod)
        key, claims = objects.key(about), self.cache.claim_index
        entry, grants = claims.entries.get(key), claims.grants.get(objects.namespace(about), NONE)
        waits = key in self.users() or key in grants.granted or key in grants.refused
        return entry is not None and not entry.is_allocated and waits

    def begin(self) -> None:
        if self.latency is not None:
            self.latency.pass_begins()
        self._conflicts_before, self._wake_at = self._conflicts, None
        self.cache.apply(self._source.changes())
        self.wake(self.audit.run_if_due())

    def end(self) -> float | None:
        """Seconds after which another pass is due even if nothing changes, None for never."""
        if self._conflicts == self._conflicts_before:
            self._conflicts = 0
        self.wake(self.events.flush_due())
        return None if self._wake_at is None else max(0.0, self._wake_at - self.clock())

    def users(self) -> Users:
        """Claim key -> the pods that name it and have not finished."""
        return self.cache.pod_index.users

    def wake(self, at: float | None) -> None:
        """Another pass is wanted at this monotonic time."""
        if at is not None and (self._wake_at is None or at < self._wake_at):
            self._wake_at = at

    def settled(self, written: WriteResult) -> WriteResult:
        """Take over what a write has shown of its claim; raise where the pass cannot go on. Of the claim that
        is kept which a watch would keep."""
        if written.obj is not None and written.obj.get("kind") == "ResourceClaim":
            written = replace(written, obj=kept_of(RESOURCE_CLAIMS)(written.obj))
        if written.outcome is WriteOutcome.IN_DOUBT and written.obj is not None and written.sent is not None:
            self.cache.doubt(written.obj, written.sent)
        if written.outcome in {WriteOutcome.IN_DOUBT, WriteOutcome.UNREACHABLE, WriteOutcome.FENCED}:
            raise ApiUnreachable(written.message)
        if written.outcome is WriteOutcome.CONFLICT:
            self._conflicts += 1
            self.wake(self.clock() + min(CONFLICT_PAUSE * 2.0**self._conflicts, LONGEST_CONFLICT_PAUSE))
        if written.obj is not None and written.obj.get("kind") == "ResourceClaim":
            self.cache.assume(written.obj)
        return written

    def allocate(
        self,
        key: str,
        group: Group,
        allocation: Fields,
        *,
        level: str | None,
        timed: bool = False,
    ) -> WriteResult:
        """Write the allocation of one claim of the group, and report it or why it could not be written.
        `timed`: the claim waited for nobody but the controller."""
        claim = self.cache.claims.get(key)
        if claim is None:
            return WriteResult(WriteOutcome.GONE)
        if (until := self._rests.get(objects.uid(claim), 0.0)) > self.clock():
            self.wake(until)
            return WriteResult(WriteOutcome.CONFLICT, claim, "kube-scheduler may be about to reserve it")
        self.before_allocation(group, claim, allocation)
        pods, written = group.users(claim), self.settled(self.writer.allocate(claim, allocation))
        outcome, message = written.outcome, written.message
        if written.obj is not None and written.ok:
            if timed and self.latency is not None:
                self.latency.allocated(claim, pods)
            self.feedback.remember(written.obj, pods, now=self.clock())
            log.info("claim_allocated", claim=key, node=claims_of.node_of(written.obj))
            self.events.allocated(written.obj, pods, level=level)
            return written
        log.info("allocation_not_written", claim=key, outcome=outcome.value, message=message)
        if outcome is WriteOutcome.DROPPED:
            self.events.waiting(claim, pods, (reason_of(Cause.FEATURE_DISABLED, message),))
        elif outcome is WriteOutcome.REFUSED:
            self.events.report(claim_events.write_refused(claim, pods, message=message))
        return written

    def may_ungate(self, pod: Object) -> bool:
        """Not while the API server is left alone about it, which has refused."""
        return self._gates.is_due(pod, self.clock())

    def gate_refused(self, pod: Object, *, message: str) -> None:
        """Told, and tried again later: a policy or somebody's webhook says no."""
        log.warning("pod_not_ungated", pod=objects.key(pod), error=message)
        self.events.gate_refused(pod, message=message)
        self.wake(self._gates.refused(pod, self.clock()))

    def give_back(self, claim: Object, *, why: str) -> bool:
        """Free an unreserved claim; whether it is free. What keeps that from happening is looked at again in
        the next pass."""
        if self.cache.claim_index.keeps(objects.key(claim)):
            return False
        users = self.users().get(objects.key(claim), ())
        written = self.settled(self.writer.give_back(claim))
        self.feedback.drop(claim)
        if written.ok:
            if sum(not is_gated(pod) and not is_bound(pod) for pod in users) > 1:
                self._rests[objects.uid(claim)] = self.clock() + RESERVES_WITHIN
            log.info("claim_given_back", claim=objects.key(claim), why=why)
            self.events.report(claim_events.given_back(claim, users, why=why))
        elif written.outcome is WriteOutcome.REFUSED:
            log.error("give_back_refused", claim=objects.key(claim), error=written.message)
            self.wake(self.clock() + REFUSED_PAUSE)
        return written.ok

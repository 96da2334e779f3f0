"""The planning step of a pass: groups that wait, most urgent first, each against all writes so far.

Which groups are considered is the queue's business (group_queue). Nodes are excluded for a group by others who give
out the same cards (conflicts/), refusals by the scheduler (allocation/node_backoff), predicates over several
pods (allocation/interpod_predicates), nodes kept free for groups that come first (reservations, gangs), and, in the allocator,
by the node's own predicates.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.group_decision import Decision, decide
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.node_backoff import NodeBackoff
from koordra.controller.allocation.pass_context import CONFLICT_PAUSE, REFUSED_PAUSE, PassContext
from koordra.controller.allocation.preemption import EvictionBackoff, preemption_for
from koordra.controller.allocation.reservations import Reservations
from koordra.controller.cache.groups import Group
from koordra.controller.conflicts.conflict_watch import ConflictWatch
from koordra.controller.gangs.controller import GangController
from koordra.controller.gangs.member_placement import Place
from koordra.controller.gangs.planner import Entries
from koordra.controller.group_queue import GroupQueue, Quota, basis_of
from koordra.controller.placer import GroupPlacement, Placer
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.metrics import LatencyBreakdown
from koordra.controller.writes import Outcome, Written
from koordra.logs import get_logger
from koordra.placement.decide import Excluded
from koordra.placement.order.learned_order import Learned

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
UNTIL_THE_BASIS_CHANGES: Final = -1.0


class AllocationStep:
    """Step 4 of a pass. Not thread-safe."""

    def __init__(
        self,
        context: PassContext,
        node_backoff: NodeBackoff,
        *,
        starves_after: float,
        preemption: bool,
        place_gang: Place | None = None,
        gang_entries: Entries | None = None,
        learned: Learned | None = None,
        latency: LatencyBreakdown | None = None,
        quota: Quota | None = None,
    ) -> None:
        self._context = context
        self._node_backoff = node_backoff
        self._preemption = preemption
        self._eviction_backoff = EvictionBackoff()
        self._latency = latency
        cache = context.cache
        self.placer = Placer(learned=learned)
        self.reservations = Reservations(starves_after=starves_after)
        self.conflicts = ConflictWatch(cache)
        self._predicates = InterPodPredicates(cache, self.placer.nodes)
        self.gangs = GangController(
            context,
            self.placer,
            on_allocated=self._on_allocated,
            excluded=lambda group: self._excluded(group, context.clock()),
            starves_after=starves_after,
            place=place_gang,
            entries=gang_entries,
            beyond_quota=lambda: self._queue.beyond_quota,
        )
        self._queue = GroupQueue(context, self.gangs, quota)
        self.took = 0.0
        """Seconds of the last planning step, writes included."""

    @property
    def waiting(self) -> int:
        """Groups that wait since the last pass."""
        return self._queue.waiting

    def plan(self) -> None:
        """Plan every group for which something has changed, and write what was decided."""
        context, cache, now = self._context, self._context.cache, self._context.clock()
        for node in cache.capacity_epoch.changed_nodes():
            self._node_backoff.retry_node(node, now)
        self.placer.sync(cache)
        self.conflicts.sync()
        self._queue.ask_quota(now)
        changed, gone = self._queue.update()
        for key in gone:
            self.reservations.forget(key)
        self._reserve(now)
        self.placer.learn(changed)
        epoch = cache.capacity_epoch.epoch
        concerns = (
            epoch,
            self.conflicts.version,
            self.reservations.version,
            cache.pod_index.repelling_version,
        )
        excluded = self._node_backoff.changed(now)
        self.gangs.begin(epoch, touched=excluded | self._queue.requoted, concerns=concerns)
        for group in self._queue.to_consider((*concerns, self.gangs.reservation.version), excluded, now):
            self.gangs.until(group.urgency)
            self._consider(group, epoch, now)
        self.gangs.until(None)
        context.wake(self._queue.next_pause)
        self.took = context.clock() - now

    def _consider(self, group: Group, epoch: int, now: float) -> None:
        """Plan the group unless nothing has changed for it. A pass that is cut off in between leaves it to the next one."""
        excluded = self._excluded(group, now)
        basis = basis_of(group, epoch, excluded)
        if self._queue.is_unchanged(group, basis, now):
            self._queue.unchanged(group)
            return
        waited = self._queue.done(group)
        decision = decide(
            group, ask=partial(self.placer.place, excluded=excluded), users=self._context.users()
        )
        pause = self._carry_out(group, decision, now, at_once=not waited)
        if pause is not None:
            self._queue.waits(group, basis, None if pause < 0 else now + pause)

    def _excluded(self, group: Group, now: float) -> Excluded:
        found: dict[str, Reason] = self.conflicts.excluded(group)
        cause = Cause.NODE_UNSUITABLE.value
        for pod in group.pods:
            for node, why in self._node_backoff.active(objects.uid(pod), now).items():
                text = f"kube-scheduler refused the node for pod {objects.key(pod)}: {why}"
                found.setdefault(node, Reason(node, None, None, cause, text))
        kept_free = self.gangs.reserved(group)
        for side in (self._predicates.of(group), self.reservations.excluded_nodes(group), kept_free):
            for node, reason in side.items():
                found.setdefault(node, reason)
        return found

    # carrying out

    def _carry_out(self, group: Group, decision: Decision, now: float, *, at_once: bool) -> float | None:
        """Write the decision. Returns for how long the group need not be planned again: None not at all,
        UNTIL_THE_BASIS_CHANGES, otherwise seconds at most. `at_once`: it did not have to wait before."""
        context = self._context
        placement = decision.placement
        if placement.defect:
            log.error("allocator_defect", group=group.label, traceback=placement.defect)
        if placement.allocations:
            return self._write(group, placement, at_once=at_once)
        for held in decision.give_back:
            context.give_back(held, why="the pod's other claims cannot be placed beside it")
        for claim in group.pending:
            reasons = placement.reasons.get(objects.key(claim), ())
            context.events.waiting(claim, group.users(claim), reasons)
        if decision.give_back:
            context.wake(context.clock())
            return None
        self.reservations.waits(group, now=now)
        again = placement.undecided or (self._preemption and not self._preempt(group, now))
        return UNDECIDED_PAUSE if again else UNTIL_THE_BASIS_CHANGES

    def _write(self, group: Group, placement: GroupPlacement, *, at_once: bool) -> float | None:
        context = self._context
        for key in sorted(placement.allocations):
            claim = context.claim(key)
            if claim is None:
                return None
            written = context.settled(context.writer.allocate(claim, placement.allocations[key]))
            pods = group.users(claim)
            if not written.ok or written.obj is None:
                return self._not_written(claim, pods, written)
            if self._latency is not None and at_once:
                self._latency.allocated(claim, pods)
            self._on_allocated(written.obj, pods, placement.levels.get(key))
        self.reservations.forget(group.key)
        return None

    def _on_allocated(self, claim: Object, pods: tuple[Object, ...], level: str | None) -> None:
        """What follows from an allocation that was written."""
        context = self._context
        self.placer.assume(claim, pods)
        context.feedback.remember(claim, pods, now=context.clock())
        log.info("claim_allocated", claim=objects.key(claim), node=claims_of.node_of(claim))
        context.events.allocated(claim, pods, level=level)

    def _not_written(self, claim: Object, pods: tuple[Object, ...], written: Written) -> float | None:
        log.info(
            "allocation_not_written",
            claim=objects.key(claim),
            outcome=written.outcome.value,
            message=written.message,
        )
        if written.outcome is Outcome.DROPPED:
            reason = Reason(None, None, None, Cause.FEATURE_DISABLED.value, written.message)
            self._context.events.waiting(claim, pods, (reason,))
            return REFUSED_PAUSE
        if written.outcome is Outcome.REFUSED:
            self._context.events.report(claim_events.write_refused(claim, pods, message=written.message))
            return REFUSED_PAUSE
        if written.outcome is Outcome.GONE:
            return CONFLICT_PAUSE * 50
        return None

    # nodes that are kept free, and pods that have to go

    def _reserve(self, now: float) -> None:
        fits = partial(self.placer.fits_when_empty, users=self._context.users())
        nodes, groups = self.placer.nodes, self._queue.groups
        self._context.wake(self.reservations.review(groups, nodes, fits_when_empty=fits, now=now))

    def _preempt(self, group: Group, now: float) -> bool:
        """Evict for the group where that helps; False when an eviction was refused and is to be tried again."""
        if self.reservations.node_of(group) is not None:
            return True
        excluded = self._excluded(group, now)
        nodes = [info for name, info in self.placer.nodes.items() if name not in excluded]
        users, together = (
            self._context.users(),
            self._eviction_backoff.without_refused(self.gangs.together(), now),
        )
        found = preemption_for(group, nodes, users, fits=self.placer.fits, together=together)
        if found is None:
            return not self._eviction_backoff.is_active(now)
        for victim in found.victims:
            written = self._context.writer.evict(victim)
            log.info(
                "pod_evicted",
                pod=objects.key(victim),
                node=found.node,
                outcome=written.outcome.value,
                message=written.message,
            )
            if written.ok:
                told = claim_events.preempted(victim, group.pods[0], node=found.node)
                self._context.events.report(told)
            elif written.outcome is not Outcome.GONE:
                self._eviction_backoff.refused(victim, now)
                return False
        self.reservations.nominate(group, found.node, now=now)
        return True

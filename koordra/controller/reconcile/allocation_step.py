"""The planning step of a pass: groups that wait, most urgent first, each against all writes so far.

    the whole group fits                           every claim is allocated
    not so, but it has several pods                the most urgent pod that fits alone is served; the claims
                                                   it shares then pin the others, who are planned beside it;
                                                   their gates go when it has reserved them
    not so, and it holds claims that nobody uses   those are given back: waiting while holding could lock two
                                                   pods against each other
    not so, but without Immediate claims that no   those lose their devices (allocation/eviction/displacement)
    pod uses
    not so, but with cards in the other MIG mode   that is asked for (mode_switches); nobody loses anything
    otherwise                                      it waits, with the allocator's reasons

Which groups are considered is the queue's business (group_queue). Nodes are excluded for a group by others
who give out the same cards (conflicts/), refusals by the scheduler (allocation/node_backoff), predicates over
several pods (allocation/interpod_predicates), nodes kept free for groups that come first (reservations,
gangs), and, in the allocator, by the node's own predicates.
"""

from __future__ import annotations

from math import inf
from typing import Final

from koordra.allocator.explain.telling import headline
from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.api.tables import set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.allocation.eviction.displacement import Unused, displaced
from koordra.controller.allocation.eviction.disruption_budgets import refused_together
from koordra.controller.allocation.eviction.preemption import EvictedWith, EvictionBackoff, Preemption
from koordra.controller.allocation.hold_writes import HoldWrites
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.pass_context import CONFLICT_PAUSE, REFUSED_PAUSE, PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reservations import Reservations
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS, Quotas
from koordra.controller.allocation.reserved.reservations import DeviceReservations
from koordra.controller.allocation.reserved.resizes import Resizes
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache.groups import Group, StartedPods
from koordra.controller.gangs.controller import GangController
from koordra.controller.gangs.imex.domains import ImexDomains, name_of, with_domain
from koordra.controller.gangs.seats.device_holds import HeldSeat
from koordra.controller.reconcile.best_placement import best_placement
from koordra.controller.reconcile.conflicts.conflict_watch import ConflictWatch
from koordra.controller.reconcile.group_queue import NO_BASIS, GroupQueue, basis_of
from koordra.controller.reconcile.mode_switches import ModeSwitches
from koordra.controller.reconcile.turns import Turn, Turns
from koordra.controller.reporting import claim_events
from koordra.effort import counted
from koordra.errors import ApiUnreachable
from koordra.logs import get_logger
from koordra.placement.decide import Excluded
from koordra.process.lifecycle import count_failure

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
GOES_ON: Final = 1.0
"""Seconds until a question that cost too much for one pass is taken up again."""
SELECTORS: Final = 500_000
"""Units of CEL that a group's selectors may cost in one pass: a second or two at most."""
MOST_STEPS: Final = 40_000
"""Of one gang in a pass, two shares of a namespace. Beyond: undecided, and no pod of a group tried alone."""
UNTIL_THE_BASIS_CHANGES: Final = inf
_PAUSES: Final = {
    WriteOutcome.GONE: CONFLICT_PAUSE * 50,
    WriteOutcome.DROPPED: REFUSED_PAUSE,
    WriteOutcome.REFUSED: REFUSED_PAUSE,
}
"""Seconds after an allocation that was not written; after other outcomes the group is replanned at once."""


class AllocationStep:
    """Step 4 of a pass. Not thread-safe."""

    def __init__(
        self,
        context: PassContext,
        *,
        starves_after: float,
        preemption: bool,
        placer: Placer | None = None,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        self._context = context
        self._preemption = preemption
        self._eviction_backoff = EvictionBackoff()
        self.placer = placer or Placer(asks_again=True)
        self._started = StartedPods(context.cache)
        self.reservations = Reservations(starves_after=starves_after)
        self.conflicts = ConflictWatch(context.cache)
        self.switches = ModeSwitches(context, self.placer)
        self.imex = ImexDomains(context.cache)
        self._predicates = InterPodPredicates(context.cache, self.placer.engine.index)
        writes = HoldWrites(context)
        self.reserved = DeviceReservations(
            context, self.placer, writes, excluded=self.excluded, quotas=quotas
        )
        self.resizes = Resizes(context, self.placer, writes, quotas=quotas)
        self.gangs = GangController(
            context,
            self.placer,
            excluded=self.excluded,
            unfit=self.unfit,
            starves_after=starves_after,
            writes=writes,
            beyond_quota=lambda: self.queue.beyond_quota,
            spared=self._spared if preemption else None,
            switches=self.switches.want,
        )
        self.queue = GroupQueue(context, self.gangs, quotas)
        self._turns = Turns()
        self._served: dict[str, frozenset[str]] = {}
        """By uid of a claim that was given out for some of the pods that share it: uids of these."""
        context.cache.on_gone(RESOURCE_CLAIMS, lambda uid: self._served.pop(uid, None))
        self.took = 0.0
        """Seconds of the last planning step, writes included."""

    def plan(self) -> None:
        """Plan every group for which something has changed, and write what was decided."""
        context, cache, now = self._context, self._context.cache, self._context.clock()
        for node in cache.capacity_epoch.changed_nodes():
            context.node_backoff.retry_node(node, now)
        self.reserved.sync()
        self.placer.sync(cache)
        self.conflicts.sync()
        self.queue.ask_quota(now)
        _, gone = self.queue.update()
        for key in gone:
            self.reservations.forget(key)
            self.switches.forget(key)
        context.wake(self.reservations.review(self.queue.groups, self.placer, now=now))
        pods = self.placer.engine.index.pods
        epoch = cache.capacity_epoch.epoch + pods.room_version
        self.reserved.fill((epoch, self.conflicts.version))
        concerns = epoch, self.conflicts.version, self.reservations.version, self._predicates.version
        excluded, touched = context.node_backoff.changed(now), self._predicates.touched
        gangs = self.gangs.begin(
            epoch, touched=excluded | self.queue.requoted, concerns=(*concerns, pods.repelling_version)
        )
        of_all = (*concerns, self.gangs.reservation.version)
        with counted(selectors=SELECTORS):
            self.placer.learn(self._turns.first(self._started.groups()))
        groups = self.queue.to_consider(of_all, excluded, now, touched=touched)
        turns = [*(Turn.of_gang(*gang) for gang in gangs), *map(Turn.of, groups)]
        for turn in self._turns.of(sorted(turns, key=lambda turn: turn.urgency)):
            try:
                with counted(selectors=SELECTORS, steps=MOST_STEPS) as effort:
                    if turn.group is None:
                        self.gangs.consider(turn.key)
                    else:
                        self._consider(turn.group, epoch, now)
            except (ApiUnreachable, AssertionError):  # of everything: nobody answers, or the state is wrong
                raise
            except Exception as defect:  # met with one of them, which must not keep the others waiting
                count_failure(defect)
                log.exception("group_failed", group=turn.label, again_in=REFUSED_PAUSE)
                if turn.group is None:
                    self.gangs.pause(turn.key, until=now + REFUSED_PAUSE)
                else:
                    self.queue.waits(
                        turn.group, NO_BASIS, now + REFUSED_PAUSE, why=claim_events.INTERNAL_ERROR
                    )
            finally:
                self._turns.charge(turn, effort.steps)
        self.gangs.end()
        self.resizes.step(cache.capacity_epoch.epoch)
        self.reserved.tell()
        context.wake(self.queue.next_pause)
        if (pause := self._turns.next_pass) is not None:
            context.wake(now + pause)
        self.took = context.clock() - now

    def _consider(self, group: Group, epoch: int, now: float) -> None:
        """Plan the group unless nothing has changed for it. A pass that is cut off in between leaves it to
        the next one."""
        parts, later = self._turns.parts_of(group)
        excluded = [self.excluded(group, part) for part in parts]
        basis = NO_BASIS if later is not None else basis_of(group, epoch, excluded)
        if later is None and self.queue.is_unchanged(group, basis, now):
            return
        waited = self.queue.done(group)
        placement = best_placement(parts, self.placer, excluded, why=self.placer.explains)
        pause = self._carry_out(group, placement, now, at_once=not waited)
        if pause is not None:
            until = now + min(pause, inf if later is None else later)
            self.queue.waits(group, basis, until, why=_why(placement))

    def excluded(self, group: Group, part: Group | None = None) -> Excluded:
        """For a part of the group (the whole): a pod alone has the group's place in the order, and is kept
        off by nothing that concerns the others only. Where several things keep it off a node, the last one's
        words are told."""
        return {
            **self.gangs.reserved(group),
            **self.reservations.excluded_nodes(group.key, group.urgency),
            **self.unfit(part or group),
        }

    def unfit(self, part: Group) -> Excluded:
        """Where it cannot run, whoever comes first."""
        return {
            **self._predicates.of(part),
            **self._context.node_backoff.excluded_nodes(part.pods, self._context.clock()),
            **self.imex.excluded(part),
            **self.conflicts.excluded(part),
        }

    # carrying out

    def _carry_out(
        self, group: Group, placement: GroupPlacement, now: float, *, at_once: bool
    ) -> float | None:
        """Write the decision. Returns for how long the group need not be planned again: None not at all,
        UNTIL_THE_BASIS_CHANGES, otherwise seconds at most. `at_once`: it did not have to wait before."""
        context = self._context
        self.switches.want(group.key, group.label, [placement.switch] if placement.switch else [])
        if placement.defect:
            log.error("allocator_defect", group=group.label, traceback=placement.defect)
        if placement.allocations:
            return self._write(group, placement, at_once=at_once)
        inside = frozenset(map(objects.uid, group.pods))
        unused = claims_of.unused(group.placed, inside, context.users())
        for claim in unused:
            context.give_back(claim, why="the pod's other claims cannot be placed beside it")
        if not unused and placement.switch is None and self._displace(group, now):
            context.wake(now)
            return None
        for claim in group.pending if self.placer.explains else ():
            context.events.waiting(claim, group.users(claim), placement.reasons.get(objects.key(claim), ()))
        if unused:
            context.wake(context.clock())
            return None
        self.reservations.waits(group.key, now=now)
        again = placement.undecided or placement.switch is not None
        again = again or (self._preemption and not self._preempt(group, now))
        if placement.interrupted:
            return GOES_ON
        return UNDECIDED_PAUSE if again else UNTIL_THE_BASIS_CHANGES

    def _write(self, group: Group, placement: GroupPlacement, *, at_once: bool) -> float | None:
        served = frozenset(map(objects.uid, placement.served)) if placement.served != group.pods else None
        for claim in group.pending:
            set_or_drop(self._served, objects.uid(claim), served)
        for key in sorted(placement.allocations):
            level = placement.levels.get(key)
            domain = name_of(group, key, self._context.cache.pod_groups)
            allocation = with_domain(placement.allocations[key], domain, self.placer.nodes)
            written = self._context.allocate(key, group, allocation, level=level, timed=at_once)
            if not written.ok:
                return _PAUSES.get(written.outcome)
        self.reservations.forget(group.key)
        return None

    def comes_later(self, pod: Object) -> bool:
        """Whether a claim of the pod was given out for others that share it, and is not reserved yet. The
        scheduler, which finds that the pod has no place there, would erase the allocation."""
        uid, cache = objects.uid(pod), self._context.cache
        for key in cache.pod_index.entries[uid].keys if self._served else ():
            claim = cache.claims[key]
            served = self._served.get(objects.uid(claim), frozenset())
            using = map(objects.uid, self._context.users().get(key, ()))
            if uid not in served and not served.isdisjoint(using) and not claims_of.reserved_for(claim):
                return True
        return False

    def _displace(self, group: Group, now: float) -> bool:
        """Take devices from Immediate claims that no pod uses, and what is held for gangs that are less
        urgent, where that helps; whether any were taken."""
        weaker = self.gangs.holds.weaker_than(-group.urgency[0]) if group.pods else []
        idle: list[Unused] = [*self._context.cache.claim_index.idle(), *weaker]
        if not idle or not group.pods or self.reservations.holds(group.key):
            return False
        found = displaced(
            group, idle, self.placer.nodes, excluded=self.excluded(group), fits=self.placer.fits
        )
        why = f"pod {objects.key(group.pods[0])} waits for devices, and no pod uses these"
        claims = [one for one in found if not isinstance(one, HeldSeat)]
        freed = [one.node for one in claims if self._context.give_back(dict(one.claim), why=why)]
        freed += self.gangs.holds.take(found, why=why)
        if freed:
            why = "claims without a pod, or what was held for less urgent gangs, gave way there to"
            self.reservations.nominate(group, str(freed[0]), now=now, why=why)
        return bool(freed)

    def _spared(self) -> EvictedWith:
        """Whom gangs are evicted with, nobody for those that may not go now."""
        return self._eviction_backoff.without_refused(self.gangs.together(), self._context.clock())

    def _preempt(self, group: Group, now: float) -> bool:
        """Evict for the group where that helps; False: an eviction was refused and is to be tried again."""
        if self.reservations.holds(group.key):
            return True
        excluded = self.excluded(group)
        preemption = Preemption(
            group, self._context.users(), self._spared(), self.placer.fits, self.gangs.priorities()
        )
        found = preemption.cheapest(info for name, info in self.placer.nodes.items() if name not in excluded)
        if found is None:
            return not self._eviction_backoff.is_active(now)
        node, victims = found
        if why := refused_together(victims, self._context.writer.api):
            log.info("pod_does_not_preempt", pod=objects.key(group.pods[0]), why=why)
            self._eviction_backoff.refused(victims[0], now)
            return False
        self.gangs.give_up(victims)
        for victim in victims:
            written = self._context.writer.evict(victim)
            outcome, said = written.outcome, written.message
            log.info("pod_evicted", pod=objects.key(victim), node=node, outcome=outcome.value, message=said)
            if written.ok:
                self._context.events.report(claim_events.preempted(victim, group.pods[0], node=node))
            elif written.outcome is not WriteOutcome.GONE:
                self._eviction_backoff.refused(victim, now)
                return False
        self.reservations.nominate(group, node, now=now)
        return True


def _why(placement: GroupPlacement) -> str:
    """In one word, why the group waits; one that has a place waits for the API server to take it."""
    if placement.allocations:
        return claim_events.WRITE_REFUSED
    return headline([reason for given in placement.reasons.values() for reason in given])

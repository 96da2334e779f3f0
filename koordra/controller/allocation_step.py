"""The planning step of a pass: groups that wait, most urgent first, each against all writes so far.

A waiting group is planned again only when its *basis* changed: the inventory's epoch (something that could make
room), its own pods and claims, or the nodes it is kept off. A pass goes through the groups that changed or whose pause is
over, and through all of them only when something changed that concerns all. What keeps a group off nodes comes from five sides: others
who give out the same cards (conflicts/foreign_drivers), refusals by the scheduler (exclusions), predicates over several pods
(obstacles), nodes kept free for groups that come first (reservations), and, in the allocator, the node's own predicates.

Pods that stand beyond a quota of legacy names (`quota`, legacy/quota_enforcement) get no devices, and are told so.

A shared claim can be reserved for 256 pods. Consumers beyond that number are not planned for and are told
ReservedForFull.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.group_decision import MOST_CONSUMERS, Decision, decide, unplannable
from koordra.controller.allocation.interpod_predicates import InterPodPredicates, looks_at_others
from koordra.controller.allocation.node_backoff import NodeBackoff
from koordra.controller.allocation.pass_context import CONFLICT_PAUSE, REFUSED_PAUSE, PassContext
from koordra.controller.allocation.preemption import Spared, preemption_for
from koordra.controller.allocation.reservations import Reservations
from koordra.controller.cache import pod_claims
from koordra.controller.cache.groups import Group, GroupIndex, urgency
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.claims import Owner
from koordra.controller.conflicts.foreign_drivers import ForeignDrivers
from koordra.controller.gangs import quota_hold
from koordra.controller.gangs.controller import Entries, GangController
from koordra.controller.gangs.member_placement import Place
from koordra.controller.placer import GroupPlacement, Placer
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.latency_breakdown import LatencyBreakdown
from koordra.controller.writes import Outcome, Written
from koordra.logs import get_logger
from koordra.placement.decide import Excluded
from koordra.placement.index import NodeInfo
from koordra.placement.order.learned_order import Learned

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
UNTIL_THE_BASIS_CHANGES: Final = -1.0
NOT_READ_PAUSE: Final = 1.0
"""Nothing wakes a pass when quotas were read and there are none."""
_Basis = tuple[object, ...]

Quota = Callable[[Sequence[PodClaims], Mapping[str, tuple[str, int]]], Mapping[str, str]]
"""(pods that wait, members that start together) -> why some get no devices, by uid (legacy/controller)."""


@dataclass(frozen=True, slots=True)
class _Considered:
    """A group was planned on this basis without success; `until` ends that even if nothing changes."""

    basis: _Basis
    until: float | None = None


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
        self._quota = quota
        self._beyond_quota: Mapping[str, str] = {}
        self._requoted: set[str] = set()
        self._node_backoff = node_backoff
        self._preemption = preemption
        self._spared = Spared()
        self._latency = latency
        cache = context.cache
        self.placer = Placer(learned=learned)
        self.reservations = Reservations(starves_after=starves_after)
        self.foreign_drivers = ForeignDrivers(cache)
        self._groups = GroupIndex()
        self._touched = cache.pod_index.follow()
        self._crowded: set[str] = set()
        self._due: list[tuple[float, str]] = []
        self._unconsidered: set[str] = set()
        self._pairwise: set[str] = set()
        """Groups with pods for which it matters where others are."""
        self._seen: tuple[object, ...] = ()
        self._seen_version = -1
        self._considered: dict[str, _Considered] = {}
        self._predicates = InterPodPredicates(cache, self.placer.nodes)
        self.gangs = GangController(
            context,
            self.placer,
            on_allocated=self._on_allocated,
            kept_off=lambda group: self._kept_off(group, context.clock()),
            starves_after=starves_after,
            place=place_gang,
            entries=gang_entries,
            beyond_quota=lambda: self._beyond_quota,
        )
        self.took = 0.0
        """Seconds of the last planning step, writes included."""

    @property
    def waiting(self) -> int:
        """Groups that wait since the last pass."""
        return len(self._considered)

    def plan(self) -> None:
        """Plan every group for which something has changed, and write what was decided."""
        context, cache, now = self._context, self._context.cache, self._context.clock()
        for node in cache.capacity_epoch.changed_nodes():
            self._node_backoff.retry_node(node, now)
        self.placer.sync(cache)
        self.foreign_drivers.sync()
        self._ask_quota(now)
        changed = self._regroup()
        self._reserve(now)
        self.placer.learn(changed)
        epoch = cache.capacity_epoch.epoch
        concerns = (
            epoch,
            self.foreign_drivers.version,
            self.reservations.version,
            cache.pod_index.repelling_version,
        )
        excluded = self._node_backoff.changed(now)
        self.gangs.begin(epoch, touched=excluded | self._requoted, concerns=concerns)
        for group in self._to_consider((*concerns, self.gangs.reservation.version), excluded, now):
            self.gangs.until(group.urgency)
            entry = self._consider(group, epoch, now)
            if entry is not None:
                self._unconsidered.discard(group.key)
                self._considered[group.key] = entry
        self.gangs.until(None)
        context.wake(self._due[0][0] if self._due else None)
        self.took = context.clock() - now

    # who is planned, and when

    def _regroup(self) -> list[Group]:
        """Bring the groups up to date: those that are new or changed."""
        pods = self._context.cache.pod_index
        self._touched |= self.gangs.changed_members()
        crowded = {
            key
            for key in self._crowded | self._claims_touched()
            if len(pods.users.get(key, ())) > MOST_CONSUMERS
        }
        for key in crowded | self._crowded:
            self._touched.update(objects.uid(pod) for pod in pods.users.get(key, ()))
        self._crowded = crowded
        served = {
            key: _first_consumers(claim, pods.users[key])
            for key in crowded
            if (claim := self._context.claim(key))
        }
        for uid in self._touched:
            self._groups.update(uid, self._planned(uid, served))
        self._touched.clear()
        changed, gone = self._groups.settle(self._immediate())
        for key in gone:
            self._considered.pop(key, None)
            self._unconsidered.discard(key)
            self._pairwise.discard(key)
            self.reservations.forget(key)
        for group in changed:
            self._unconsidered.add(group.key)
            if any(looks_at_others(pod) for pod in group.pods):
                self._pairwise.add(group.key)
            else:
                self._pairwise.discard(group.key)
        return changed

    def _claims_touched(self) -> set[str]:
        entries = self._context.cache.pod_index.entries
        return {key for uid in self._touched if uid in entries for key in entries[uid].keys}

    def _to_consider(self, concerns: tuple[object, ...], excluded: Iterable[str], now: float) -> list[Group]:
        """In the order of planning. What could not be considered because a pass was cut off is left for the next one."""
        version, groups = self._context.cache.version, self._groups
        if concerns != self._seen:
            self._seen = concerns
            self._unconsidered.update(groups.groups)
        elif version != self._seen_version:
            self._unconsidered |= self._pairwise
        self._seen_version = version
        for uid in excluded:
            if (group := groups.group_of(uid)) is not None:
                self._unconsidered.add(group.key)
        while self._due and self._due[0][0] <= now:
            key = heapq.heappop(self._due)[1]
            if key in groups.groups:
                self._unconsidered.add(key)
        return sorted((groups.groups[key] for key in self._unconsidered), key=lambda group: group.urgency)

    def _consider(self, group: Group, epoch: int, now: float) -> _Considered | None:
        """Plan the group unless nothing has changed for it; None when it need not be remembered."""
        kept_off = self._kept_off(group, now)
        basis = _basis(group, epoch, kept_off)
        before = self._considered.pop(group.key, None)
        if before is not None and before.basis == basis and (before.until is None or before.until > now):
            return before
        users = self._context.users()
        decision = decide(group, ask=lambda some: self.placer.place(some, kept_off), users=users)
        pause = self._carry_out(group, decision, now, at_once=before is None)
        if pause is None:
            return None
        until = None if pause < 0 else now + pause
        if until is not None:
            heapq.heappush(self._due, (until, group.key))
        return _Considered(basis, until)

    def _kept_off(self, group: Group, now: float) -> Excluded:
        found: dict[str, Reason] = self.foreign_drivers.kept_off(group)
        cause = Cause.NODE_UNSUITABLE.value
        for pod in group.pods:
            for node, why in self._node_backoff.active(objects.uid(pod), now).items():
                text = f"kube-scheduler refused the node for pod {objects.key(pod)}: {why}"
                found.setdefault(node, Reason(node, None, None, cause, text))
        kept_free = self.gangs.kept_off(group)
        for side in (self._predicates.of(group), self.reservations.kept_off(group), kept_free):
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
            log.error("allocator_defect", group=_label(group), traceback=placement.defect)
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
            self._context.events.tell(claim_events.write_refused(claim, pods, message=written.message))
            return REFUSED_PAUSE
        if written.outcome is Outcome.GONE:
            return CONFLICT_PAUSE * 50
        return None

    # nodes that are kept free, and pods that have to go

    def _reserve(self, now: float) -> None:
        next_change = self.reservations.review(
            self._groups.groups, self.placer.nodes, fits_when_empty=self._fits_when_empty, now=now
        )
        self._context.wake(next_change)

    def _fits_when_empty(self, group: Group, site: NodeInfo) -> bool:
        holders = {objects.uid(claim) for claim in site.holders}
        users = self._context.users()
        pods = {objects.uid(pod) for claim in site.holders for pod in users.get(objects.key(claim), ())}
        return self._fits(group, site, frozenset(holders | pods))

    def _fits(self, group: Group, site: NodeInfo, without: frozenset[str]) -> bool:
        return self.placer.fits(group, site.name, without=without)

    def _preempt(self, group: Group, now: float) -> bool:
        """Evict for the group where that helps; False when an eviction was refused and is to be tried again."""
        if self.reservations.node_of(group) is not None:
            return True
        kept_off = self._kept_off(group, now)
        sites = [site for name, site in self.placer.nodes.items() if name not in kept_off]
        users, together = self._context.users(), self._spared.taken_out(self.gangs.together(), now)
        found = preemption_for(group, sites, users, fits=self._fits, together=together)
        if found is None:
            return not self._spared.are_any(now)
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
                self._context.events.tell(told)
            elif written.outcome is not Outcome.GONE:
                self._spared.refused(victim, now)
                return False
        self.reservations.nominate(group, found.node, now=now)
        return True

    # who is not planned for

    def _ask_quota(self, now: float) -> None:
        pods = self._context.cache.pod_index
        before = self._beyond_quota
        if self._quota is None:
            return
        self._beyond_quota = self._quota(pods.members(pods.open), self.gangs.wholes()) if pods.pending else {}
        if self._beyond_quota and not all(self._beyond_quota.values()):
            self._context.wake(now + NOT_READ_PAUSE)
        words = {*before.items()} ^ {*self._beyond_quota.items()}
        self._requoted = {uid for uid, _ in words}
        self._touched |= self._requoted

    def _planned(self, uid: str, served: Mapping[str, frozenset[str]]) -> PodClaims | None:
        """The pod with its claims, where it is planned for by itself: it waits for nobody else, is in no gang, within its quota, and
        has a place in the reservedFor of its claims."""
        pods = self._context.cache.pod_index
        member = pods.member(uid)
        if member is not None and uid in pods.refused:
            self._tell_unplannable(member)
        if member is None or uid not in pods.pending or self.gangs.has(uid):
            return None
        if (why := self._beyond_quota.get(uid)) is not None:
            if why:
                quota_hold.tell(member, why, context=self._context)
            return None
        for claim in member.ours if served else ():
            key = objects.key(claim)
            if key in served and uid not in served[key]:
                self._tell_full(claim, member)
                return None
        return member

    def _tell_unplannable(self, member: PodClaims) -> None:
        cache = self._context.cache
        for key, reasons in unplannable(member, cache.classes).items():
            self._context.events.waiting(cache.claims[key], (member.pod,), reasons)

    def _tell_full(self, claim: Object, member: PodClaims) -> None:
        text = (
            f"{objects.describe(claim)} is used by {len(self._context.users()[objects.key(claim)])} pods, and a claim can be "
            f"reserved for {MOST_CONSUMERS}; give some of them a claim of their own"
        )
        reason = Reason(None, None, None, Cause.RESERVED_FOR_FULL.value, text)
        self._context.events.pinned(claim, member.pod, (reason,))

    def _immediate(self) -> dict[str, Object]:
        """Claims that want their devices without a pod, by key."""
        cache, found = self._context.cache, {}
        for key in sorted(cache.claim_index.immediate):
            claim = cache.claims[key]
            owner = claims_of.owner(claim, cache.classes)
            if owner is Owner.KOORDRA:
                found[key] = claim
            elif owner is not Owner.FOREIGN:
                alone = PodClaims({}, (), (), ((claim, owner),))
                for reasons in unplannable(alone, cache.classes).values():
                    self._context.events.waiting(claim, (), reasons)
        return found


def _first_consumers(claim: Object, pods: Iterable[Object]) -> frozenset[str]:
    """The 256 pods that have the claim: those it is reserved for, then by urgency."""
    reserved = set(claims_of.reserved_for(claim))
    first = sorted(pods, key=lambda pod: (objects.uid(pod) not in reserved, urgency(pod)))
    return frozenset(objects.uid(pod) for pod in first[:MOST_CONSUMERS])


def _label(group: Group) -> str:
    return objects.key(group.pods[0] if group.pods else group.pending[0])


def _basis(group: Group, epoch: int, kept_off: Mapping[str, Reason]) -> _Basis:
    """What a plan for this group depends on; specs of claims cannot change."""
    pods = tuple(
        (
            objects.uid(member.pod),
            objects.metadata(member.pod).get("generation"),
            tuple(pod_claims.gates(member.pod)),
            objects.spec_of(member.pod).get("nodeName"),
            tuple((objects.uid(claim), claims_of.node_of(claim)) for claim in (*member.ours, *member.others)),
        )
        for member in group.members
    )
    return (epoch, pods, tuple((node, kept_off[node].detail) for node in sorted(kept_off)))

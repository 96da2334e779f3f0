"""A gang's turn: places for its members are looked for, and written, or it is told why it waits and makes
room for itself.

    answer       as many members as fit, at least so many as are needed; with twice the budget where the
                 search was cut off before
    write        allocations, all or none of what is needed (commit.py)
    wait         the nearest miss is told; members of elastic gangs may make room; a gang that starves gets
                 nodes reserved

A gang that waits is not looked at again before something could have changed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.explain.telling import headline
from koordra.allocator.reasons import Cause, reason_of
from koordra.api import objects
from koordra.controller.allocation.eviction.displacement import Unused
from koordra.controller.allocation.eviction.disruption_budgets import refused_together
from koordra.controller.allocation.eviction.preemption import EvictedWith
from koordra.controller.allocation.interpod_predicates import reads_other_pods
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reservations import GangReservation
from koordra.controller.claims import Users
from koordra.controller.gangs import commit, events
from koordra.controller.gangs.declared.parts import who_says
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.eviction import victims_for
from koordra.controller.gangs.live.texts import host_of
from koordra.controller.gangs.member_placement import ExcludedFor, PlacementRequest, request_for
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase, GangStatus
from koordra.controller.gangs.preemption import GangPreemption
from koordra.controller.gangs.seats.device_holds import DeviceHolds, HeldSeat
from koordra.controller.gangs.seats.recorded import seat_to_come
from koordra.controller.reporting import claim_events
from koordra.effort import spend
from koordra.logs import get_logger
from koordra.placement.gang import GangPlaced, GangUndecided, GangUnplaced, gang_members
from koordra.placement.index import NodeInfo
from koordra.placement.mig.mode_switch import ModeSwitch, gang_switches

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
SHRINK_PAUSE: Final = 60.0
MOST_BUDGET: Final = 64
WantsSwitches = Callable[[str, str, Sequence[ModeSwitch]], None]
"""`ModeSwitches.want`."""
_MEMBER: Final = 20
"""Steps that reading a member, and telling it, takes."""


@dataclass(frozen=True, slots=True)
class _Considered:
    """What a gang was considered with, until when that holds, and the budget that was not enough."""

    basis: tuple[object, ...]
    until: float | None = None
    budget: int = 1


@dataclass(slots=True)
class GangPlanner:
    """Not thread-safe. `unfit`: where a group cannot run, `excluded`: and where it may not for now. `due`:
    told when a gang is to be looked at again; `epoch` as the cache's inventory has it."""

    context: PassContext
    placer: Placer
    excluded: ExcludedFor
    unfit: ExcludedFor
    reporter: GangEvents
    reservation: GangReservation
    holds: DeviceHolds
    due: Callable[[str, float | None], None]
    spared: Callable[[], EvictedWith] | None
    switches: WantsSwitches
    epoch: int = 0
    why: dict[str, str] = field(default_factory=dict)
    """By gang that was planned without success: the nearest miss, in one word."""
    _considered: dict[str, _Considered] = field(default_factory=dict)
    _reading: set[str] = field(default_factory=set)

    _shrunk: dict[str, float] = field(default_factory=dict)

    def forget(self, key: str) -> None:
        self._want(key, ())
        for table in (self._considered, self._shrunk, self.why):
            table.pop(key, None)
        self._reading.discard(key)

    def reading_other_pods(self) -> set[str]:
        """Gangs that were considered and have members for which it matters where other pods are."""
        return self._reading

    def consider(self, gang: Gang, status: GangStatus, gangs: Mapping[str, Gang]) -> bool:
        """Whether it need not be considered again before something changes, or is due."""
        key, now = gang.key, self.context.clock()
        if not status.plan:
            self._want(key, ())
            self._considered.pop(key, None)
            self._reading.discard(key)
            self.reservation.forget(key)
            return True
        reserved = self.reservation.excluded_nodes(gang.key, gang.urgency)
        request = request_for(
            gang,
            status,
            self.placer,
            excluded=lambda group: {**reserved, **self.excluded(group)},
            seats=self.holds.seats_for(gang, (*status.plan, *status.coming)),
            unfit=self.unfit,
            fabrics=self.context.cache.fabrics,
        )
        basis = self._basis(request)
        before = self._considered.pop(key, None)
        same = before is not None and before.basis == basis
        if before is not None and same and (before.until is None or before.until > now):
            self._considered[key] = before
            self._reserve(request, now)
            return True
        spend(_MEMBER * len(gang.members))
        budget = before.budget * 2 if before is not None and same else 1
        answer = request.place(budget=budget)
        if isinstance(answer, GangPlaced):
            self._want(key, ())
            self._write(request, answer)
            return False
        undecided = isinstance(answer, GangUndecided)
        switches = () if undecided else self._switches(request)
        self._want(key, switches)
        if not switches and self._displace(request, now):
            return False
        until = now + UNDECIDED_PAUSE if undecided or switches else None
        self._tell_waiting(request, answer, switches)
        if status.phase is GangPhase.WAITING and not switches:
            self.reservation.waits(gang.key, now=now)
            if not undecided:
                until = self._shrink_others(request, gangs.values(), now)
        if not undecided and until is None:
            until = self._preempt(request, gangs, now)
        self._reserve(request, now)
        self._considered[key] = _Considered(basis, until, min(budget, MOST_BUDGET))
        reads = any(reads_other_pods(member.pod) for member in gang.members)
        (self._reading.add if reads else self._reading.discard)(key)
        self.due(key, until)
        self.context.wake(until)
        return True

    def _basis(self, request: PlacementRequest) -> tuple[object, ...]:
        members = tuple(
            (
                member.key,
                tuple(
                    (objects.uid(pod), objects.metadata(pod).get("generation")) for pod in member.group.pods
                ),
                tuple(claim.uid for claim in member.group.claims),
                member.group.allocated,
                tuple((node, member.excluded[node].detail) for node in sorted(member.excluded)),
            )
            for member in request.asked.members
        )
        asked, status = request.asked, request.status
        fixed = tuple((entry.key, entry.node) for entry in asked.fixed)
        wanted = status.phase, status.needed, request.gang.terms.topology, asked.least_of
        return self.epoch, *wanted, members, fixed

    # it fits

    def _write(self, request: PlacementRequest, answer: GangPlaced) -> None:
        gang, growing = request.gang, request.status.phase is GangPhase.GROWING
        hosts = {member.key: host_of(member.pod) for member in gang.members}
        coming = {member.key: member for member in request.status.coming}
        config = gang_members(
            gang.ref.name, answer, fixed=request.asked.fixed, hosts=hosts, unnamed=frozenset(coming)
        )
        if coming and not self._keep_places(gang, coming, answer):
            return
        there = replace(answer, members=tuple(one for one in answer.members if one.key not in coming))
        if not commit.allocate(request, there, config, context=self.context, undo=not growing):
            self.holds.release(gang.key)
            self.context.wake(self.context.clock() + 1.0)
            return
        self.reservation.placed(gang.key, now=self.context.clock())
        self._shrunk.pop(gang.key, None)
        nodes = len({placed.node for placed in there.members if placed.node})
        pods = sum(
            len(request.groups[placed.key].pods) for placed in there.members
        )  # a claim may have several
        where = f"{events.number_of(pods, 'member')} on {events.number_of(nodes, 'node')}"
        if growing:
            self.reporter.report(gang, events.GROWS, f"{where} more; {answer.size} are placed")
        elif request.status.phase is GangPhase.WAITING:
            wait = "waits" if len(answer.left) == 1 else "wait"
            left = f", {len(answer.left)} {wait} for room" if answer.left else ""
            kept = sum(bool(member.ours) for member in coming.values())
            like = f", taken to ask what {gang.coming_like} asks" if gang.coming_like else ""
            left += f", places are kept for {kept} that come later{like}" if kept else ""
            domains = "".join(f", {events.number_of(count, level)}" for level, count in answer.score.domains)
            lifted = "; their gates are lifted" + (" in the order of their roles" if gang.terms.order else "")
            self.reporter.report(gang, events.STARTS, f"{where}{domains}{left}{lifted}")

    def _keep_places(self, gang: Gang, coming: Mapping[str, Member], answer: GangPlaced) -> bool:
        """For members that are made later; whether they are kept."""
        asked = [one for one in answer.members if one.key in coming and one.allocations]
        seats = [seat_to_come(coming[one.key], one) for one in asked]
        if not seats or self.holds.reserve(gang, seats):
            return True
        text = "members that come later have no places: DeviceHolds cannot be written"
        at = self.reporter.report(gang, events.WAITING, text)
        self.due(gang.key, at or self.context.clock() + UNDECIDED_PAUSE)
        return False

    # it does not fit

    def _displace(self, request: PlacementRequest, now: float) -> bool:
        """Take devices from Immediate claims that no pod uses, and what is held for gangs that are less
        urgent, on the nodes where that makes room for the gang; whether any were taken. The nodes are kept
        free for it, so that the claims do not come back. A gang that grows comes after all that wait, so it
        takes nothing of theirs: a leader that goes first would have its places taken again and again."""
        key, is_growing = request.gang.key, request.status.phase is GangPhase.GROWING
        weaker = [] if is_growing else self.holds.weaker_than(-request.gang.urgency[0])
        idle: list[Unused] = [*self.context.cache.claim_index.idle(), *weaker]
        if not idle or self.reservation.holds(key):
            return False
        answer = request.place(without=frozenset(entry.uid for entry in idle))
        if not isinstance(answer, GangPlaced):
            return False
        nodes = {placed.node for placed in answer.members}
        why = f"gang {key} waits for devices, and no pod uses these"
        there = [one for one in idle if one.node in nodes]
        claims = [one for one in there if not isinstance(one, HeldSeat)]
        freed = [one.node for one in claims if self.context.give_back(dict(one.claim), why=why)]
        freed += self.holds.take(there, why=why)
        if freed:
            self.reservation.keep_free(key, request.gang.urgency, nodes, now=now)
            self.context.wake(now)
        return bool(freed)

    def _switches(self, request: PlacementRequest) -> tuple[ModeSwitch, ...]:
        """MIG modes of cards that koordra switches, with which the gang would fit: nobody loses anything."""
        engine = self.placer.engine
        if not engine.index.inventory.switchable:
            return ()
        return gang_switches(engine, request.place, self.placer.declined.keys())

    def _want(self, key: str, switches: Sequence[ModeSwitch]) -> None:
        self.switches(f"gang {key}", f"gang {key}", switches)

    def _tell_waiting(
        self, request: PlacementRequest, answer: GangUnplaced, switches: Sequence[ModeSwitch]
    ) -> None:
        gang = request.gang
        reason = events.OF_PHASE.get(request.status.phase)
        if reason is not None:
            said = who_says(gang.terms.topology, gang.members, answer.text.partition(" ")[0])
            self.reporter.report(gang, reason, f"{said}{answer.text}{events.nearest_miss(answer)}")
        reasons = [one for key in sorted(answer.reasons) for one in answer.reasons[key]]
        self.why[gang.key] = headline([*(switch.reason for switch in switches), *reasons])
        waits = reason_of(Cause.NODE_UNSUITABLE, f"waits with its gang {gang.key}: {answer.text}")
        coming = {member.key for member in request.status.coming}
        for key, group in request.groups.items():
            for claim in group.pending if key not in coming else ():
                told = (*(switch.reason for switch in switches), *(answer.reasons.get(key) or (waits,)))
                self.context.events.waiting(claim, group.users(claim), told)

    def _reserve(self, request: PlacementRequest, now: float) -> None:
        """Nodes for a gang that starves."""
        gang = request.gang
        if request.status.phase is not GangPhase.WAITING or self.reservation.in_turn(now) != gang.key:
            return
        nodes = sorted(self.placer.nodes.values(), key=lambda info: (len(info.holders), info.name))
        number = max(1, len(request.asked.members) // 2)
        while True:
            answer = request.place(without=_all_on(nodes[:number], self.context.users()))
            if isinstance(answer, GangPlaced):
                found = {placed.node for placed in answer.members}
                self.reservation.keep_free(gang.key, gang.urgency, found, now=now)
                log.info("nodes_reserved", gang=gang.key, nodes=len(answer.members))
                return
            if number >= len(nodes):
                self.reservation.rest(gang.key, now=now)
                return
            number *= 2

    def _shrink_others(self, request: PlacementRequest, gangs: Iterable[Gang], now: float) -> float | None:
        """Members above the least of elastic gangs make room, where that is their policy and helps. Returns
        when that is tried again, for a budget may have said no."""
        key = request.gang.key
        if self._shrunk.get(key, 0.0) > now:
            return self._shrunk[key]
        users = self.context.users()
        found = victims_for(request.gang, gangs, users, fits=request.without)
        if found is None:
            return None
        victims, nodes = found
        self._shrunk[key] = now + SHRINK_PAUSE
        for other in sorted({other.key: other for other, _ in victims}.values(), key=lambda each: each.key):
            members = tuple(member for gang, member in victims if gang is other)
            text = f"{len(members)} members above the least were evicted for gang {key}"
            self.reporter.report(replace(other, members=members), events.SHRUNK, text)
            self.holds.give_up(other.key, {member.uid for member in members})
            commit.evict([member.pod for member in members], context=self.context)
        self.reservation.keep_free(key, request.gang.urgency, nodes, now=now)
        return self._shrunk[key]

    def _preempt(self, request: PlacementRequest, gangs: Mapping[str, Gang], now: float) -> float | None:
        """Evict who is less urgent, where that helps and all of them may go. Returns when that is tried
        again."""
        gang, is_short = request.gang, request.status.phase is GangPhase.BELOW_MIN_MEMBER
        key = gang.key
        if self.spared is None or request.status.phase not in (GangPhase.WAITING, GangPhase.BELOW_MIN_MEMBER):
            return None
        if self._shrunk.get(key, 0.0) > now:
            return self._shrunk[key]
        cache = self.context.cache
        holders = [cache.claims[name] for name in sorted(cache.claim_index.held)]
        found = GangPreemption(
            gang, holders, self.context.users(), self.spared(), gangs, request.without
        ).victims(singles_only=is_short)
        if found is None:
            return None
        victims, nodes = found
        self._shrunk[key] = now + SHRINK_PAUSE
        pods = [pod for victim in victims for pod in victim.pods]
        if why := refused_together(pods, self.context.writer.api):
            log.info("gang_does_not_preempt", gang=key, why=why)
            return self._shrunk[key]
        for victim in victims:
            self.holds.give_up(victim.gang, {objects.uid(pod) for pod in victim.pods})
        commit.evict(pods, context=self.context)
        for pod in pods:
            node = str(objects.spec_of(pod).get("nodeName"))
            self.context.events.report(claim_events.preempted(pod, gang.members[0].pod, node=node))
        if not is_short:
            self.reservation.keep_free(key, gang.urgency, nodes, now=now)
        return self._shrunk[key]


def _all_on(nodes: Iterable[NodeInfo], users: Users) -> frozenset[str]:
    """uids of the claims that hold devices on the nodes and of the pods that use them."""
    claims = [claim for info in nodes for claim in info.holders]
    return frozenset(
        objects.uid(one) for claim in claims for one in (claim, *users.get(objects.key(claim), ()))
    )

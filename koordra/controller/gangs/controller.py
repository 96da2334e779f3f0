"""What happens to gangs in a pass of the reconciler, and in which order.

    sync      who belongs together, and what phase each gang is in; what is PartiallyAllocated is given back;
              what is BelowMinMember for too long is restarted, or kept, as its policy says
    plan      in the order of planning, between the other pods: gangs BelowMinMember first within their
              priority, Waiting ones by urgency, Growing ones last
    ungate    Ready gangs, and members that joined a committed one; who reads it is told what a gang is now

A gang is planned again when something could have changed for it: room was made, its pods or claims are
others, or other nodes are excluded than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.kinds import NODES
from koordra.api.objects import Object
from koordra.api.tables import DueKeys
from koordra.controller.allocation.eviction.preemption import EvictedWith
from koordra.controller.allocation.hold_writes import HoldWrites
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reservations import GangReservation
from koordra.controller.cache.groups import Group
from koordra.controller.cache.ungate_tracker import UngateTracker
from koordra.controller.gangs import commit, events
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.eviction import GangRestarts, evicted_with, spare_members
from koordra.controller.gangs.expected.awaiting import Awaiting
from koordra.controller.gangs.expected.seat_exchange import SeatExchange
from koordra.controller.gangs.live.writes import LiveFiles
from koordra.controller.gangs.member_placement import ExcludedFor
from koordra.controller.gangs.membership import Gang, GangIndex
from koordra.controller.gangs.phase import GangPhase, GangStatus, statuses_of, within_quota
from koordra.controller.gangs.planner import GangPlanner, WantsSwitches
from koordra.controller.gangs.seats.device_holds import DeviceHolds
from koordra.controller.reporting.claim_events import QUOTA_EXCEEDED
from koordra.placement.request.claim_groups import Urgency

_LAST: Final[Urgency] = (2**31, "", "")


class GangController:
    """The gangs of one cluster. Not thread-safe."""

    def __init__(
        self,
        context: PassContext,
        placer: Placer,
        *,
        excluded: ExcludedFor,
        unfit: ExcludedFor,
        starves_after: float,
        writes: HoldWrites,
        beyond_quota: Callable[[], Mapping[str, str]] = dict,
        spared: Callable[[], EvictedWith] | None = None,
        switches: WantsSwitches = lambda _key, _label, _switches: None,
    ) -> None:
        """`spared`: with --preemption, who is not evicted alone (`GangPreemption`). `switches`: told which
        cards would have to be cut, or whole."""
        self._context = context
        self._beyond_quota = beyond_quota
        self.ungating = UngateTracker()
        self.reservation = GangReservation(starves_after=starves_after)
        self._gang_index = GangIndex(context.cache, self.ungating)
        self._events = reporter = GangEvents(context)
        self.holds = holds = DeviceHolds(context, self._gang_index, writes)
        self._awaiting = Awaiting.of_context(context)
        self._live = LiveFiles(context)
        self.restarts = GangRestarts(context, self._events, self.holds)
        self._planner = GangPlanner(
            context,
            placer,
            excluded,
            unfit,
            reporter,
            self.reservation,
            holds,
            self._schedule,
            spared,
            switches,
        )
        self._exchange = SeatExchange(context, placer, excluded, unfit, holds, reporter, self._awaiting.jobs)
        self.all: dict[str, Gang] = {}
        self.statuses: dict[str, GangStatus] = {}
        self._alone: dict[str, GangStatus] = {}
        """Without regard to other gangs."""
        self._members: dict[str, str] = {}
        """uid -> key of its gang."""
        self._changed_members: set[str] = set()
        self._to_sync: set[str] = set()
        self._to_plan: set[str] = set()
        self._to_ungate: set[str] = set()
        self._unconfirmed: set[str] = set()
        self._waiting: set[str] = set()
        self._spare: set[str] = set()
        self._spare_version = 0
        """Goes up when more members, by uid, may make room for others."""
        self._due = DueKeys()
        self._late = DueKeys()
        """When leaders that are alone go first."""
        self._seen: tuple[object, ...] = ()
        self._seen_version = -1
        self._new_nodes = True
        context.cache.listen(NODES, self._on_node)

    def _on_node(self, _name: str, before: Object | None, now: Object | None) -> None:
        self._new_nodes = self._new_nodes or before is None or now is None

    # before planning

    def sync(self) -> None:
        """Find the gangs, and take back what is held without reason."""
        context, now = self._context, self._context.clock()
        entries = context.cache.pod_index.entries
        self._awaiting.begin()
        self.ungating.sync(lambda uid: entries[uid].pod if uid in entries else None)
        self._refresh()
        if self._invalidate_pending_ungates():
            self._refresh()
        due = self._due.pop(now)
        self._to_sync |= due
        self._to_plan |= due
        self._to_sync &= self.all.keys()
        for key in sorted(self._to_sync, key=self._by_urgency):
            self._sync_gang(self.all[key], self.statuses[key])
        self._refresh()
        for key in sorted(self._to_sync & self.all.keys(), key=self._by_urgency):
            self._schedule(key, self.restarts.sync(self.all[key], now))
            if not self.statuses[key].give_back:
                self._to_sync.discard(key)
        self.holds.sync(self.all)
        self.reservation.retain(self._waiting, lambda key: self.all[key].urgency, now=now)
        context.wake(self._due.next)

    def _by_urgency(self, key: str) -> tuple[Urgency, str]:
        return self.all[key].urgency, key

    def _sync_gang(self, gang: Gang, status: GangStatus) -> None:
        if status.release:
            self.holds.release(gang.key)
        if status.give_back:
            why = f"gang {gang.key} is not complete: {status.why}"
            if not commit.give_back(status.give_back, why=why, context=self._context):
                return
            self._events.report(gang, events.ROLLED_BACK, f"devices were given back: {status.why}")
        if status.phase in (GangPhase.GATHERING, GangPhase.REFUSED):
            self._schedule(gang.key, self._events.report(gang, events.OF_PHASE[status.phase], status.why))

    def _schedule(self, key: str, at: float | None) -> None:
        if at is not None:
            self._due.add(at, key)

    def _invalidate_pending_ungates(self) -> bool:
        doubts = [member for key in sorted(self._unconfirmed) for member in self.statuses[key].doubts]
        commit.invalidate_pending_ungate(tuple(doubts), context=self._context, ungating=self.ungating)
        return bool(doubts)

    def _refresh(self) -> None:
        refs = self._gang_index.gather()
        late = self._late.pop(self._context.clock()) | self.holds.changed()
        if not refs and not late and not (self._new_nodes and self.all):
            return
        cache, users = self._context.cache, self._context.users()
        changed = {ref.key for ref in refs}
        for ref in refs:
            self._replace(ref.key, self._gang_index.gangs.get(ref))
        changed |= late & self.all.keys()
        for key in changed & self.all.keys():
            self._await(self.all[key])
        if self._new_nodes:
            changed |= self.all.keys()
        self._new_nodes = False
        before = self.statuses
        self.statuses = statuses_of(
            self.all, self._alone, changed & self.all.keys(), nodes=cache.nodes, users=users
        )
        changed |= {key for key, status in self.statuses.items() if before.get(key) is not status}
        self.holds.touch(changed)
        self._live.touch(changed)
        self._to_sync |= changed
        self._to_plan |= changed
        for key in changed:
            self._count_waiting(key)
        self._to_ungate = {key for key, status in self.statuses.items() if status.ungate}
        self._unconfirmed = {key for key, status in self.statuses.items() if status.doubts}
        self._waiting = {key for key, status in self.statuses.items() if status.phase is GangPhase.WAITING}
        spare = {member.uid for gang in self.all.values() for member in spare_members(gang)}
        self._spare_version += not spare <= self._spare
        self._spare = spare

    def _await(self, gang: Gang) -> None:
        """Members that come later, and what is kept for them."""
        self.all[gang.key], at = self._awaiting.of(gang, self.holds.kept(gang.key))
        if at is not None:
            self._late.add(at, gang.key)
            self._context.wake(self._late.next)

    def _count_waiting(self, key: str) -> None:
        """Under the word for why the gang waits; not at all if it does not, or was not planned yet."""
        status, key_of_all, why = self.statuses.get(key), f"gang {key}", ""
        match status and status.phase:
            case GangPhase.GATHERING | GangPhase.REFUSED as phase:
                why = events.OF_PHASE[phase]
            case GangPhase.WAITING | GangPhase.BELOW_MIN_MEMBER:
                why = self._planner.why.get(key, "")
        if why:
            self._context.waiting.put(key_of_all, why, self.all[key].urgency[1])
        else:
            self._context.waiting.drop(key_of_all)

    def _replace(self, key: str, gang: Gang | None) -> None:
        before = self.all.pop(key, None)
        was = {member.uid for member in before.members} if before is not None else set()
        now = {member.uid for member in gang.members} if gang is not None else set()
        for uid in was - now:
            if self._members.get(uid) == key:
                del self._members[uid]
        self._members.update(dict.fromkeys(now, key))
        self._changed_members |= was ^ now
        if gang is not None:
            self.all[key] = gang
            return
        if before is not None:
            self._exchange.lost(before)
        self._alone.pop(key, None)
        for part in (self._planner, self.restarts, self._events):
            part.forget(key)

    def changed_members(self) -> set[str]:
        """Pods (by uid) that have come into a gang or left one since the last call."""
        found, self._changed_members = self._changed_members, set()
        return found

    def together(self) -> dict[str, tuple[Object, ...]]:
        """Whom each member, by uid, is evicted with."""
        return {uid: pods for gang in self.all.values() for uid, pods in evicted_with(gang).items()}

    def priorities(self) -> dict[str, int]:
        """Of members, by uid, whose group says how urgent it is."""
        return {
            member.uid: gang.terms.disruption.priority
            for gang in self.all.values()
            if gang.terms.disruption.priority is not None
            for member in gang.members
        }

    def indispensable(self) -> dict[str, tuple[str, int, int]]:
        """Members that start together, by uid: their gang, how many of them it can do without, and how many
        that come later ask as this one."""
        return {
            member.uid: (key, len(status.plan) - status.needed, coming[member.uid])
            for key, status in self.statuses.items()
            if status.phase in (GangPhase.WAITING, GangPhase.BELOW_MIN_MEMBER)
            for coming in (Counter(one.like for one in status.coming),)
            for member in status.plan
        }

    def give_up(self, pods: Iterable[Object]) -> None:
        """What these members have is not held for their gangs when they end."""
        uids = set(map(objects.uid, pods))
        for key in sorted({self._members[uid] for uid in uids & self._members.keys()}):
            self.holds.give_up(key, uids)

    def has(self, pod_uid: str) -> bool:
        """Whether the pod's gate is the gang's business."""
        return pod_uid in self._members

    # planning

    def begin(
        self, epoch: int, *, touched: Iterable[str], concerns: tuple[object, ...]
    ) -> list[tuple[Urgency, Gang]]:
        """The planning step begins: held seats that do not do are exchanged. The gangs that `consider` is to
        be called for, and their places in the order. `epoch` as the cache's inventory has it; `touched`: pods
        that other nodes are left out for; `concerns`: what concerns everybody that waits."""
        cache, now = self._context.cache, self._context.clock()
        self._exchange.step(self.all, epoch)
        self._planner.epoch = epoch + self._spare_version
        seen = (concerns, self._spare_version, self.reservation.version)
        if seen != self._seen:
            self._to_plan |= self.all.keys()
        elif cache.version != self._seen_version:
            self._to_plan |= self._planner.reading_other_pods()
        self._seen, self._seen_version = seen, cache.version
        self._to_plan.update(self._members[uid] for uid in touched if uid in self._members)
        if (in_turn := self.reservation.in_turn(now)) is not None:
            self._to_plan.add(in_turn)
        self._to_plan &= self.all.keys()
        self._to_plan = {key for key in self._to_plan if self.statuses[key].plan and key not in self.restarts}
        return [
            (self._place(self.all[key], self.statuses[key]), self.all[key]) for key in sorted(self._to_plan)
        ]

    def _place(self, gang: Gang, status: GangStatus) -> Urgency:
        rank, created, name = gang.urgency
        if status.phase is GangPhase.BELOW_MIN_MEMBER:
            return (rank, "", name)
        return (_LAST[0] + rank, created, name) if status.phase is GangPhase.GROWING else gang.urgency

    def consider(self, key: str) -> None:
        """Plan the gang. One that is not called for in this pass is considered in the next."""
        status = self._within_quota(key)
        if self._planner.consider(self.all[key], status, self.all):
            self._to_plan.discard(key)
        self._count_waiting(key)

    def pause(self, key: str, *, until: float) -> None:
        """It need not be considered before that time, or before something changes."""
        self._to_plan.discard(key)
        self._schedule(key, until)
        self._context.wake(until)

    def end(self) -> None:
        """The planning step ends."""
        self._context.wake(self.reservation.next(self._context.clock()))

    def _within_quota(self, key: str) -> GangStatus:
        """Without the members beyond a quota, who are told."""
        status, beyond_quota = self.statuses[key], self._beyond_quota()
        free = within_quota(self.all[key], status, beyond_quota)
        if free is not status:
            why = events.tell_beyond_quota(status.plan, beyond_quota, context=self._context)
            reason = events.OF_PHASE.get(status.phase)
            if why and reason is not None and not free.plan:
                self._planner.why[key] = QUOTA_EXCEEDED
                self._events.report(self.all[key], reason, why)
        return free

    def reserved(self, group: Group) -> Mapping[str, Reason]:
        """Nodes that are reserved for a gang before this group. A gang's own members are kept off as the gang
        is, not by their own urgency."""
        if any(objects.uid(pod) in self._members for pod in group.pods):
            return {}
        return self.reservation.excluded_nodes(group.key, group.urgency)

    # gates

    def ungate(self) -> None:
        """Let go whoever may go, after all writes of this pass, and tell gangs what has changed in them."""
        self._refresh()
        for key in sorted(self._to_ungate & self.all.keys(), key=self._by_urgency):
            status = self.statuses[key]
            if status.ungate and key not in self.restarts:
                self.holds.record(self.all[key])
                commit.ungate(
                    self.all[key],
                    status.ungate,
                    context=self._context,
                    ungating=self.ungating,
                    live=self._live,
                )
        self._live.sync(self.all)

    def counts(self) -> dict[str, int]:
        return {**dict.fromkeys(GangPhase, 0), **Counter(status.phase for status in self.statuses.values())}

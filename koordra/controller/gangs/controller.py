"""What happens to gangs in a pass of the reconciler, and in which order.

    look      who belongs together, and what stage each gang is in; what is Torn is given back; what is Short for too long is
              restarted, or kept, as its policy says
    plan      in the order of planning, between the other pods:  Short gangs first within their priority, Waiting ones by
              urgency, Growing ones last
    lift      the gates of Ready gangs, and of members that joined a committed one

A gang is planned again when something could have changed for it: room was made, its pods or claims are others, or it is kept off
other nodes than before.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.kinds import NODES
from koordra.api.objects import Object
from koordra.controller.allocation.interpod_predicates import reads_other_pods
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.cache.groups import Group, Urgency
from koordra.controller.gangs import commit, events, quota_hold
from koordra.controller.gangs.annotations import GANG_TOPOLOGY
from koordra.controller.gangs.elastic_shrink import victims_for
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.member_placement import Cell, KeptOffBy, MemberPlacement, Place, question
from koordra.controller.gangs.membership import Gang, GangIndex
from koordra.controller.gangs.phase import GangStatus, Phase, statuses_of, with_idle
from koordra.controller.gangs.reservation import GangReservation
from koordra.controller.gangs.restart import GangRestarts
from koordra.controller.gangs.ungate import UngateTracker
from koordra.controller.placer import Placer
from koordra.logs import get_logger
from koordra.placement import gang as asked

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
SHRINK_PAUSE: Final = 60.0
MOST_BUDGET: Final = 64

Entries = Callable[..., Mapping[str, Object]]
"""`koordra.api.opaque.gang_member.gang_members`: what containers are to know of the gang, per claim."""

_LAST: Final[Urgency] = (2**31, "", "")


@dataclass(frozen=True, slots=True)
class _Considered:
    basis: tuple[object, ...]
    until: float | None = None
    budget: int = 1


class GangController:
    """The gangs of one cluster. Not thread-safe."""

    def __init__(
        self,
        context: PassContext,
        placer: Placer,
        *,
        on_allocated: commit.OnAllocated,
        kept_off: KeptOffBy,
        starves_after: float,
        place: Place | None = None,
        entries: Entries | None = None,
        beyond_quota: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._context = context
        self._beyond_quota = beyond_quota
        self._on_allocated = on_allocated
        self._kept_off = kept_off
        self._entries = entries
        self._arranging = MemberPlacement(placer, place=place)
        self._placer = placer
        self.ungating = UngateTracker()
        self.reservation = GangReservation(starves_after=starves_after)
        self._gang_index = GangIndex(context.cache, self.ungating)
        self._events = GangEvents(context.events.report, clock=context.clock)
        self.restarts = GangRestarts(context, self._events)
        self.all: dict[str, Gang] = {}
        self.statuses: dict[str, GangStatus] = {}
        self._alone: dict[str, GangStatus] = {}
        """Standings without regard to other gangs."""
        self._turns: list[tuple[Urgency, str]] = []
        self._considered: dict[str, _Considered] = {}
        self._shrunk: dict[str, float] = {}
        self._epoch = 0
        self._members: dict[str, str] = {}
        """uid -> key of its gang."""
        self._changed_members: set[str] = set()
        self._to_look: set[str] = set()
        self._to_plan: set[str] = set()
        self._to_lift: set[str] = set()
        self._doubtful: set[str] = set()
        self._waiting: set[str] = set()
        self._next_kept: float | None = None
        self._due: list[tuple[float, str]] = []
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
        self.ungating.sync(lambda uid: entries[uid].pod if uid in entries else None)
        self._refresh()
        if self._rule_out_doubts():
            self._refresh()
        while self._due and self._due[0][0] <= now:
            key = heapq.heappop(self._due)[1]
            self._to_look.add(key)
            self._to_plan.add(key)
        self._to_look &= self.all.keys()
        for key in sorted(self._to_look, key=self._by_urgency):
            self._sync_gang(self.all[key], self.statuses[key])
        self._refresh()
        for key in sorted(self._to_look & self.all.keys(), key=self._by_urgency):
            self._schedule(key, self.restarts.sync(self.all[key], now))
            if not self.statuses[key].give_back:
                self._to_look.discard(key)
        self.reservation.retain(self._waiting, now=now)
        context.wake(self._due[0][0] if self._due else None)

    def _by_urgency(self, key: str) -> tuple[Urgency, str]:
        return self.all[key].urgency, key

    def _sync_gang(self, gang: Gang, status: GangStatus) -> None:
        if status.give_back:
            why = f"gang {gang.key} is not complete: {status.why}"
            if not commit.give_back(status.give_back, why=why, context=self._context):
                return
            self._events.report(gang, events.ROLLED_BACK, f"devices were given back: {status.why}")
        self._report_status(gang, status)

    def _schedule(self, key: str, at: float | None) -> None:
        if at is not None:
            heapq.heappush(self._due, (at, key))

    def _rule_out_doubts(self) -> bool:
        doubts = [member for key in sorted(self._doubtful) for member in self.statuses[key].doubts]
        commit.rule_out(tuple(doubts), context=self._context, ungating=self.ungating)
        return bool(doubts)

    def _refresh(self) -> None:
        refs = self._gang_index.gather()
        if not refs and not (self._new_nodes and self.all):
            return
        cache, users = self._context.cache, self._context.users()
        changed = {ref.key for ref in refs}
        for ref in refs:
            self._replace(ref.key, self._gang_index.gangs.get(ref))
        if self._new_nodes:
            changed |= self.all.keys()
        self._new_nodes = False
        gangs = [self.all[key] for key in changed & self.all.keys()]
        self._alone |= statuses_of(gangs, nodes=cache.nodes, users=users)
        before = self.statuses
        self.statuses = with_idle(self.all, self._alone, nodes=cache.nodes, users=users)
        changed |= {key for key, status in self.statuses.items() if before.get(key) is not status}
        self._to_look |= changed
        self._to_plan |= changed
        self._to_lift = {key for key, status in self.statuses.items() if status.lift}
        self._doubtful = {key for key, status in self.statuses.items() if status.doubts}
        self._waiting = {key for key, status in self.statuses.items() if status.phase is Phase.WAITING}

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
        self._alone.pop(key, None)
        self._considered.pop(key, None)
        self._shrunk.pop(key, None)
        self.restarts.forget(key)
        self._events.forget(key)

    def changed_members(self) -> set[str]:
        """Pods (by uid) that have come into a gang or left one since the last call."""
        found, self._changed_members = self._changed_members, set()
        return found

    def together(self) -> dict[str, tuple[Object, ...]]:
        """Whom each member, by uid, is evicted with: all that were let go; nobody while its gang is not started yet."""
        return {
            member.uid: tuple(each.pod for each in gang.committed) if member.is_committed else ()
            for gang in self.all.values()
            for member in gang.members
        }

    def wholes(self) -> dict[str, tuple[str, int]]:
        """Members that start together, by uid: their gang, and how many of them it can do without."""
        return quota_hold.wholes(self.statuses)

    def has(self, pod_uid: str) -> bool:
        """Whether the pod's gate is the gang's business."""
        return pod_uid in self._members

    def _report_status(self, gang: Gang, status: GangStatus) -> None:
        if status.phase is Phase.GATHERING:
            self._schedule(gang.key, self._events.report(gang, events.GATHERING, status.why))
        elif status.phase is Phase.REFUSED:
            self._schedule(gang.key, self._events.report(gang, events.REFUSED, status.why))

    # planning

    def begin(self, epoch: int, *, touched: Iterable[str], concerns: tuple[object, ...]) -> None:
        """The planning step begins. `epoch` as the cache's inventory has it; `touched`: pods that other nodes are left out for;
        `concerns`: what concerns everybody that waits."""
        cache, now = self._context.cache, self._context.clock()
        self._epoch = epoch
        seen = (concerns, self.reservation.version)
        starving = self._next_kept is not None and self._next_kept <= now
        self._next_kept = None
        if seen != self._seen or starving:
            self._to_plan |= self.all.keys()
        elif cache.version != self._seen_version:
            self._to_plan |= self._pairwise()
        self._seen, self._seen_version = seen, cache.version
        self._to_plan.update(self._members[uid] for uid in touched if uid in self._members)
        self._to_plan &= self.all.keys()
        self._turns = sorted(
            (self._turn(self.all[key], self.statuses[key]), key)
            for key in self._to_plan
            if self.statuses[key].plan and key not in self.restarts
        )
        self._to_plan = {key for _, key in self._turns}
        self._next_kept = self.reservation.next(now)
        self._context.wake(self._next_kept)

    def _pairwise(self) -> set[str]:
        """Gangs that wait and have members for which it matters where others are."""
        return {
            key
            for key in self._considered
            if any(reads_other_pods(member.pod) for member in self.all[key].members)
        }

    def _turn(self, gang: Gang, status: GangStatus) -> Urgency:
        rank, created, name = gang.urgency
        if status.phase is Phase.BELOW_MIN:
            return (rank, "", name)
        return (_LAST[0] + rank, created, name) if status.phase is Phase.GROWING else gang.urgency

    def until(self, urgency: Urgency | None) -> None:
        """Plan the gangs whose turn is before this one's; None: all that are left."""
        while self._turns and (urgency is None or self._turns[0][0] < urgency):
            key = self._turns.pop(0)[1]
            if self._consider(key):
                self._to_plan.discard(key)

    def _consider(self, key: str) -> bool:
        """Whether it need not be considered again before something changes, or is due."""
        gang, status, now = self.all[key], self._within_quota(key), self._context.clock()
        if not status.plan:
            self._considered.pop(key, None)
            return True
        whole, cells = question(gang, status, self._placer, kept_off=self._kept_off_by(gang))
        basis = self._basis(whole, status)
        before = self._considered.pop(key, None)
        same = before is not None and before.basis == basis
        if before is not None and same and (before.until is None or before.until > now):
            self._considered[key] = before
            self._keep_for(gang, whole, cells, now)
            return True
        budget = before.budget * 2 if before is not None and same else 1
        answer = self._arrange(whole, cells, budget=budget)
        if isinstance(answer, asked.GangPlaced):
            self._write(gang, status, whole, answer, cells)
            return False
        undecided = isinstance(answer, asked.GangUndecided)
        until = now + UNDECIDED_PAUSE if undecided else None
        self._considered[key] = _Considered(basis, until, min(budget, MOST_BUDGET))
        self._schedule(key, until)
        self._context.wake(until)
        self._tell_waiting(gang, status, whole, answer, cells)
        if status.phase is Phase.WAITING:
            self.reservation.waits(gang, now=now)
            if not undecided:
                self._shrink_for(gang, whole, cells, now)
            self._keep_for(gang, whole, cells, now)
        return True

    def _within_quota(self, key: str) -> GangStatus:
        """Without the members whom a quota holds."""
        status, beyond_quota = self.statuses[key], self._beyond_quota()
        free = quota_hold.without_held(status, beyond_quota)
        if free is not status:
            why = quota_hold.tell_held(status, beyond_quota, context=self._context)
            phase = events.OF_STAGE.get(status.phase)
            if why and phase is not None and not free.plan:
                self._events.report(self.all[key], phase, why)
        return free

    def _arrange(
        self,
        whole: asked.Gang,
        cells: Mapping[str, Cell],
        *,
        budget: int = 1,
        without: frozenset[str] = frozenset(),
    ) -> asked.GangAnswer:
        kept_off = self._kept_off_by(self.all[whole.name])
        return self._arranging.arrange(whole, cells, kept_off=kept_off, budget=budget, without=without)

    def _kept_off_by(self, gang: Gang) -> KeptOffBy:
        of_gangs = self.reservation.kept_off(gang.urgency, gang.key)
        return lambda group: {**of_gangs, **self._kept_off(group)}

    def _basis(self, whole: asked.Gang, status: GangStatus) -> tuple[object, ...]:
        members = tuple(
            (
                member.key,
                tuple(objects.uid(pod) for pod in member.group.pods),
                tuple(claim.uid for claim in member.group.claims),
                member.group.allocated,
                tuple((node, member.excluded[node].detail) for node in sorted(member.excluded)),
            )
            for member in whole.members
        )
        fixed = tuple((entry.key, entry.node) for entry in whole.fixed)
        return self._epoch, status.phase, status.needed, members, fixed

    def _write(
        self,
        gang: Gang,
        status: GangStatus,
        whole: asked.Gang,
        answer: asked.GangPlaced,
        cells: Mapping[str, Cell],
    ) -> None:
        growing = status.phase is Phase.GROWING
        written = commit.allocate(
            gang,
            answer,
            cells,
            context=self._context,
            on_allocated=self._on_allocated,
            config=self._config(gang, whole, answer, cells),
            undo=not growing,
        )
        if not written:
            self._context.wake(self._context.clock() + 1.0)
            return
        self.reservation.placed(gang)
        self._shrunk.pop(gang.key, None)
        nodes = len({placed.node for placed in answer.members if placed.node})
        where = f"{events.number_of(len(answer.members), 'member')} on {events.number_of(nodes, 'node')}"
        if growing:
            self._events.report(gang, events.GROWS, f"{where} more; {answer.size} are placed")
        elif status.phase is Phase.WAITING:
            left = f", {len(answer.left)} wait for room" if answer.left else ""
            domains = "".join(f", {events.number_of(count, level)}" for level, count in answer.score.domains)
            remark = f"; {answer.remark}" if answer.remark else ""
            self._events.report(
                gang, events.STARTS, f"{where}{domains}{left}; their gates are lifted{remark}"
            )

    def _config(
        self, gang: Gang, whole: asked.Gang, answer: asked.GangPlaced, cells: Mapping[str, Cell]
    ) -> Mapping[str, Object]:
        if self._entries is None:
            return {}
        hosts = {member.key: _host(member.pod) for member in gang.members}
        return self._entries(gang.ref.name, answer, fixed=whole.fixed, hosts=hosts)

    # waiting

    def _tell_waiting(
        self,
        gang: Gang,
        status: GangStatus,
        whole: asked.Gang,
        answer: asked.GangAnswer,
        cells: Mapping[str, Cell],
    ) -> None:
        if isinstance(answer, asked.GangPlaced):
            return
        phase = events.OF_STAGE.get(status.phase)
        if phase is not None:
            said = (
                f"annotation {GANG_TOPOLOGY}: " if answer.text.startswith(f"{whole.required} is no ") else ""
            )
            self._events.report(gang, phase, f"{said}{answer.text}{events.nearest_miss(answer)}")
        for key, cell in cells.items():
            told = answer.reasons.get(key) or ()
            text = f"waits with its gang {gang.key}: {answer.text}"
            reasons = told or (Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text),)
            for claim in cell.group.pending:
                self._context.events.waiting(claim, cell.group.users(claim), reasons)

    def _keep_for(self, gang: Gang, whole: asked.Gang, cells: Mapping[str, Cell], now: float) -> None:
        """Nodes for a gang that starves."""
        if self.statuses[gang.key].phase is not Phase.WAITING:
            return
        if self.reservation.starves(gang, now=now):
            sites = sorted(self._placer.nodes.values(), key=lambda site: (len(site.holders), site.name))
            number = max(1, len(whole.members) // 2)
            while True:
                answer = self._arrange(whole, cells, without=_all_on(sites[:number], self._context.users()))
                if isinstance(answer, asked.GangPlaced):
                    self.reservation.keep(gang, {placed.node for placed in answer.members}, now=now)
                    log.info("nodes_kept_free", gang=gang.key, nodes=len(answer.members))
                    break
                if number >= len(sites):
                    self.reservation.unschedulable(gang, now=now)
                    break
                number *= 2
        self._next_kept = self.reservation.next(now)
        self._context.wake(self._next_kept)

    def _shrink_for(self, gang: Gang, whole: asked.Gang, cells: Mapping[str, Cell], now: float) -> None:
        """Members above the least of elastic gangs make room, where that is their policy and helps."""
        if self._shrunk.get(gang.key, 0.0) > now:
            return
        found = victims_for(
            gang,
            self.all.values(),
            self._context.users(),
            fits=lambda gone: self._arrange(whole, cells, without=gone),
        )
        if found is None:
            return
        self._shrunk[gang.key] = now + SHRINK_PAUSE
        for other, members in found.by_gang():
            text = f"{len(members)} members above the least were evicted for gang {gang.key}"
            self._events.report(replace(other, members=members), events.SHRUNK, text)
            commit.evict(members, context=self._context)
        self.reservation.keep(gang, found.nodes, now=now)

    def kept_off(self, group: Group) -> Mapping[str, Reason]:
        """Nodes that are kept free for a gang before this group."""
        return (
            {}
            if self.reservation.kept is None or self._is_ours(group)
            else self.reservation.kept_off(group.urgency)
        )

    def _is_ours(self, group: Group) -> bool:
        """A gang's own members are kept off as the gang is, not by their own urgency."""
        return any(objects.uid(pod) in self._members for pod in group.pods)

    # gates

    def lift(self) -> None:
        """Let go whoever may go, after all writes of this pass."""
        if not self.all:
            return
        self._refresh()
        for key in sorted(self._to_lift & self.all.keys(), key=self._by_urgency):
            status = self.statuses[key]
            if status.lift and key not in self.restarts:
                commit.lift(self.all[key], status.lift, context=self._context, ungating=self.ungating)

    def counts(self) -> dict[str, int]:
        """Gangs by stage."""
        found = dict.fromkeys((phase.value.lower() for phase in Phase), 0)
        for status in self.statuses.values():
            found[status.phase.value.lower()] += 1
        return found


def _host(pod: Object) -> str:
    """The name by which other members resolve the pod."""
    spec = objects.spec_of(pod)
    name = str(spec.get("hostname") or objects.name(pod))
    return f"{name}.{spec['subdomain']}" if spec.get("subdomain") else name


def _all_on(sites: Iterable[Any], users: Mapping[str, Sequence[Object]]) -> frozenset[str]:
    """uids of the claims that hold devices on the sites and of the pods that use them."""
    gone: set[str] = set()
    for site in sites:
        for claim in site.holders:
            gone.add(objects.uid(claim))
            gone.update(objects.uid(pod) for pod in users.get(objects.key(claim), ()))
    return frozenset(gone)

"""A gang's turn: places for its members are looked for, and written, or it is told why it waits and makes room for itself.

    answer       as many members as fit, at least so many as are needed; with twice the budget where the search was cut off before
    write        allocations, all or none of what is needed (commit.py)
    wait         the nearest miss is told; members of elastic gangs may make room; a gang that starves gets nodes reserved

A gang that waits is not looked at again before something could have changed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.pod_terms import reads_other_pods
from koordra.controller.gangs import commit, events
from koordra.controller.gangs.annotations import GANG_TOPOLOGY
from koordra.controller.gangs.elastic_shrink import victims_for
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.member_placement import (
    ExcludedFor,
    PlacementRequest,
    place_members,
    request_for,
)
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.phase import GangStatus, Phase
from koordra.controller.gangs.reservation import GangReservation
from koordra.controller.placer import Placer
from koordra.logs import get_logger
from koordra.placement.gang import GangAnswer, GangPlaced, GangUndecided, GangUnplaced, gang_members
from koordra.placement.index import NodeInfo

log = get_logger(__name__)

UNDECIDED_PAUSE: Final = 10.0
SHRINK_PAUSE: Final = 60.0
MOST_BUDGET: Final = 64


@dataclass(frozen=True, slots=True)
class _Considered:
    """What a gang was considered with, until when that holds, and the budget that was not enough."""

    basis: tuple[object, ...]
    until: float | None = None
    budget: int = 1


@dataclass(frozen=True, slots=True)
class _Turn:
    """A gang that is looked at, and the places that it is to get."""

    gang: Gang
    status: GangStatus
    request: PlacementRequest


class GangPlanner:
    """Not thread-safe. `due`: told when a gang is to be looked at again."""

    def __init__(
        self,
        context: PassContext,
        placer: Placer,
        *,
        on_allocated: commit.OnAllocated,
        excluded: ExcludedFor,
        reporter: GangEvents,
        reservation: GangReservation,
        due: Callable[[str, float | None], None],
    ) -> None:
        self._context = context
        self._placer = placer
        self._on_allocated = on_allocated
        self._excluded = excluded
        self._events = reporter
        self._reservation = reservation
        self._due = due
        self._considered: dict[str, _Considered] = {}
        self._shrunk: dict[str, float] = {}
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """A planning step begins; `epoch` as the cache's inventory has it."""
        self._epoch = epoch

    def forget(self, key: str) -> None:
        """The gang is gone."""
        self._considered.pop(key, None)
        self._shrunk.pop(key, None)

    def reading_other_pods(self, gangs: Mapping[str, Gang]) -> set[str]:
        """Gangs that wait and have members for which it matters where other pods are."""
        return {
            key
            for key in self._considered
            if any(reads_other_pods(member.pod) for member in gangs[key].members)
        }

    def consider(self, gang: Gang, status: GangStatus, gangs: Iterable[Gang]) -> bool:
        """Whether it need not be considered again before something changes, or is due."""
        key, now = gang.key, self._context.clock()
        if not status.plan:
            self._considered.pop(key, None)
            return True
        reserved = self._reservation.excluded(gang.urgency, gang.key)
        turn = _Turn(
            gang,
            status,
            request_for(
                gang, status, self._placer, excluded=lambda group: {**reserved, **self._excluded(group)}
            ),
        )
        basis = self._basis(turn)
        before = self._considered.pop(key, None)
        same = before is not None and before.basis == basis
        if before is not None and same and (before.until is None or before.until > now):
            self._considered[key] = before
            self._reserve(turn, now)
            return True
        budget = before.budget * 2 if before is not None and same else 1
        answer = place_members(turn.request, self._placer, budget=budget)
        if isinstance(answer, GangPlaced):
            self._write(turn, answer)
            return False
        undecided = isinstance(answer, GangUndecided)
        until = now + UNDECIDED_PAUSE if undecided else None
        self._considered[key] = _Considered(basis, until, min(budget, MOST_BUDGET))
        self._due(key, until)
        self._context.wake(until)
        self._tell_waiting(turn, answer)
        if status.phase is Phase.WAITING:
            self._reservation.waits(gang, now=now)
            if not undecided:
                self._shrink_others(turn, gangs, now)
            self._reserve(turn, now)
        return True

    def _without(self, turn: _Turn, gone: frozenset[str]) -> GangAnswer:
        return place_members(turn.request, self._placer, without=gone)

    def _basis(self, turn: _Turn) -> tuple[object, ...]:
        members = tuple(
            (
                member.key,
                tuple(objects.uid(pod) for pod in member.group.pods),
                tuple(claim.uid for claim in member.group.claims),
                member.group.allocated,
                tuple((node, member.excluded[node].detail) for node in sorted(member.excluded)),
            )
            for member in turn.request.gang.members
        )
        fixed = tuple((entry.key, entry.node) for entry in turn.request.gang.fixed)
        return self._epoch, turn.status.phase, turn.status.needed, members, fixed

    # it fits

    def _write(self, turn: _Turn, answer: GangPlaced) -> None:
        gang, growing = turn.gang, turn.status.phase is Phase.GROWING
        hosts = {member.key: _host(member.pod) for member in gang.members}
        fixed = turn.request.gang.fixed
        written = commit.allocate(
            gang,
            answer,
            turn.request.groups,
            context=self._context,
            on_allocated=self._on_allocated,
            config=gang_members(gang.ref.name, answer, fixed=fixed, hosts=hosts),
            undo=not growing,
        )
        if not written:
            self._context.wake(self._context.clock() + 1.0)
            return
        self._reservation.placed(gang)
        self._shrunk.pop(gang.key, None)
        nodes = len({placed.node for placed in answer.members if placed.node})
        where = f"{events.number_of(len(answer.members), 'member')} on {events.number_of(nodes, 'node')}"
        if growing:
            self._events.report(gang, events.GROWS, f"{where} more; {answer.size} are placed")
        elif turn.status.phase is Phase.WAITING:
            left = f", {len(answer.left)} wait for room" if answer.left else ""
            domains = "".join(f", {events.number_of(count, level)}" for level, count in answer.score.domains)
            self._events.report(gang, events.STARTS, f"{where}{domains}{left}; their gates are lifted")

    # it does not fit

    def _tell_waiting(self, turn: _Turn, answer: GangUnplaced) -> None:
        gang = turn.gang
        reason = events.OF_PHASE.get(turn.status.phase)
        if reason is not None:
            unknown = answer.text.startswith(f"{turn.request.gang.required} is no ")
            said = f"annotation {GANG_TOPOLOGY}: " if unknown else ""
            self._events.report(gang, reason, f"{said}{answer.text}{events.nearest_miss(answer)}")
        text = f"waits with its gang {gang.key}: {answer.text}"
        waits = Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text)
        for key, group in turn.request.groups.items():
            for claim in group.pending:
                self._context.events.waiting(claim, group.users(claim), answer.reasons.get(key) or (waits,))

    def _reserve(self, turn: _Turn, now: float) -> None:
        """Nodes for a gang that starves."""
        if turn.status.phase is not Phase.WAITING or not self._reservation.starves(turn.gang, now=now):
            return
        nodes = sorted(self._placer.nodes.values(), key=lambda info: (len(info.holders), info.name))
        number = max(1, len(turn.request.gang.members) // 2)
        while True:
            answer = self._without(turn, _all_on(nodes[:number], self._context.users()))
            if isinstance(answer, GangPlaced):
                self._reservation.reserve(turn.gang, {placed.node for placed in answer.members}, now=now)
                log.info("nodes_reserved", gang=turn.gang.key, nodes=len(answer.members))
                return
            if number >= len(nodes):
                self._reservation.unschedulable(turn.gang, now=now)
                return
            number *= 2

    def _shrink_others(self, turn: _Turn, gangs: Iterable[Gang], now: float) -> None:
        """Members above the least of elastic gangs make room, where that is their policy and helps."""
        key = turn.gang.key
        if self._shrunk.get(key, 0.0) > now:
            return
        found = victims_for(turn.gang, gangs, self._context.users(), fits=partial(self._without, turn))
        if found is None:
            return
        self._shrunk[key] = now + SHRINK_PAUSE
        for other, members in found.by_gang():
            text = f"{len(members)} members above the least were evicted for gang {key}"
            self._events.report(replace(other, members=members), events.SHRUNK, text)
            commit.evict(members, context=self._context)
        self._reservation.reserve(turn.gang, found.nodes, now=now)


def _host(pod: Object) -> str:
    """The name by which other members resolve the pod."""
    spec = objects.spec_of(pod)
    name = str(spec.get("hostname") or objects.name(pod))
    return f"{name}.{spec['subdomain']}" if spec.get("subdomain") else name


def _all_on(nodes: Iterable[NodeInfo], users: Mapping[str, Sequence[Object]]) -> frozenset[str]:
    """uids of the claims that hold devices on the nodes and of the pods that use them."""
    claims = [claim for info in nodes for claim in info.holders]
    pods = [pod for claim in claims for pod in users.get(objects.key(claim), ())]
    return frozenset(map(objects.uid, (*claims, *pods)))

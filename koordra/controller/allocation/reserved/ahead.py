"""Who runs into a reservation that begins later: told ahead, and nothing is taken from anybody.

its seats are looked for as if those were gone who say that they end before    they would be free: nobody
it begins (`activeDeadlineSeconds`)                                            is in the way
else on the nodes with the fewest claims, as if nobody were there              those who are there and run
                                                                               past the start, or do not
                                                                               say how long, are warned
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reserved.period import Period
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.placement.decide import Excluded
from koordra.placement.holders.reservation import Reservation
from koordra.placement.index import NodeInfo

LOOK_AGAIN: Final = 60.0
MOST_NODES: Final = 16
"""That are looked at as if nobody were there."""
MOST_SEATS: Final = 64
RUNS_INTO: Final = "RunsIntoReservation"
"""a pod waits for a node that is reserved before it would have ended"""

Excluding = Callable[[Group], Excluded]


class Ahead:
    """Not thread-safe."""

    def __init__(self, context: PassContext, placer: Placer, excluded: Excluding) -> None:
        self._context = context
        self._placer = placer
        self._excluded = excluded
        self._look_at: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        """Reservations and those who were told, by uid."""

    def is_due(self, one: Reservation) -> bool:
        return self._context.clock() >= self._look_at.get(one.key, 0.0)

    def look(self, one: Reservation, period: Period) -> str:
        """What is to be told of the reservation: how many of its seats would be free when it begins."""
        self._look_at[one.key] = self._context.clock() + LOOK_AGAIN
        self._context.wake(self._look_at[one.key])
        start = datetime.fromisoformat(period.start)
        wanted, free, in_the_way = min(one.seats, MOST_SEATS), 0, dict[str, Object]()
        with self._placer.overlay(frozenset(self._ended_by(start))):
            for number in range(wanted):
                group = _group(one, str(number))
                found = self._placer.place(group, self._excluded(group), why=False)
                if found.node is not None and found.allocations:
                    free += 1
                else:
                    found, users = self._emptied(group)
                    in_the_way |= {objects.uid(pod): pod for pod in users if not _ends_by(pod, start)}
                for claim in group.pending if found.allocations else ():
                    given = claims_of.with_allocation(claim, found.allocations[objects.key(claim)])
                    self._placer.assume(given, group.pods)
        for uid, pod in sorted(in_the_way.items()):
            self._warn(one, period, uid, pod)
        return f"{free} of {wanted} seats would be free then"

    def _emptied(self, group: Group) -> tuple[GroupPlacement, list[Object]]:
        """On the node with the fewest claims on which it fits as if nobody were there; and who is."""
        kept_off = self._excluded(group)
        nodes = [info for name, info in self._placer.nodes.items() if name not in kept_off]
        for info in sorted(nodes, key=lambda one: (len(one.holders), one.name))[:MOST_NODES]:
            users = self._users_on(info)
            if users and self._placer.fits_when_empty(group, info):
                return GroupPlacement(), users
        return GroupPlacement(), []

    def _users_on(self, info: NodeInfo) -> list[Object]:
        users = self._context.users()
        return [pod for claim in info.holders for pod in users.get(objects.key(claim), ())]

    def _ended_by(self, start: datetime) -> Iterator[str]:
        """Pods and their claims, by uid."""
        cache, users = self._context.cache, self._context.users()
        for key in cache.claim_index.held:
            using = users.get(key, ())
            if using and all(_ends_by(pod, start) for pod in using):
                yield objects.uid(cache.claims[key])
                yield from map(objects.uid, using)

    def _warn(self, one: Reservation, period: Period, uid: str, pod: Object) -> None:
        if (objects.uid(one.obj), uid) in self._warned:
            return
        if len(self._warned) > 1 << 16:
            self._warned.clear()
        self._warned.add((objects.uid(one.obj), uid))
        ends = _end_of(pod)
        runs = (
            f"runs until {ends.isoformat()}"
            if ends
            else "does not say how long it runs (activeDeadlineSeconds)"
        )
        text = (
            f"node {objects.spec_of(pod).get('nodeName')} is booked from {period.start} for reservation {one.key}, and this pod "
            f"{runs}: nothing is taken from it, and the reservation waits"
        )
        self._context.events.report(ClaimEvent(RUNS_INTO, cut(text), (pod,)))


def _group(one: Reservation, name: str) -> Group:
    return Group((PodClaims(one.pod(name), one.claims_for(name)),))


def _ends_by(pod: Mapping[str, object], start: datetime) -> bool:
    end = _end_of(pod)
    return end is not None and end <= start


def _end_of(pod: Mapping[str, object]) -> datetime | None:
    """When it has to be over, by its own words."""
    seconds = objects.spec_of(pod).get("activeDeadlineSeconds")
    began = objects.status_of(pod).get("startTime") or objects.metadata(pod).get("creationTimestamp")
    if not isinstance(seconds, int) or not began:
        return None
    return datetime.fromisoformat(str(began)) + timedelta(seconds=seconds)

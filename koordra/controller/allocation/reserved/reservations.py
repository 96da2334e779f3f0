"""Reservations of a cluster: their seats, kept by the changes of the cache, and written as DeviceHolds.

sync   at the beginning of a planning step: what was taken, what is kept again, what is over
fill   seats that lack, before pods are planned: what is free is taken, and what is not is waited for.
       Pods that are more urgent take it again
draw   before an owner's claim is allocated
tell   at the end: status and Events
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.explain.telling import headline, in_one_line
from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, RESERVATIONS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.tables import DueKeys, KeySets, set_or_drop
from koordra.controller.allocation.hold_object import object_name
from koordra.controller.allocation.hold_writes import MOST_SEATS, HoldWrites, in_objects
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reserved.ahead import LOOK_AGAIN, Ahead, Excluding
from koordra.controller.allocation.reserved.period import Period, Stage, period_of
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS, Quotas
from koordra.controller.allocation.reserved.seats import drawn, new_seat, renewed
from koordra.controller.allocation.reserved.status import StatusWriter, Told
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims
from koordra.effort import counted, is_spent
from koordra.placement.holders.device_hold import DeviceHold, Seat
from koordra.placement.holders.reservation import MOST_SEATS as MOST_OF_ONE
from koordra.placement.holders.reservation import Reservation, reservation_of_owner

MOST_STEPS: Final = 40_000
"""Steps that looking for seats may cost a pass."""
SELECTORS: Final = 500_000
TRIED_FOR: Final = 30.0
"""Seconds after which seats are looked for although nothing has changed: a quota may have been raised."""
MOST_KEPT: Final = 10_000
"""Seats in one namespace."""


@dataclass(slots=True)
class _Entry:
    """`tried`: on which basis no place was found, which holds until `again`; `why`."""

    one: Reservation
    period: Period = field(default_factory=lambda: Period(Stage.INVALID))
    tried: object = None
    again: float = 0.0
    why: str = ""
    reason: str = ""


class DeviceReservations:
    """Not thread-safe."""

    def __init__(
        self,
        context: PassContext,
        placer: Placer,
        writes: HoldWrites,
        *,
        excluded: Excluding,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        self._context = context
        self._placer = placer
        self._writes = writes
        self._excluded = excluded
        self._quotas = quotas
        self._entries: dict[str, _Entry] = {}
        self._holds: dict[str, dict[str, DeviceHold]] = {}
        """By key of the reservation, and by their own."""
        self._taken_by = KeySets()
        """By uid of a claim: reservations, each with the key of the hold."""
        self._touched: set[str] = set()
        self._untold: set[str] = set()
        self._due = DueKeys()
        self._last = ""
        self._ahead = Ahead(context, placer, excluded)
        self._status = StatusWriter(context)
        context.cache.listen(RESERVATIONS, self._on_reservation, replay=True)
        context.cache.listen(DEVICE_HOLDS, self._on_hold, replay=True)
        context.cache.listen(RESOURCE_CLAIMS, self._on_claim)
        context.before_allocation = self.draw

    # what is watched

    def _on_reservation(self, key: str, _before: Object | None, now: Object | None) -> None:
        one = None if now is None else Reservation.of(now)
        if one is None:
            self._entries.pop(key, None)
        elif key in self._entries and objects.spec_of(self._entries[key].one.obj) == objects.spec_of(one.obj):
            self._entries[key].one = one
        else:
            self._entries[key] = _Entry(one)
        self._touched.add(key)

    def _on_hold(self, key: str, before: Object | None, now: Object | None) -> None:
        if (obj := now or before) is not None:
            self._quotas.on_hold("DELETED" if now is None else "MODIFIED", obj)
        old, new = (None if obj is None else DeviceHold.of(obj) for obj in (before, now))
        of_old, of_new = (None if one is None else reservation_of_owner(one.owner) for one in (old, new))
        for of in filter(None, dict.fromkeys((of_old, of_new))):
            here, hold = self._holds.setdefault(of, {}), new if of == of_new else None
            set_or_drop(here, key, hold)
            set_or_drop(self._holds, of, here)
            self._touched.add(of)
            self._taken_by.move(f"{of} {key}", _claims(old if of == of_old else None), _claims(hold))

    def _on_claim(self, _key: str, before: Object | None, _now: Object | None) -> None:
        """It may have taken from several."""
        if before is not None:
            self._touched.update(one.split()[0] for one in self._taken_by.get(objects.uid(before), ()))

    def _own(self, key: str) -> list[DeviceHold]:
        return [hold for _, hold in sorted(self._holds.get(key, {}).items())]

    # the passes

    def sync(self) -> None:
        """Raises ApiUnreachable."""
        clock = self._context.clock()
        self._touched |= self._due.pop(clock)
        now = self._context.writer.now()
        for key in sorted(self._touched):
            self._renew(key, now, clock)
            self._touched.discard(key)
            self._untold.add(key)
        self._context.wake(self._due.next)

    def _renew(self, key: str, now: str, clock: float) -> None:
        entry, holds = self._entries.get(key), self._own(key)
        if entry is None:
            for hold in holds:
                self._change(key, replace(hold, seats=()), hold)
            return
        entry.period = period = period_of(entry.one, now)
        if period.left:
            self._due.add(
                clock + min(period.left, LOOK_AGAIN if period.stage is Stage.AHEAD else period.left), key
            )
        recorded = [seat for hold in holds for seat in hold.seats]
        one, place = entry.one, f"{objects.namespace(entry.one.obj)}/"
        became: list[Seat | None] = [None] * len(recorded)
        if period.stage is Stage.OPEN:
            claim_of = self._context.cache.claims.get
            became = renewed(recorded, lambda name: claim_of(place + name), once=one.once, until=period.end)
            for at in range(one.seats, len(became)):
                became[at] = None
        for hold, seats in zip(holds, in_objects(holds, became), strict=True):
            wanted = replace(hold, seats=seats, priority=one.priority, owners=one.owners)
            self._change(key, wanted, hold)

    def fill(self, basis: object) -> None:
        """`basis`: another one where room may have been made. Raises ApiUnreachable."""
        lacking = sorted(key for key in self._entries if self._lacks(key, basis))
        with counted(selectors=SELECTORS, steps=MOST_STEPS):
            for key in sorted(lacking, key=lambda key: (key <= self._last, key)):
                if is_spent():
                    self._context.wake(self._context.clock() + 1.0)
                    return
                self._last = key
                entry = self._entries[key]
                if entry.period.stage is Stage.AHEAD:
                    entry.why = self._ahead.look(entry.one, entry.period)
                else:
                    self._fill(key, entry)
                    entry.tried, entry.again = basis, self._context.clock() + TRIED_FOR
                    if entry.why:
                        self._due.add(entry.again, key)
                self._untold.add(key)

    def _lacks(self, key: str, basis: object) -> bool:
        entry = self._entries[key]
        if entry.period.stage is Stage.AHEAD:
            return self._ahead.is_due(entry.one)
        missing = entry.one.seats - sum(len(hold.seats) for hold in self._own(key))
        is_tried = entry.tried == basis and self._context.clock() < entry.again
        return entry.period.stage is Stage.OPEN and missing > 0 and not is_tried

    def _fill(self, key: str, entry: _Entry) -> None:
        one, holds = entry.one, self._own(key)
        names = {seat.name for hold in holds for seat in hold.seats}
        free = (str(number) for number in range(MOST_OF_ONE) if str(number) not in names)
        here = f"{objects.namespace(one.obj)}/"
        kept = sum(len(hold.seats) for of in self._holds if of.startswith(here) for hold in self._own(of))
        charged = self._quotas.charged([{"devices": devices} for _, devices in one.claims])
        entry.why = entry.reason = ""
        for _ in range(one.seats - len(names)):
            if (kept := kept + 1) > MOST_KEPT:
                entry.reason, entry.why = "Refused", f"a namespace keeps {MOST_KEPT} seats at most"
                return
            entry.why = self._quotas.refusal(objects.namespace(one.obj), charged)
            if entry.why or is_spent():
                entry.reason = "QuotaExceeded" if entry.why else ""
                return
            name = next(free)
            group = seat_group(one, name)
            found = self._placer.place(group, self._excluded(group))
            if found.node is None or not found.allocations:
                reasons = [reason for given in found.reasons.values() for reason in given]
                entry.reason = "Waiting"
                entry.why = f"{headline(reasons)}: {in_one_line(reasons, most=500)}" if reasons else "no room"
                return
            seat = new_seat(name, found.node, found.allocations, until=entry.period.end, charged=charged)
            if not self._add(key, one, seat):
                entry.why, entry.reason = "DeviceHolds cannot be written: see the controller's log", "Refused"
                return

    def _add(self, key: str, one: Reservation, seat: Seat) -> bool:
        for hold in self._own(key):
            if len(hold.seats) < MOST_SEATS:
                self._change(key, replace(hold, seats=(*hold.seats, seat)), hold)
                return True
        metadata = {
            "name": object_name(f"reservation {key}", objects.name(one.obj), [replace(seat, pod=seat.name)]),
            "namespace": objects.namespace(one.obj),
            "ownerReferences": [
                {
                    **RESERVATIONS.type_meta,
                    "name": objects.name(one.obj),
                    "uid": objects.uid(one.obj),
                    "controller": True,
                }
            ],
        }
        wanted = DeviceHold({"metadata": metadata}, one.owner, one.priority, 0, (seat,), one.owners)
        if self._writes.create(metadata, wanted):
            return True
        self._due.add(self._writes.refused_until, key)
        return False

    def _change(self, key: str, wanted: DeviceHold, hold: DeviceHold) -> None:
        if self._writes.change(wanted, hold):
            self._due.add(self._context.clock() + REFUSED_PAUSE, key)

    def draw(self, group: Group, claim: Object, allocation: Fields) -> None:
        """What the claim is about to get is taken from what is kept for its pods. Raises ApiUnreachable."""
        results: list[Fields] = list(allocation["devices"].get("results") or ())
        seats = self._placer.engine.index.reserved.for_pods(group.users(claim) or group.pods)
        for reserved in seats:
            key = reservation_of_owner(reserved.hold.owner) or ""
            entry = self._entries.get(key)
            left = entry and drawn(reserved.seat, claim, results, once=entry.one.once)
            if left:
                hold = self._holds[key][reserved.hold.key]
                seats_left = tuple(left if seat.name == left.name else seat for seat in hold.seats)
                self._change(key, replace(hold, seats=seats_left), hold)

    def tell(self) -> None:
        """Raises ApiUnreachable."""
        for key in sorted(self._untold):
            entry = self._entries.get(key)
            if entry is not None:
                seats = [seat for hold in self._own(key) for seat in hold.seats]
                self._status.tell(entry.one, Told(entry.period, seats, entry.reason, entry.why))
            self._untold.discard(key)


def _claims(hold: DeviceHold | None) -> set[str]:
    return set() if hold is None else {uid for seat in hold.seats for _, uid in seat.claims}


def seat_group(one: Reservation, name: str) -> Group:
    """What has to be placed for the seat."""
    pod = one.pod(name)
    return Group((PodClaims(pod, one.claims_for(name)),))

"""The gangs' records: DeviceHolds, kept by the changes of the cache and of the gangs, and written.

    sync      at the beginning of a pass: who came, who is gone, what is over. What is lost is held from this
              moment on, whether or not that could be written
    record    before gates are lifted: the seats of all who have their devices
    reserve   before leaders go first: places for those who come later, which nobody had yet
    release   those places, if the leaders do not go after all
    give_up   before members are evicted for others, or to start anew
    take      for somebody more urgent
    exchange  for another place, where one does not do any more (expected/seat_exchange)

One object has up to MOST_SEATS seats, and a gang as many objects as it needs. Each write names the version
that it changes. Where the API server refuses, nothing is held for the gang, and it starts all the same.
Holds of reservations are nobody's here, but for what somebody more urgent takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.opaque.share_limits import claim_of_owner
from koordra.api.tables import DueKeys, set_or_drop
from koordra.controller.allocation.hold_object import after, held_keys, object_name, seconds_until
from koordra.controller.allocation.hold_writes import MOST_SEATS, HoldWrites, in_objects
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.gangs.membership import Gang, GangIndex, Member
from koordra.controller.gangs.seats.job_owner import JobOwners
from koordra.controller.gangs.seats.recorded import (
    Kept,
    Now,
    gang_of_owner,
    held_for,
    is_of_gang,
    kept_of,
    owner_of,
    renewed,
    seats_of,
)
from koordra.logs import get_logger
from koordra.placement.gang import KeptSeat
from koordra.placement.holders.device_hold import DeviceHold, Seat, held_uid

log = get_logger(__name__)

MOST_HELD: Final = 10_000
"""Seats that are held in one namespace at a time."""
SPARED_AFTER: Final = 90.0
"""Seconds after which a member that was to be evicted, and does not end, has its seat again: the eviction was
refused, or nobody needs it any more. Longer than the pauses in which evictions are tried again."""


class HeldSeat(NamedTuple):
    """A seat and its record. `claim`: as which it counts."""

    hold: DeviceHold
    seat: Seat

    @property
    def node(self) -> str:
        return self.seat.node

    @property
    def uid(self) -> str:
        return held_uid(self.hold.obj, self.seat)

    @property
    def claim(self) -> Fields:
        return self.hold.obj


class DeviceHolds:
    """Not thread-safe."""

    def __init__(self, context: PassContext, gangs: GangIndex, writes: HoldWrites) -> None:
        self._context = context
        self._gangs = gangs
        self._of_gang: dict[str, dict[str, DeviceHold]] = {}
        """By gang and by key."""
        self._holding: dict[str, DeviceHold] = {}
        """By key: those with seats that nobody has."""
        self._held_in = Counter[str]()
        """By namespace: the number of such seats."""
        self._touched: set[str] = set()
        self._changed: set[str] = set()
        self._writes = writes
        self._due = DueKeys()
        self._deadlines: dict[str, dict[tuple[str, str], float]] = {}
        """By gang, and by pod and `until` of a seat: when the hold ends by the monotonic clock."""
        self._given_up: dict[str, dict[str, float]] = {}
        """By gang, and by pod: when a member that was to be evicted is taken to be spared."""
        self._owners = JobOwners(context)
        self._of_claim: dict[str, str] = {}
        """By uid of a claim that a seat's devices belong to: its gang."""
        context.cache.listen(DEVICE_HOLDS, self._on_hold, replay=True)
        context.cache.listen(RESOURCE_CLAIMS, self._on_claim)

    # the records

    def _on_hold(self, key: str, before: Object | None, now: Object | None) -> None:
        old, new = (None if obj is None else DeviceHold.of(obj) for obj in (before, now))
        for hold in filter(None, (old, new)):
            if not is_of_gang(hold.owner):
                continue
            gang = gang_of_owner(hold.owner)
            of_gang = self._of_gang.setdefault(gang, {})
            set_or_drop(of_gang, key, new if hold is new else None)
            set_or_drop(self._of_gang, gang, of_gang)
            self._touched.add(gang)
            for seat in hold.seats:
                for _, uid in seat.claims:
                    set_or_drop(self._of_claim, uid, gang if hold is new else None)
            self._changed.add(gang)
        had, has = held_keys(old), held_keys(new)
        if any(hold is not None and claim_of_owner(hold.owner) for hold in (old, new)):
            # What a running claim has beyond its allocation: nobody may take it, and it is no gang's.
            if old is not None and _devices(old) != _devices(new):
                self._context.cache.capacity_epoch.epoch += 1
                self._context.wake(self._context.clock())
            return
        set_or_drop(self._holding, key, new if has else None)
        self._held_in[key.partition("/")[0]] += len(has) - len(had)
        if had - has:
            self._context.cache.capacity_epoch.epoch += 1
            self._context.wake(self._context.clock())

    def _on_claim(self, _key: str, before: Object | None, _now: Object | None) -> None:
        """Its pod may be long gone."""
        if before is not None and (gang := self._of_claim.get(objects.uid(before))) is not None:
            self._touched.add(gang)

    @property
    def number(self) -> int:
        """Seats that are held now."""
        return self._held_in.total()

    def changed(self) -> set[str]:
        """Gangs for which something else is held than at the last call."""
        found, self._changed = self._changed, set()
        return found

    def touch(self, gangs: Iterable[str]) -> None:
        """Of these members have changed, or are gone."""
        self._touched.update(gangs)

    def weaker_than(self, priority: int) -> list[HeldSeat]:
        """What is held for gangs, and reserved, that is less urgent."""
        return [
            HeldSeat(hold, seat)
            for _, hold in sorted(self._holding.items())
            if hold.priority < priority
            for seat in hold.seats
            if seat.until
        ]

    def held(self) -> list[HeldSeat]:
        """All of gangs that nobody has."""
        holding = [hold for hold in self._holding.values() if is_of_gang(hold.owner)]
        return [HeldSeat(hold, seat) for hold in holding for seat in hold.seats if seat.until]

    def recorded(self, gang: str) -> list[HeldSeat]:
        """All seats of its record."""
        return [HeldSeat(hold, seat) for hold in self._of_gang.get(gang, {}).values() for seat in hold.seats]

    def exchange(self, held: HeldSeat, seat: Seat) -> None:
        """Hold this one in its place. Others of the object may have been exchanged since `held` was read.
        Raises ApiUnreachable."""
        hold = self._holding.get(held.hold.key, held.hold)
        log.info("held_seat_exchanged", hold=hold.key, seat=seat.name, node=seat.node, before=held.node)
        kept = tuple(seat if held_uid(hold.obj, one) == held.uid else one for one in hold.seats)
        self._change(replace(hold, seats=kept), hold)

    def seats_for(self, gang: Gang, members: Iterable[Member]) -> dict[str, KeptSeat]:
        """By member key: of each that has one held for it."""
        holds = sorted(self._of_gang.get(gang.key, {}).items())
        return held_for(members, [hold for _, hold in holds]) if holds else {}

    # what becomes of them

    def sync(self, gangs: Mapping[str, Gang]) -> None:
        """What had no answer is written again before anything else. Raises ApiUnreachable."""
        unwritten = {gang_of_owner(hold.owner) for hold in self._writes.unwritten()}
        self._touched |= self._due.pop(self._context.clock()) | unwritten
        for key in sorted(self._touched):
            self._renew(key, gangs.get(key))
            self._touched.discard(key)
        self._context.wake(self._due.next)

    def record(self, gang: Gang) -> None:
        """The seats of a gang of which somebody is let go next. Raises ApiUnreachable."""
        self._renew(gang.key, gang, starting=True)

    def _renew(self, key: str, gang: Gang | None, *, starting: bool = False) -> None:
        holds = [hold for _, hold in sorted(self._of_gang.get(key, {}).items())]
        had = [] if gang is None or not gang.terms.hold else seats_of(gang, starting=starting)
        if not holds:
            self._owners.forget(key)
            self._given_up.pop(key, None)
        if not holds and not had:
            return
        recorded = [seat for hold in holds for seat in hold.seats]
        seconds = holds[0].seconds if gang is None else int(gang.terms.hold)
        became, new = renewed(recorded, had, self._now(key, gang, seconds, recorded))
        lost = [
            at
            for at, (seat, old) in enumerate(zip(became, recorded, strict=True))
            if seat and seat.until and not old.until
        ]
        if any(seat and seat.until for seat in became):
            if self._owners.make_no_pods(key, holds[0].obj, look=bool(lost)):
                became = [None if seat and seat.until else seat for seat in became]
            self._due.add(self._owners.look_at(key), key)
        if lost:
            self._due.add(self._context.clock(), key)  # the next pass works out when that ends
        if not seconds:
            became = [None] * len(recorded)
        priority = holds[0].priority if gang is None else -gang.urgency[0]
        for hold, kept in zip(holds, in_objects(holds, became), strict=True):
            room = MOST_SEATS - len(kept)
            seats, new = (*kept, *new[:room]), new[room:]
            self._change(replace(hold, seats=seats, seconds=seconds, priority=priority), hold)
        while new and gang is not None:
            self._create(gang, new[:MOST_SEATS], seconds, priority)
            new = new[MOST_SEATS:]

    def _now(self, key: str, gang: Gang | None, seconds: int, recorded: Sequence[Seat]) -> Now:
        context, deadlines = self._context, dict[tuple[str, str], float]()
        clock, wall = context.clock(), context.writer.now()
        known = self._deadlines.pop(key, {})
        for seat in recorded:
            if seat.until:
                end = known.get((seat.pod, seat.until))
                if end is None:
                    end = clock + min(seconds_until(seat.until, now=wall), seconds)
                    self._due.add(end, key)
                deadlines[seat.pod, seat.until] = end
        set_or_drop(self._deadlines, key, deadlines)
        marks = self._given_up.pop(key, {})
        marks = {one.pod: marks.get(one.pod, clock + SPARED_AFTER) for one in recorded if one.given_up}
        for end in marks.values():
            if end > clock:
                self._due.add(end, key)
        set_or_drop(self._given_up, key, marks)
        namespace, place = key.partition("/")[0], f"{key.partition('/')[0]}/"
        held = () if gang is None else gang.held
        return Now(
            never_began={member.uid for member in held if not member.in_doubt},
            claim_of=lambda name: context.cache.claims.get(place + name),
            pod_of=self._gangs.pod_of,
            until=after(wall, seconds),
            is_over=lambda seat: deadlines.get((seat.pod, seat.until), clock) <= clock,
            is_spared=lambda seat: marks[seat.pod] <= clock and not self._ends(seat.pod),
            room=MOST_HELD - self._held_in[namespace],
        )

    def _ends(self, pod_uid: str) -> bool:
        pod = self._gangs.pod_of(pod_uid)
        return pod is None or objects.is_deleting(pod)

    def reserve(self, gang: Gang, seats: Sequence[Seat]) -> bool:
        """Hold these for members that do not exist yet, from now on; whether they are held. A seat that was
        lost stays its member's, with its new place: if others cannot be held, it ends when it did. Raises
        ApiUnreachable."""
        seconds = int(gang.terms.hold)
        until = after(self._context.writer.now(), seconds)
        wanted = {seat.name or str(at): seat.held(until) for at, seat in enumerate(seats)}
        priority = -gang.urgency[0]
        if self._held_in[gang.ref.namespace] + len(wanted) > MOST_HELD:
            return False
        holds = [hold for _, hold in sorted(self._of_gang.get(gang.key, {}).items())]
        ends = {seat.pod: seat.until for hold in holds for seat in hold.seats if seat.until and seat.pod}
        for hold in holds:
            kept = tuple(
                replace(wanted.pop(seat.name), pod=seat.pod) if seat.until and seat.name in wanted else seat
                for seat in hold.seats
            )
            self._change(replace(hold, seats=kept, seconds=seconds, priority=priority), hold)
        new = list(wanted.values())
        while new:
            if not self._create(gang, new[:MOST_SEATS], seconds, priority):
                self.release(gang.key, ends)
                return False
            new = new[MOST_SEATS:]
        return True

    def release(self, gang: str, ends: Mapping[str, str] = MappingProxyType({})) -> None:
        """End the holds of places that nobody had yet; `ends`: by pod, when others end. Raises
        ApiUnreachable."""
        for _, hold in sorted(self._of_gang.get(gang, {}).items()):
            kept = [seat for seat in hold.seats if seat.pod or not seat.until]
            seats = tuple(replace(seat, until=ends.get(seat.pod, seat.until)) for seat in kept)
            self._change(replace(hold, seats=seats), hold)

    def kept(self, gang: str) -> Kept:
        """What is held for the gang and nobody has."""
        return kept_of(self._of_gang.get(gang, {}).values())

    def give_up(self, gang: str, pods: Collection[str]) -> None:
        """What these members (by uid) have is not held for the gang when they end, unless they are spared.
        Raises ApiUnreachable."""
        end = self._context.clock() + SPARED_AFTER
        if gang in self._of_gang:
            self._given_up[gang] = self._given_up.get(gang, {}) | dict.fromkeys(pods, end)
        for _, hold in sorted(self._of_gang.get(gang, {}).items()):
            seats = tuple(
                replace(seat, given_up=seat.given_up or seat.pod in pods) if not seat.until else seat
                for seat in hold.seats
            )
            self._change(replace(hold, seats=seats), hold)

    def take(self, found: Iterable[object], *, why: str) -> list[str | None]:
        """End the holds among these for somebody more urgent; the nodes they were on. Raises
        ApiUnreachable."""
        seats = [one for one in found if isinstance(one, HeldSeat)]
        gone = {one.uid for one in seats}
        for _, hold in sorted({one.hold.key: one.hold for one in seats}.items()):
            kept = tuple(seat for seat in hold.seats if held_uid(hold.obj, seat) not in gone)
            log.info("held_seats_taken", hold=hold.key, seats=len(hold.seats) - len(kept), why=why)
            self._change(replace(hold, seats=kept), hold)
        return [one.node for one in seats]

    # writes

    def _change(self, wanted: DeviceHold, hold: DeviceHold) -> None:
        if self._writes.change(wanted, hold):
            self._due.add(self._context.clock() + REFUSED_PAUSE, gang_of_owner(hold.owner))

    def _create(self, gang: Gang, seats: Sequence[Seat], seconds: int, priority: int) -> bool:
        owner = self._owners.job_of(gang)
        if owner is None:
            return False
        metadata = {
            "name": object_name(gang.key, gang.ref.name, seats),
            "namespace": gang.ref.namespace,
            "ownerReferences": [dict(owner)],
        }
        wanted = DeviceHold({"metadata": metadata}, owner_of(gang.key), priority, seconds, tuple(seats))
        if self._writes.create(metadata, wanted):
            return True
        self._due.add(self._writes.refused_until, gang.key)
        return False


def _devices(hold: DeviceHold | None) -> list[tuple[Fields, ...]]:
    return [] if hold is None else [seat.devices for seat in hold.seats]

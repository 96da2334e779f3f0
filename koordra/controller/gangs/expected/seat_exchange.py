"""Held seats that do not do any more are exchanged at once, not only when who they are for comes back.

    its node is gone, cordoned or tainted, one of its devices is     another place is looked for, for a member
    gone, ill or tainted, or it is full by now                       like the one that was lost, beside those
                                                                     that live: in the domains that the gang,
                                                                     its role and its slice require, and close
                                                                     to them as they prefer
    there is one                                                     the hold moves there: one write
    there is none                                                    told, and looked for again when room is
                                                                     made; it is kept until its time is over,
                                                                     and serves again if its node recovers

A member that has its devices and was not let go yet, because the pass that placed the gang was cut off, makes
its seat full itself: nothing is wrong with that.

What a lost member asked went with it. So it is read from a living one of its role that stands in the same row
of the job (`MemberIndex.row`), or of a gang that was lost as a whole from who was there last; else of the
job's own object (`job_pods`). Where nobody says it, the seat is exchanged when the next one comes
(placement/gang). The seats that are held for others of the gang stand for those in them: a place is looked
for beside these, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.devices.pools import PublishedDevice
from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import ClaimRefused
from koordra.api.devices import DeviceID
from koordra.api.objects import Object
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.member_index import MemberIndex, role_of_pod
from koordra.controller.gangs.declared.terms import terms_of
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.expected.job_reader import Answer, JobReader
from koordra.controller.gangs.expected.leader_first import made_claims, of_seats, placed_at, to_come
from koordra.controller.gangs.member_placement import ExcludedFor, PlacementRequest, request_for
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase, GangStatus
from koordra.controller.gangs.seats.device_holds import DeviceHolds, HeldSeat
from koordra.controller.gangs.seats.recorded import gang_of_owner, seat_name, seat_to_come
from koordra.effort import counted, is_spent, spend
from koordra.placement.gang import GangPlaced
from koordra.placement.holders.device_hold import Seat
from koordra.placement.holders.kept_devices import offer_of_devices
from koordra.placement.index import NodeInfo

MOST_STEPS: Final = 20_000
"""Steps that all of it may cost a pass."""
SELECTORS: Final = 500_000
_PASSES: Final = 2
"""Steps that a member costs of those beside a seat that is exchanged: its terms and its place are read."""


@dataclass(frozen=True, slots=True)
class _Beside:
    """A gang with the seats of those who are not there, and who is to come in them, by their uids, as far
    as it is known what they ask. `members`: those that have a place."""

    gang: Gang
    members: tuple[Member, ...]
    held: Sequence[HeldSeat]
    by_seat: Mapping[str, Member]

    def seen_from(self, uid: str, pod_groups: Mapping[str, Object]) -> Gang:
        """The others of this seat as if they were where they are held; the terms know all who are to come."""
        others = [one for one in self.held if one.uid != uid and one.uid in self.by_seat]
        there = (*self.members, *(placed_at(self.by_seat[one.uid], one.node) for one in others))
        pods = [member.pod for member in (*self.members, *self.by_seat.values())]
        terms = terms_of(self.gang.ref, pods, pod_groups, ended=self.gang.ended) or self.gang.terms
        return replace(self.gang, members=there, terms=terms)


@dataclass(slots=True)
class SeatExchange:
    """Not thread-safe. `unfit`: where a group cannot run, `excluded`: and where it may not for now."""

    context: PassContext
    placer: Placer
    excluded: ExcludedFor
    unfit: ExcludedFor
    holds: DeviceHolds
    reporter: GangEvents
    jobs: JobReader
    _sound: dict[str, int] = field(default_factory=dict)
    """By uid of a held seat that does: what its node was like then."""
    _tried: dict[str, object] = field(default_factory=dict)
    """By uid of one that does not, and found no place: on which basis."""
    _told: dict[str, str] = field(default_factory=dict)
    """By uid of such a one: what was told of it."""
    _last: str = ""
    _lost: dict[str, Gang] = field(default_factory=dict)
    """Gangs of which nobody is there any more, as they were last, while they have seats."""

    def lost(self, gang: Gang) -> None:
        """Its last member is gone."""
        self._lost[gang.key] = gang

    def step(self, gangs: Mapping[str, Gang], epoch: int) -> None:
        """`epoch` goes up when room was made. Where a pass ends in the middle, the next one goes on there.
        Raises ApiUnreachable."""
        self._lost = {
            key: gang for key, gang in self._lost.items() if key not in gangs and self.holds.recorded(key)
        }
        held = {one.uid: one for one in self.holds.held()}
        for table in (self._sound, self._tried, self._told):
            for uid in table.keys() - held.keys():
                del table[uid]
        doubtful = sorted(uid for uid, one in held.items() if self._is_doubtful(one, epoch))
        beside = dict[str, _Beside]()
        with counted(selectors=SELECTORS, steps=MOST_STEPS):
            for uid in sorted(doubtful, key=lambda uid: (uid <= self._last, uid)):
                if is_spent():
                    self.context.wake(self.context.clock() + 1.0)
                    return
                self._last, one = uid, held[uid]
                key = gang_of_owner(one.hold.owner)
                gang = gangs.get(key) or self._lost.get(key)
                if gang is None or (key in gangs and _is_taken(gang, one.seat)):
                    continue
                if key not in beside:
                    beside[key] = self._beside(gang, is_lost=key not in gangs)
                if (asked := beside[key].by_seat.get(uid)) is not None:
                    self._look_at(beside[key], one, asked, epoch)

    def _beside(self, gang: Gang, *, is_lost: bool) -> _Beside:
        """What a member leaves who is gone is not held before its claim is free, and is its seat already.
        Raises ApiUnreachable."""
        living = frozenset[str]() if is_lost else {member.uid for member in gang.members}
        seats = self.holds.recorded(gang.key)
        held = [one for one in seats if one.seat.until or one.seat.pod not in living]
        numbers = {one.uid: number for number, one in enumerate(held, 1)}
        by_seat = {
            one.uid: to_come(*like, numbers[one.uid])
            for one in held
            if (like := _like(gang, one.seat)) is not None
        }
        unknown = {numbers[one.uid]: one for one in held if one.seat.name and one.uid not in by_seat}
        answer = self.jobs.job_of(gang) if unknown else Answer()
        if answer.later:
            self.context.wake(self.context.clock() + 1.0)
        if answer.job is not None:
            asked = {number: one.seat for number, one in unknown.items()}
            told = of_seats(gang, asked, answer.job, self.context.cache.classes)
            by_seat |= {unknown[number].uid: member for number, member in told.items()}
        there = [one for one in gang.members if one.uid in living and (one.is_committed or one.is_placed)]
        return _Beside(gang, tuple(there), held, by_seat)

    def _is_doubtful(self, one: HeldSeat, epoch: int) -> bool:
        state = self._state_of(one)
        return self._sound.get(one.uid) != state and self._tried.get(one.uid) != (state, epoch)

    def _state_of(self, one: HeldSeat) -> int:
        info = self.placer.nodes.get(one.node)
        return -1 if info is None else info.generation

    def _look_at(self, beside: _Beside, one: HeldSeat, asked: Member, epoch: int) -> None:
        gang = beside.gang
        why = self._why_not(one, asked, self._request(replace(gang, members=()), asked))
        if not why:
            self._sound[one.uid] = self._state_of(one)
            return
        spend(_PASSES * (len(beside.members) + len(beside.held)))
        seen = beside.seen_from(one.uid, self.context.cache.pod_groups)
        answer = self._request(seen, asked).place(without=frozenset({one.uid}))
        who = f"the place of {one.seat.name or 'a lost member'}"
        if isinstance(answer, GangPlaced):
            found = seat_to_come(asked, answer.members[0])
            self.holds.exchange(one, replace(one.seat, node=found.node, devices=found.devices, claims=()))
            text = f"{who} is held on node {found.node} now, not on {one.node}: {why}"
            self.reporter.report(gang, events.SEAT_EXCHANGED, text)
            return
        self._tried[one.uid] = self._state_of(one), epoch
        stays = f"it is held until {one.seat.until}, and exchanged as soon as there is one"
        text = f"{who} on node {one.node} does not do: {why}; there is no other ({answer.text}): {stays}"
        if self._told.get(one.uid) != text:
            self._told[one.uid] = text
            self.reporter.report(gang, events.SEAT_UNFIT, text)

    def _request(self, gang: Gang, asked: Member) -> PlacementRequest:
        return request_for(
            gang,
            GangStatus(GangPhase.GROWING, coming=(asked,)),
            self.placer,
            excluded=self.excluded,
            seats={},
            unfit=self.unfit,
            fabrics=self.context.cache.fabrics,
        )

    def _why_not(self, one: HeldSeat, asked: Member, request: PlacementRequest) -> str:
        """Why the seat does not do for the member; empty where it does, or nobody can tell."""
        info = self.placer.nodes.get(one.node)
        if info is None:
            return f"node {one.node} is gone"
        kept_off = self.unfit(request.groups[asked.key]).get(one.node)
        if kept_off is not None:
            return kept_off.detail
        (member,) = request.asked.members
        if member.group.missing:
            return ""
        try:
            offer = offer_of_devices(
                self.placer.engine, member.group, one.node, one.seat.device_ids, without=frozenset({one.uid})
            )
        except ClaimRefused:
            return ""
        return "" if offer is not None else _trouble(info, one.seat, asked)


def _like(gang: Gang, seat: Seat) -> tuple[Member, MemberIndex | None] | None:
    """A member that asks what the seat's did, and the position of the seat; None where none lives."""
    number = seat.name.rpartition("/")[2]
    for member in gang.members:
        if not made_claims(member) or role_of_pod(member.pod) != seat.role:
            continue
        index = member.index
        if index is None and (not seat.name or not seat.pod):
            return member, None
        if index is not None and number.isdecimal() and str(at := index.at(int(number))) == seat.name:
            return member, at
    return None


def _is_taken(gang: Gang, seat: Seat) -> bool:
    """Whether who came in the lost member's place has devices, and is about to be let go."""
    return any(
        seat_name(member) == seat.name and made_claims(member) and member.is_placed
        for member in gang.members
        if not member.is_committed
    )


def _trouble(info: NodeInfo, seat: Seat, asked: Member) -> str:
    """What is the matter with it, in words."""
    if found := "; ".join(map(str, unsuitable(info.node, asked.pod, taken=info.load))):
        return found
    there = {one.id: one for pool in info.pools for one in pool.devices}
    return "; ".join(_of_devices(seat, there)) or "its devices do not do any more"


def _of_devices(seat: Seat, there: Mapping[DeviceID, PublishedDevice]) -> Iterator[str]:
    for device in sorted(seat.device_ids):
        published = there.get(device)
        if published is None:
            yield f"{device.pool}/{device.device} is not published any more"
        elif published.taints:
            yield f"{device.pool}/{device.device} is tainted ({', '.join(map(str, published.taints))})"

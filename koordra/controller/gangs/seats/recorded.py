"""The seats of a gang, and what becomes of them. Pure.

    a member has it       the seat is as the member's claims say; whoever made it anew stands at its position
    the member is gone    its claims have their devices still (it ends): nothing changes
                          else it is lost: held until `until`, and then forgotten
    it ended well         forgotten: nobody will need it
    it never began        as it was before: held for longer, or nothing
    it was given up       forgotten as soon as the member is gone (evicted for others, or to start anew); its
                          again where the member was spared

A pod is found again by its position in its job (`MemberIndex`), never by name or uid. A seat without a
position is anybody's of the gang who has none either, and one that nobody ever had, of members that were
expected (`leader_first`), is anybody's who has none of its own.

Only devices of claims that were made for their pod have a seat: other claims outlive the pod. And only what
somebody makes again: a bare pod is not remade.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.compat.quota_charges import charged_as
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.annotations import LEAVES
from koordra.controller.gangs.declared.member_index import role_of_pod
from koordra.controller.gangs.membership import Gang, Member
from koordra.placement.gang import KeptSeat, PlacedMember
from koordra.placement.holders.device_hold import DeviceHold, Seat, held_key, held_uid

_KEPT: Final = ("driver", "pool", "device", "shareID", "consumedCapacity", "adminAccess")


_OWNER: Final = "gang "


def owner_of(gang: str) -> str:
    """A gang, as DeviceHolds name whom they are for."""
    return f"{_OWNER}{gang}"


def is_of_gang(owner: str) -> bool:
    return owner.startswith(_OWNER)


def gang_of_owner(owner: str) -> str:
    return owner.removeprefix(_OWNER)


@dataclass(frozen=True, slots=True)
class Now:
    """What seats are judged by. `never_began`: pods (by uid) that their gate holds for sure; `claim_of` by
    name, `pod_of` by uid, those that have finished included. `until`: the end of a hold that begins now;
    `is_over`: whether that of a seat has come; `is_spared`: whether who was to be evicted stays after all;
    `room`: how many more seats may be held."""

    never_began: Collection[str]
    claim_of: Callable[[str], Object | None]
    pod_of: Callable[[str], Object | None]
    until: str
    is_over: Callable[[Seat], bool]
    is_spared: Callable[[Seat], bool]
    room: int


def seats_of(gang: Gang, *, starting: bool = False) -> list[Seat]:
    """Of the members that have what they need, of a gang that has started, or is about to: also of those
    whose turn comes (koordra.io/gang-start-after)."""
    if not (starting or gang.has_started):
        return []
    return [seat for member in gang.members if (seat := _seat(member)) is not None]


def controller_of(pod: Fields) -> Fields | None:
    """Who makes the pod again."""
    owners = objects.metadata(pod).get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), None)


def _seat(member: Member) -> Seat | None:
    made = [claim for claim in member.ours if claims_of.is_made_for(claim, member.uid)]
    places = {claims_of.node_of(claim) for claim in made}
    node = places.pop() if len(places) == 1 else None
    if node is None or not member.is_placed or controller_of(member.pod) is None:
        return None
    return Seat(
        seat_name(member),
        node,
        member.uid,
        tuple((objects.name(claim), objects.uid(claim)) for claim in made),
        tuple(
            {name: result[name] for name in _KEPT if name in result}
            for claim in made
            for result in claims_of.results(claim)
        ),
        charged=charged_as(member.pod),
        role=role_of_pod(member.pod),
        given_up=LEAVES in objects.annotations_of(member.pod),
    )


def seat_name(member: Member) -> str:
    return "" if member.index is None else str(member.index)


class Kept(NamedTuple):
    """What is held for a gang and nobody has: the names of the seats, and how many of them nobody had yet:
    of a gang that has not started."""

    names: frozenset[str] = frozenset()
    unused: int = 0


def holds_by_gang(objs: Iterable[Fields]) -> dict[str, list[DeviceHold]]:
    """By gang key."""
    found: dict[str, list[DeviceHold]] = {}
    for hold in map(DeviceHold.of, objs):
        found.setdefault(gang_of_owner(hold.owner), []).append(hold)
    return found


def kept_of(holds: Collection[DeviceHold]) -> Kept:
    seats = [seat for hold in holds for seat in hold.seats if seat.until]
    unused = [seat for seat in seats if not seat.pod]
    started = any(seat.pod for hold in holds for seat in hold.seats)
    return Kept(frozenset(seat.name for seat in seats), 0 if started else len(unused))


def seat_to_come(member: Member, placed: PlacedMember) -> Seat:
    """Of a member that does not exist yet, in the place that was found for it."""
    results = [
        result
        for key in sorted(placed.allocations)
        for result in placed.allocations[key]["devices"]["results"]
    ]
    devices = tuple({name: result[name] for name in _KEPT if name in result} for result in results)
    name = seat_name(member) or objects.name(member.pod)
    charged, role = charged_as(member.pod), role_of_pod(member.pod)
    return Seat(name, placed.node, "", (), devices, charged=charged, role=role)


def renewed(recorded: Sequence[Seat], had: Sequence[Seat], now: Now) -> tuple[list[Seat | None], list[Seat]]:
    """What becomes of each recorded seat (None: it is forgotten), and the seats that are new. `had` by
    members now."""
    left = {seat.pod: seat for seat in had}
    taken = _taken(recorded, left)
    found, room = list[Seat | None](), now.room
    for at, before in enumerate(recorded):
        if (seat := taken.get(at)) is not None:
            same = seat.pod == before.pod
            held = before.before if same else before.until or before.before
            given_up = seat.given_up or (same and before.given_up and not now.is_spared(before))
            found.append(replace(seat, given_up=given_up, before=held))
            continue
        after = _without_member(before, now, room)
        room -= after is not None and after.until != before.until
        found.append(after)
    return found, list(left.values())


def _taken(recorded: Sequence[Seat], left: dict[str, Seat]) -> dict[int, Seat]:
    """By position in `recorded`, who has it now; they are taken out of `left` (by pod). First by the same
    pod, then by who came in its place: at the same position; of those without one, where the devices are the
    same, and else any; and what nobody had by who has its devices."""
    found = {at: seat for at, one in enumerate(recorded) if (seat := left.pop(one.pod, None)) is not None}
    for same in (_place, _name):
        free = defaultdict[object, list[int]](list)
        for at in range(len(recorded) - 1, -1, -1):
            if at not in found:
                free[same(recorded[at])].append(at)
        for seat in list(left.values()):
            if ats := free.get(same(seat)):
                found[ats.pop()] = left.pop(seat.pod)
    unused = {_devices(one): at for at, one in enumerate(recorded) if not one.pod and at not in found}
    for seat in list(left.values()) if unused else ():
        if _devices(seat) in unused:
            found[unused.pop(_devices(seat))] = left.pop(seat.pod)
    return found


def _place(seat: Seat) -> object:
    return seat.name, _devices(seat)


def _devices(seat: Seat) -> object:
    return tuple((one.get("pool"), one.get("device"), one.get("shareID")) for one in seat.devices)


def _name(seat: Seat) -> object:
    return seat.name


def _without_member(seat: Seat, now: Now, room: int) -> Seat | None:
    pod = now.pod_of(seat.pod)
    if pod is not None and objects.status_of(pod).get("phase") == "Succeeded":
        return None
    if any(map(claims_of.is_allocated, seat_claims(seat, now.claim_of))):
        return seat
    if seat.until:  # who was lost had begun, whatever a copy of its pod that is older says
        return None if seat.given_up or now.is_over(seat) else seat
    if seat.pod in now.never_began:
        return seat.held(seat.before) if seat.before else None
    return None if seat.given_up or room <= 0 else seat.held(now.until)


def held_for(members: Iterable[Member], holds: Iterable[DeviceHold]) -> dict[str, KeptSeat]:
    """By member key: of each that has a seat held for it, which is that of its position; of those without
    one, the first that are left."""
    free, unused = dict[str, list[KeptSeat]](), list[KeptSeat]()
    for hold in holds:
        for seat in hold.seats:
            if seat.until:
                key, uid = held_key(hold.owner, seat), held_uid(hold.obj, seat)
                kept = KeptSeat(seat.node, seat.device_ids, key, uid)
                free.setdefault(seat.name, []).insert(0, kept)
                if not seat.pod:
                    unused.insert(0, kept)
    found, without = dict[str, KeptSeat](), list[Member]()
    for member in members:
        if fitting := free.get(seat_name(member)):
            found[member.key] = fitting.pop()
        else:
            without.append(member)
    left = [kept for kept in unused if kept not in found.values()]
    return found | {member.key: left.pop() for member in without[: len(left)]}


def seat_claims(seat: Seat, claim_of: Callable[[str], Object | None]) -> list[Object]:
    """The claims that the seat's devices belong to, as far as they are there."""
    return [
        claim
        for name, uid in seat.claims
        if (claim := claim_of(name)) is not None and objects.uid(claim) == uid
    ]

"""Members that come back to the devices that were held for them, or for whom some are reserved.

    member with a seat ─▶ the very devices, if they do for it still; of what is reserved for it, some
    all others ─────────▶ `place_gang`, beside those who have their seats again

What is held for sisters that are not back yet stays theirs. Where a seat does not do any more (its node is
gone, tainted or full, a device is ill), it is exchanged at once: the member gets a place like everybody
without a seat, in the gang's domain where it requires one, beside the others where it does not. Where so too
few have a place, the whole gang is placed as if none of the holds were there. Nodes that are kept free for
others count for nothing here: what is held was given out before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import ClaimRefused
from koordra.api.devices import DeviceID
from koordra.api.objects import Object
from koordra.placement.decide import Engine
from koordra.placement.gang.member_assignment import nics_of, rail_of
from koordra.placement.gang.place import place_gang
from koordra.placement.gang.rank_assignment import ranks
from koordra.placement.gang.topology.domains import GangTopology, TopologyUnmet
from koordra.placement.gang.types import (
    Fixed,
    GangAnswer,
    GangPlaced,
    GangRequest,
    NewMember,
    PlacedMember,
)
from koordra.placement.holders.kept_devices import offer_of_devices
from koordra.placement.holders.reserved_seats import ReservedSeat


class KeptSeat(NamedTuple):
    """`held`: the key under which the index has what is held, `uid`: by which it is left out."""

    node: str
    devices: frozenset[DeviceID]
    held: str
    uid: str


def place_in_seats(
    gang: GangRequest, seats: Mapping[str, KeptSeat], engine: Engine, *, budget: int = 1
) -> GangAnswer:
    """`seats` by member key: those on nodes where the member may run."""
    reserved = {one.key: engine.index.reserved.for_pods(one.group.pods) for one in gang.members}
    released = [seat.held for seat in seats.values()]
    if all(reserved.values()):  # else others of the gang would have what is kept for some
        released += dict.fromkeys(seat.held for those in reserved.values() for seat in those)
    if not seats and not any(reserved.values()):
        return place_gang(gang, engine, budget=budget)
    with engine.index.overlay():
        domains = _domains(gang, engine)
        again = _again(gang, seats, reserved, domains, engine)
        for held in released:
            engine.index.release(held)
        rest = replace(
            gang,
            members=[member for member in gang.members if member.key not in again],
            fixed=[*gang.fixed, *(_fixed(member, one) for member, one in again.values())],
        )
        answer = place_gang(rest, engine, budget=budget) if again else None
        if isinstance(answer, GangPlaced):
            return _together(gang, list(again.values()), answer, list(domains))
    with engine.index.overlay():
        for held in released:
            engine.index.release(held)
        return place_gang(gang, engine, budget=budget)


def _again(
    gang: GangRequest,
    seats: Mapping[str, KeptSeat],
    reserved: Mapping[str, Sequence[ReservedSeat]],
    domains: Mapping[str, Mapping[str, str]],
    engine: Engine,
) -> dict[str, tuple[NewMember, PlacedMember]]:
    """Who has its seat again, or one that is reserved, by key; each counts for those after it."""
    engine.settle()
    found: dict[str, tuple[NewMember, PlacedMember]] = {}
    for member in gang.members:
        if member.group.missing:
            continue
        own = seats.get(member.key)
        free = [seat for seat in reserved.get(member.key, ()) if seat.node not in member.excluded]
        asked: list[KeptSeat | ReservedSeat] = [*([own] if own is not None else ()), *free]
        for seat in asked:
            try:
                offer = offer_of_devices(
                    engine, member.group, seat.node, seat.devices, without=frozenset({seat.uid})
                )
            except ClaimRefused:
                break
            if offer is not None:
                placed = _placed(member, offer, domains.get(seat.node, {}))
                if seat is own:
                    engine.index.release(seat.held)
                _assume(member, offer, engine)
                found[member.key] = member, placed
                break
    return found


def _assume(member: NewMember, offer: Offer, engine: Engine) -> None:
    given = offer.allocations(pin_to_node=True)
    for claim, allocation in zip(member.group.claims, given, strict=True):
        metadata = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
        engine.index.assume(
            {"metadata": metadata}, allocation, key=claim.key, node=offer.node, pods=member.group.pods
        )


def _placed(member: NewMember, offer: Offer, domains: Mapping[str, str]) -> PlacedMember:
    keys = [claim.key for claim in member.group.claims]
    given = zip(keys, offer.allocations(pin_to_node=True), strict=True)
    devices = [offer.devices_of(at) for at in range(len(keys))]
    rails = tuple(rail_of(plain) for own in devices for plain in nics_of(own))
    levels = {key: level_of(own) for key, own in zip(keys, devices, strict=True)}
    return PlacedMember(
        member.key, offer.node, 0, {key: one.to_dict() for key, one in given}, levels, domains, rails
    )


def _domains(gang: GangRequest, engine: Engine) -> dict[str, dict[str, str]]:
    """By node, in order of the fabric; also of a gang whose members are no longer in one domain of the level
    that it requires."""
    try:
        topology = GangTopology.of(gang, engine.index)
    except TopologyUnmet:
        topology = GangTopology.of(replace(gang, required=None), engine.index)
    return {node: dict(zip(topology.levels, path, strict=False)) for node, path in topology.paths.items()}


def _fixed(member: NewMember, one: PlacedMember) -> Fixed:
    claims: list[Object] = [
        {"metadata": {"name": key}, "status": {"allocation": allocation}}
        for key, allocation in one.allocations.items()
    ]
    return Fixed(member.key, one.node, claims, index=member.index)


def _together(
    gang: GangRequest, again: list[tuple[NewMember, PlacedMember]], answer: GangPlaced, nodes: list[str]
) -> GangPlaced:
    """One answer, with the ranks anew: those of the others were given beside members without one. `nodes` in
    order of the fabric."""
    order = {node: at for at, node in enumerate(nodes)}
    of_key = {member.key: member for member in gang.members}
    placed = again + [(of_key[one.key], one) for one in answer.members]
    placed.sort(key=lambda each: order.get(each[1].node, -1))
    return replace(answer, members=tuple(ranks(placed, gang.fixed)))

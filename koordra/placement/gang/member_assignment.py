"""The form of a node's answer: a seat for every member, which says what it is given and how well that lies together.

    offers of the search ─▶ seats by what members ask ─▶ seats by class ─▶ allocations of one member on one node

A seat is of no member and of no node in particular: members that ask the same may swap seats, and a seat on one node is as good on
each node of the kind. Only when a member is `seated` are names written into its allocations.

A seat's steps above PXB say how far its worst GPU is from its NIC. What the search itself was charged (steps down in lists, rungs
climbed) is added to the whole answer, so that answers are compared by one number: `apart`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.allocator.devices.gpu_nic_distance import level_of, worst_pair
from koordra.allocator.offer import Offer, share_id
from koordra.allocator.score import ALTERNATIVE, RUNG
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.node_devices import Rails, rail_of
from koordra.placement.gang.score import Count
from koordra.placement.gang.types import Member
from koordra.topology.levels import Level

RUNG_APART: Final = 1024
ALTERNATIVE_APART: Final = 64
"""What a rung climbed and a step down in a list count in steps apart."""

_ALIGNED: Final = int(Level.PXB)
_STEP: Final = 10
_WHOLE: Final = 100

Alike = Sequence[tuple[str, Sequence[Member]]]
"""By what members ask of devices: those members."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's part of an answer: per claim its allocation and level; rails and types of its NICs, and whether it has them
    whole; its steps above PXB."""

    allocations: tuple[Mapping[str, Any], ...]
    levels: tuple[str | None, ...]
    rails: tuple[str, ...]
    apart: int
    first: int
    types: frozenset[str] = frozenset()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """A count that fits: its seats by class, each class's in order of devices. `node` is whose answer it is.

    As it is remembered, seats are by what members ask for (`keys`).
    """

    node: str
    seats: tuple[tuple[Seat, ...], ...]
    apart: int
    spare: int
    rails: Rails
    keys: tuple[str, ...] = ()


BARE: Final = Seat((), (), (), 0, -1)
"""Of a member that asks for no devices."""


def fit_of(name: str, alike: Alike, offers: Sequence[Offer], *, climbed: int = 0) -> Fit:
    """The offers (of all members together, or one after the other) as seats."""
    flat = [
        (offer, position, allocation)
        for offer in offers
        for position, allocation in enumerate(offer.allocations(pin_to_node=True))
    ]
    seats: list[tuple[Seat, ...]] = []
    at = 0
    for _, members in alike:
        own = []
        for member in members:
            own.append(_seat(flat[at : at + len(member.claims)]))
            at += len(member.claims)
        seats.append(tuple(sorted(own, key=lambda seat: seat.first)))
    every = [seat for own in seats for seat in own]
    used = {placed.device for offer in offers for placed in offer.placed}
    state = offers[-1].state
    return Fit(
        name,
        tuple(seats),
        sum(seat.apart for seat in every) + sum(map(_stepped, offers)) + RUNG_APART * climbed,
        sum(
            offered.plain.get(names.ATTR_TYPE) == names.TYPE_GPU
            and device not in used
            and not state.busy[device]
            and not state.holders[device]
            for device, offered in enumerate(state.devices)
        ),
        frozenset(rail for seat in every for rail in seat.rails),
        tuple(key for key, _ in alike),
    )


def _seat(claims: Sequence[tuple[Offer, int, Allocation]]) -> Seat:
    devices = [plain for offer, position, _ in claims for plain in offer.devices_of(position)]
    nics = _nics(devices)
    placed = [
        entry.device
        for offer, position, _ in claims
        for entry in offer.placed
        if entry.wanted.claim == position
    ]
    return Seat(
        tuple(allocation.to_dict() for _, _, allocation in claims),
        tuple(level_of(offer.devices_of(position)) for offer, position, _ in claims),
        tuple(map(rail_of, nics)),
        steps_apart(devices),
        min(placed, default=-1),
        frozenset(str(plain.get(names.ATTR_TYPE)) for plain in nics),
        all(
            int(amount) >= _WHOLE
            for _, _, allocation in claims
            for result in allocation.results
            for name, amount in result.consumed.items()
            if name.rpartition("/")[2] == names.CAPACITY_SHARE
        ),
    )


def steps_apart(devices: Sequence[Mapping[str, Any]]) -> int:
    """Steps above PXB of the worst pair of GPU and NIC among a member's devices."""
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_GPU, names.TYPE_MIG)]
    worst = worst_pair(gpus, _nics(devices))
    return 0 if worst is None else max(0, (int(worst) - _ALIGNED) // _STEP)


def _nics(devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_NIC, names.TYPE_VF)]


def _stepped(offer: Offer) -> int:
    """What the node's own score charges for steps down in firstAvailable lists and for rungs of Preferred scopes."""
    rungs, rest = divmod(offer.cost, RUNG)
    return RUNG_APART * rungs + ALTERNATIVE_APART * (rest // ALTERNATIVE)


def by_class(fit: Fit, classes: Sequence[MemberClass], count: Count) -> Fit:
    """The answer for members that ask alike, given to their classes in turn."""
    seats = {key: iter(own) for key, own in zip(fit.keys, fit.seats, strict=True)}
    shared = tuple(
        tuple(itertools.islice(seats[one.key], number)) if one.claims and number else (BARE,) * number
        for one, number in zip(classes, count, strict=True)
    )
    return replace(fit, seats=shared)


def seated(seat: Seat, member: Member, *, example: str, node: str) -> dict[str, Mapping[str, Any]]:
    """The seat's allocations for this member on a node like the one that was asked: pools, node selectors and share ids are the
    only places where names go into an allocation."""
    found: dict[str, Mapping[str, Any]] = {}
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    for claim, written in zip(member.claims, seat.allocations, strict=True):
        results = []
        numbers: dict[str, int] = {}
        uid = objects.uid(claim) or objects.key(claim)
        for like in written["devices"].get("results") or ():
            result = dict(like)
            label = result["request"]
            index = numbers[label] = numbers.get(label, -1) + 1
            if result["pool"] == example:
                result["pool"] = node
            if "shareID" in result:
                result["shareID"] = share_id(uid, label, index)
            results.append(result)
        devices = {**written["devices"], "results": results}
        found[objects.key(claim)] = {**written, "devices": devices, "nodeSelector": selector}
    return found

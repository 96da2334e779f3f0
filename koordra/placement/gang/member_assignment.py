"""The form of a node's answer: an assignment for every member, which says what it is given and how well that
lies together.

    offers of the search ─▶ assignments by what members ask ─▶ assignments by class
                         ─▶ allocations of one member on one node

An assignment is of no member and of no node in particular: members that ask the same may swap theirs, and an
assignment on one node is as good on each node of the kind, so devices are identified by position. Names are
written into a member's allocations only by `offer_for`.

An assignment's steps above PXB say how far its worst GPU is from its NIC. What the search itself was charged
(steps down in lists, scopes widened) is added to the whole answer, so that answers are compared by one
number: `apart`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.allocator.devices.gpu_nic_distance import worst_pair
from koordra.allocator.devices.inventory import Usage
from koordra.allocator.offer import Offer
from koordra.allocator.score import ALTERNATIVE, RELAXATION
from koordra.allocator.search.solution import Placed
from koordra.api import names
from koordra.placement.candidates.candidate_list import offer_of
from koordra.placement.decide import Engine
from koordra.placement.gang.equivalence import MemberClass
from koordra.placement.gang.topology.cost_tables import Count
from koordra.placement.request.request_class import RequestClass, ResolvedGroup
from koordra.topology.levels import Level

WIDENED_APART: Final = 1024
ALTERNATIVE_APART: Final = 64
"""What a level by which a scope is widened and a step down in a list count in steps apart."""

_ALIGNED: Final = int(Level.PXB)
_STEP: Final = 10
_WHOLE: Final = 100

Rails = frozenset[str]

Alike = Sequence[tuple[RequestClass, Sequence[ResolvedGroup]]]
"""By what members ask of devices: those members."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """One member's part of an answer: its devices, with the position of the claim that gets them; rails and
    types of its NICs, and whether it has them whole; its steps above PXB."""

    given: tuple[tuple[int, Placed], ...]
    rails: tuple[str, ...] = ()
    apart: int = 0
    types: frozenset[str] = frozenset()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """A count that fits: its assignments by class, each class's in order of devices. As it is kept, they are
    by what members ask for (`asks`)."""

    assignments: tuple[tuple[MemberAssignment, ...], ...]
    apart: int
    spare: int
    rails: Rails
    asks: tuple[RequestClass, ...] = ()


BARE: Final = MemberAssignment(())
"""Of a member that asks for no devices."""


def fit_of(
    alike: Alike,
    offers: Sequence[Offer],
    positions: Sequence[int] | None = None,
    *,
    taken: Usage,
    widened: int = 0,
) -> Fit:
    """The offers (of all members together, or one after the other) as assignments. `positions`: where on the
    node the offers' devices are."""
    claims = iter([(offer, position) for offer in offers for position in range(len(offer.claims))])
    assignments: list[tuple[MemberAssignment, ...]] = []
    for _, members in alike:
        own = [
            _assignment_of(list(itertools.islice(claims, len(member.asked))), positions) for member in members
        ]
        own.sort(key=lambda one: min((placed.device for _, placed in one.given), default=-1))
        assignments.append(tuple(own))
    every = [assignment for own in assignments for assignment in own]
    used = {placed.device for offer in offers for placed in offer.placed}
    apart = WIDENED_APART * widened + sum(assignment.apart for assignment in every)
    for offer in offers:
        # What the node's own score charges for wider scopes and for steps down in firstAvailable lists.
        levels, rest = divmod(offer.cost.written, RELAXATION)
        apart += WIDENED_APART * levels + ALTERNATIVE_APART * (rest // ALTERNATIVE)
    return Fit(
        tuple(assignments),
        apart,
        sum(
            offered.type == names.TYPE_GPU and device not in used and not taken.in_use(offered.id)
            for device, offered in enumerate(offers[-1].devices)
        ),
        frozenset(rail for assignment in every for rail in assignment.rails),
        tuple(asks for asks, _ in alike),
    )


def _assignment_of(claims: Sequence[tuple[Offer, int]], positions: Sequence[int] | None) -> MemberAssignment:
    devices = [plain for offer, position in claims for plain in offer.devices_of(position)]
    nics = nics_of(devices)
    given = [
        (claim, one if positions is None else replace(one, device=positions[one.device]))
        for claim, (offer, position) in enumerate(claims)
        for one in offer.placed
        if one.wanted.claim == position
    ]
    return MemberAssignment(
        tuple(given),
        tuple(map(rail_of, nics)),
        steps_apart(devices),
        frozenset(str(plain.get(names.ATTR_TYPE)) for plain in nics),
        # Whether devices that are shared by percent are taken as a whole.
        all(
            int(amount) >= _WHOLE
            for _, one in given
            for name, amount in one.demand.amounts.items()
            if name.rpartition("/")[2] == names.CAPACITY_SHARE
        ),
    )


def rail_of(plain: Mapping[str, Any]) -> str:
    """NICs whose rail is not known are together on one without a name."""
    return str(plain.get(names.ATTR_RAIL, ""))


def steps_apart(devices: Sequence[Mapping[str, Any]]) -> int:
    """Steps above PXB of the worst pair of GPU and NIC among a member's devices."""
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_GPU, names.TYPE_MIG)]
    worst = worst_pair(gpus, nics_of(devices))
    return 0 if worst is None else max(0, (int(worst) - _ALIGNED) // _STEP)


def nics_of(devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_NIC, names.TYPE_VF)]


def by_class(fit: Fit, classes: Sequence[MemberClass], count: Count) -> Fit:
    """The answer for members that ask alike, given to their classes in turn."""
    assignments = {asks: iter(own) for asks, own in zip(fit.asks, fit.assignments, strict=True)}
    return replace(
        fit,
        assignments=tuple(
            tuple(itertools.islice(assignments[one.devices], number))
            if one.claims and number
            else (BARE,) * number
            for one, number in zip(classes, count, strict=True)
        ),
    )


def offer_for(assignment: MemberAssignment, resolved: ResolvedGroup, node: str, engine: Engine) -> Offer:
    """What the member is given by this assignment on the node."""
    return offer_of(assignment.given, engine.index.nodes[node], resolved.asked)

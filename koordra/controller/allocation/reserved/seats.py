"""What becomes of a reservation's seats. Pure.

nobody takes from it     it is kept whole
claims take from it      it keeps the rest; of one that is for one pod alone (allocateOnce) nothing
they have nothing more   it is kept whole again; one for one pod alone is over
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.placement.holders.device_hold import Seat
from koordra.placement.holders.reserved_seats import device_of, left_of, taken_by

_KEPT = ("driver", "pool", "device", "shareID", "consumedCapacity")


def new_seat(name: str, node: str, allocations: Mapping[str, Fields], *, until: str, charged: Fields) -> Seat:
    results = [one for key in sorted(allocations) for one in allocations[key]["devices"]["results"]]
    devices = tuple({part: one[part] for part in _KEPT if part in one} for one in results)
    return Seat(name, node, "", (), devices, until, charged=charged, whole=devices)


def renewed(
    seats: Sequence[Seat], claim_of: Callable[[str], Object | None], *, once: bool, until: str
) -> list[Seat | None]:
    """Each as the claims of its namespace, by name, make it; None: it is over."""
    found = list[Seat | None]()
    taken = {uid: taken_by(claims_of.results(claim)) for uid, claim in _taking(seats, claim_of).items()}
    for seat in seats:
        claims = tuple((name, uid) for name, uid in seat.claims if uid in taken)
        if once and seat.given_up:
            found.append(replace(seat, claims=claims, until=until) if claims else None)
            continue
        left = seat.whole
        for _, uid in claims:
            left = left_of(left, taken[uid])
        found.append(replace(seat, claims=claims, devices=left, until=until))
    return found


def _taking(seats: Sequence[Seat], claim_of: Callable[[str], Object | None]) -> dict[str, Object]:
    """The claims that have devices of them, by uid."""
    return {
        uid: claim
        for seat in seats
        for name, uid in seat.claims
        if (claim := claim_of(name)) is not None
        and objects.uid(claim) == uid
        and claims_of.is_allocated(claim)
    }


def drawn(seat: Seat, claim: Fields, results: Sequence[Fields], *, once: bool) -> Seat | None:
    """The seat without what the claim is about to get of it; None where that is nothing."""
    if not {device_of(one) for one in results} & seat.device_ids:
        return None
    claims = (*seat.claims, (objects.name(claim), objects.uid(claim)))
    if once:
        return replace(seat, claims=claims, devices=(), given_up=True)
    return replace(seat, claims=claims, devices=left_of(seat.devices, taken_by(results)))

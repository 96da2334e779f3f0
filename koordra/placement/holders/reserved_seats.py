"""What is kept by reservations, for whom, and what is left of it. Pure.

ReservedSeats    the seats of DeviceHolds, followed through their changes, and whose pods may take from them
left_of          what of a seat's devices nobody has taken: amounts of those that are shared, whole others
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from koordra.api import objects
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields, Object
from koordra.api.tables import set_or_drop
from koordra.placement.holders.allocations import AllocatedClaim
from koordra.placement.holders.device_hold import DeviceHold, Seat, held_key, held_seats, held_uid
from koordra.placement.holders.reservation import owns
from koordra.quantity import canonical, parse


class ReservedSeat(NamedTuple):
    """`held`: the key under which the index has it, `uid`: by which it is left out."""

    hold: DeviceHold
    seat: Seat
    held: str
    uid: str

    @property
    def node(self) -> str:
        return self.seat.node

    @property
    def devices(self) -> frozenset[DeviceID]:
        return self.seat.device_ids


class ReservedSeats:
    """Of all DeviceHolds. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, ...]] = {}
        self._of_namespace = defaultdict[str, dict[str, DeviceHold]](dict)

    def put(self, key: str, obj: Fields | None) -> tuple[tuple[str, ...], dict[str, AllocatedClaim]]:
        """The keys of what the object held before, and what it holds now, as claims with allocations."""
        found = {} if obj is None else held_seats(obj)
        gone = self._held.pop(key, ())
        set_or_drop(self._held, key, tuple(found))
        namespace = key.partition("/")[0]
        hold = None if obj is None else DeviceHold.of(obj)
        if hold is not None and hold.owners:
            self._of_namespace[namespace][key] = hold
        elif namespace in self._of_namespace:
            set_or_drop(self._of_namespace[namespace], key, None)
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]
        return gone, found

    def for_pods(self, pods: Sequence[Fields]) -> list[ReservedSeat]:
        """What is kept for all of these pods: the seats with the fewest devices first, so that what was begun
        is used up."""
        here = self._of_namespace.get(objects.namespace(pods[0]), {}) if pods and self._of_namespace else {}
        found = [
            ReservedSeat(hold, seat, held_key(hold.owner, seat), held_uid(hold.obj, seat))
            for _, hold in sorted(here.items())
            if all(owns(hold.owners, objects.namespace(hold.obj), pod) for pod in pods)
            for seat in hold.seats
            if seat.until and seat.devices
        ]
        return sorted(found, key=lambda one: len(one.seat.devices))


Taken = dict[DeviceID, list[Fields]]
"""Results of allocations, by device, of which what a seat covers is taken out."""


def taken_by(results: Iterable[Fields]) -> Taken:
    found: Taken = {}
    for one in results:
        if not one.get("adminAccess"):
            found.setdefault(device_of(one), []).append(one)
    return found


def device_of(result: Fields) -> DeviceID:
    return DeviceID(str(result.get("driver")), str(result.get("pool")), str(result.get("device")))


def left_of(devices: Sequence[Fields], taken: Taken) -> tuple[Fields, ...]:
    """What is left of these. What they cover goes out of `taken`: another seat may have the rest of it."""
    found = list[Fields]()
    for one in devices:
        uses, amounts = taken.get(device_of(one), []), _amounts(one)
        if not amounts:
            if not uses:
                found.append(one)
            taken.pop(device_of(one), None)
            continue
        rest = list[Fields]()
        for use in uses:
            beyond = dict[str, Decimal]()
            for name, wanted in _amounts(use).items():
                covered = min(wanted, amounts.get(name, Decimal(0)))
                if name in amounts:
                    amounts[name] -= covered
                if wanted > covered:
                    beyond[name] = wanted - covered
            if beyond:
                rest.append(_with_amounts(use, beyond))
        taken[device_of(one)] = rest
        if not uses:
            found.append(one)
        elif any(amount > 0 for amount in amounts.values()):
            found.append(_with_amounts(one, {name: left for name, left in amounts.items() if left > 0}))
    return tuple(found)


def _amounts(result: Fields) -> dict[str, Decimal]:
    said = objects.fields(result.get("consumedCapacity"))
    return {name: parse(amount) for name, amount in said.items()}


def _with_amounts(result: Fields, amounts: dict[str, Decimal]) -> Object:
    return {**result, "consumedCapacity": {name: canonical(amount) for name, amount in amounts.items()}}

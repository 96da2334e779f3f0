"""Amounts into rooms: what is lost for certain, and an exact search for shares that have to fill their
devices.

Shares take amounts of devices that have rooms. However the rest is arranged, a device can only be filled up
to the largest sum of remaining amounts that is not above its room; what is above that sum is lost. Sums are
kept as the bits of one integer (bit n: the sum of n units can be made), after Martello and Toth, "Knapsack
Problems" (1990), chapter 4:

    usable room of a device    the highest bit at or below its room
    no placement               the usable rooms together are less than the amounts together

The search takes requests and devices in order, which finds what leaves room to spare at once, and what leaves
none hardly ever. `packed` looks at amounts alone. Whatever else holds (constraints, scopes, partitions) is
seen to by a search that may only give each request the devices found here. That there is no packing is a
proof that nothing fits.

`Packing` places the largest amount first and gives a branch up as soon as more is lost than there is to
spare. Rooms that are equal are tried once, and so is every set of rooms at the same item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from operator import lt, sub, truediv
from typing import Any, Final

from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.partial_choice import PartialChoice

_FEWEST: Final = 3
"""Requests of which an order matters; fewer are tried at once."""

_TRIES: Final = 500
_FEW_TRIES: Final = 100
"""Placements that are tried in order before shares that have to fill their devices exactly are packed by
amount."""

_MOST_KNOWN: Final = 1 << 10

_MOST_BITS: Final = 1 << 20
"""Finer sums are kept in coarser units, never so that a sum would look smaller than it can be."""

PACKING_BUDGET: Final = 20_000
"""Items placed by `pack` before it gives up."""


@dataclass(frozen=True, slots=True)
class SubsetSums:
    """The sums that can be made of some items; an item is one of several amounts (0: possibly nothing).

    `least` and `most` are what all items together take with their smallest and largest amounts. Bit n of
    `bits` says that n `unit`s can be made, where amounts are rounded down to units; `slack` is what rounding
    may have lost.
    """

    unit: int
    least: int = 0
    most: int = 0
    bits: int = 1
    slack: int = 0
    known: dict[int, int] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=16)
    def suffixes(cls, items: tuple[tuple[tuple[int, ...], ...], ...]) -> list[SubsetSums]:
        """The sums of each list of items with all that follow it, and of none at last. Nodes of a kind share
        the answer."""
        most = sum(max(options) for found in items for options in found)
        unit = gcd(*[amount for found in items for options in found for amount in options]) or 1
        rounding = 0
        if most // unit > _MOST_BITS:
            unit = rounding = -(-most // _MOST_BITS)
        made = [cls(unit)]
        for found in reversed(items):
            least, most, bits, slack = made[-1].least, made[-1].most, made[-1].bits, made[-1].slack
            for options in found:
                least, most, slack = least + min(options), most + max(options), slack + rounding
                before = bits
                for amount in options:
                    bits |= before << amount // unit
            made.append(cls(unit, least, most, bits, slack) if found else made[-1])
        return made[::-1]

    def usable(self, room: int) -> int:
        """The most of the room that items can fill."""
        if room <= 0:
            return 0
        if room >= self.most:
            return self.most
        found = self.known.get(room)
        if found is None:
            units = (self.bits & (2 << room // self.unit) - 1).bit_length() - 1
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            found = self.known[room] = min(room, units * self.unit + self.slack)
        return found

    def devices_needed(self, held: Iterable[int], free: Iterable[int]) -> int | None:
        """How many of the rooms in `free`, sorted from the largest, are needed beside those `held`; None: all
        are too few."""
        left = self.least - sum(map(self.usable, held))
        if left <= 0:
            return 0
        for number, room in enumerate(free, start=1):
            left -= self.usable(room)
            if left <= 0:
                return number
        return None


@dataclass(frozen=True, slots=True)
class Item:
    """One device's share that a request needs. `takes`: per device that may serve it, the amounts by
    capacity.

    Items of one `request` take different devices.
    """

    request: Any
    takes: Mapping[int, tuple[int, ...]]


class Packing:
    """Items, the largest first, into the rooms of devices; `rooms` are the free amounts of each device by
    capacity."""

    def __init__(self, items: Sequence[Item], rooms: Mapping[int, Sequence[int]], *, budget: int) -> None:
        self.budget = budget
        self._rooms = {device: tuple(room) for device, room in rooms.items()}
        whole = [sum(column) or 1 for column in zip(*self._rooms.values(), strict=True)]
        self._items = sorted(
            items,
            key=lambda item: max(max(map(truediv, amounts, whole)) for amounts in item.takes.values()),
            reverse=True,
        )
        # Devices that serve the same items with the same amounts can be exchanged.
        kinds = {device: tuple(item.takes.get(device) for item in items) for device in rooms}
        self._sums = [
            SubsetSums.suffixes(
                tuple(
                    [
                        (tuple(sorted({amounts[capacity] for amounts in item.takes.values()})),)
                        for item in self._items
                    ]
                )
            )
            for capacity in range(len(whole))
        ]
        numbers: dict[Hashable, int] = {}
        self._number = {device: numbers.setdefault(kind, len(numbers)) for device, kind in kinds.items()}
        self._seen: set[Hashable] = set()
        self._chosen: list[int] = []

    def solve(self) -> list[tuple[Item, int]] | None:
        """The device of each item; None where there is no way, or the budget ended (it is below 0)."""
        return list(zip(self._items, self._chosen, strict=True)) if self._place(0, ()) else None

    def _place(self, at: int, held: tuple[int, ...]) -> bool:
        """All items from this one on; `held` are the devices of the same request."""
        if at == len(self._items):
            return True
        rooms = self._rooms
        for capacity, sums in enumerate(self._sums):
            if sum([sums[at].usable(room[capacity]) for room in rooms.values()]) < sums[at].least:
                return False
        state = (at, tuple(sorted((self._number[device], room) for device, room in rooms.items())))
        if not held:
            if state in self._seen:
                return False
            self._seen.add(state)
        item = self._items[at]
        tried: set[Hashable] = set()
        # The fullest device first: what is large needs the large rooms.
        for device in sorted(item.takes, key=lambda device: (rooms[device], device)):
            room, amounts = rooms[device], item.takes[device]
            alike = (room, self._number[device])
            if device in held or alike in tried or any(map(lt, room, amounts)):
                continue
            tried.add(alike)
            self.budget -= 1
            if self.budget < 0:
                return False
            rooms[device] = tuple(map(sub, room, amounts))
            self._chosen.append(device)
            more = at + 1 < len(self._items) and self._items[at + 1].request == item.request
            if self._place(at + 1, (*held, device) if more else ()):
                return True
            self._chosen.pop()
            rooms[device] = room
        return False


def tries_before_packing(search: PartialChoice) -> int | None:
    """Placements to try before shares are packed; None where no capacity is filled.

    Few where several shares fill every device: then every placement leaves the same behind, and costs the
    same.
    """
    items = _items(search) if len(search.requests) >= _FEWEST else None
    if items is None:
        return None
    names, found = items
    devices = {device for item in found for device in item.takes}
    filled = [
        name
        for at, name in enumerate(names)
        if sum(min(amounts[at] for amounts in item.takes.values()) for item in found)
        == sum(search.state.room(device, name) for device in devices)
    ]
    every = all(any(search.state.room(device, name) > 0 for name in filled) for device in devices)
    few = every and len(found) > len(devices)
    return (_FEW_TRIES if few else _TRIES) if filled else None


def packed(search: PartialChoice) -> dict[RequestAlternative, list[int]] | None:
    """Devices for all requests, as far as amounts go, or none if there is no packing; None where that cannot
    be told."""
    items = _items(search)
    if items is None:
        return None
    names, found = items
    devices = sorted({device for item in found for device in item.takes})
    rooms = {device: [search.state.room(device, name) for name in names] for device in devices}
    packing = Packing(found, rooms, budget=PACKING_BUDGET)
    chosen = packing.solve()
    if chosen is None:
        return None if packing.budget < 0 else {}
    candidates: dict[RequestAlternative, list[int]] = {}
    for item, device in chosen:
        candidates.setdefault(item.request, []).append(device)
    return {one: sorted(found) for one, found in candidates.items()}


def _items(search: PartialChoice) -> tuple[list[str], list[Item]] | None:
    """The capacities that may be filled, and the shares that are asked for with what each takes of them; None
    where something else is asked for, too."""
    state = search.state
    takes: dict[RequestAlternative, dict[int, Mapping[str, int]]] = {}
    most = Counter[str]()
    for _, _, request in search.requests:
        wanted = request.alternatives[0]
        devices = search.candidates.get(wanted, ())
        if not devices or not all(state.shared[device] for device in devices):
            return None
        own = takes[wanted] = {
            device: demand.nano for device in devices if (demand := state.demand(wanted, device))
        }
        for name in {name for each in own.values() for name in each}:
            most[name] += wanted.spec.count * max(each.get(name, 0) for each in own.values())
    if not takes or not all(takes.values()):
        return None
    every = {device for found in takes.values() for device in found}
    # Of what every device has enough for all, nothing need be packed.
    names = sorted(
        name for name, amount in most.items() if amount > min(state.room(device, name) for device in every)
    )
    if not names:
        return None
    return names, [
        Item(one, {device: tuple(each.get(name, 0) for name in names) for device, each in found.items()})
        for one, found in takes.items()
        for _ in range(one.spec.count)
    ]

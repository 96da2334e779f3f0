"""Amounts into rooms: what is lost for certain, and an exact search for shares that have to fill their devices.

Shares take amounts of devices that have rooms. However the rest is arranged, a device can only be filled up to the
largest sum of remaining amounts that is not above its room; what is above that sum is lost. Sums are kept as the bits of
one integer (bit n: the sum of n units can be made), after Martello and Toth, "Knapsack Problems" (1990), chapter 4:

    usable room of a device    the highest bit at or below its room
    no placement               the usable rooms together are less than the amounts together

`pack` places the largest amount first and gives a branch up as soon as more is lost than there is to spare. Rooms that
are equal are tried once, and so is every set of rooms at the same item.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from operator import lt, sub
from typing import Final

_MOST_BITS: Final = 1 << 20
"""Finer sums are kept in coarser units, never so that a sum would look smaller than it can be."""

PACKING_BUDGET: Final = 20_000
"""Items placed by `pack` before it gives up."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums that can be made of some items; an item is one of several amounts (0: possibly nothing).

    `least` and `most` are what all items together take with their smallest and largest amounts. Bit n of `bits` says that n
    `unit`s can be made, where amounts are rounded down to units; `slack` is what rounding may have lost.
    """

    unit: int
    least: int = 0
    most: int = 0
    bits: int = 1
    slack: int = 0
    known: dict[int, int] = field(default_factory=dict)

    @classmethod
    def suffixes(cls, items: Sequence[Sequence[Sequence[int]]]) -> list[Sums]:
        """The sums of each list of items with all that follow it, and of none at last."""
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
            found = self.known[room] = min(room, units * self.unit + self.slack)
        return found

    def devices_needed(self, held: Iterable[int], free: Iterable[int]) -> int | None:
        """How many of the rooms in `free`, sorted from the largest, are needed beside those `held`; None: all are too few."""
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
    """One device's share that a request needs. `takes`: per device that may serve it, the amounts by capacity.

    Items of one `request` take different devices.
    """

    request: Hashable
    takes: Mapping[int, tuple[int, ...]]


class Packing:
    """Items, the largest first, into the rooms of devices; `rooms` are the free amounts of each device by capacity."""

    def __init__(self, items: Sequence[Item], rooms: Mapping[int, Sequence[int]], *, budget: int) -> None:
        self.budget = budget
        self._rooms = {device: tuple(room) for device, room in rooms.items()}
        whole = [sum(column) or 1 for column in zip(*self._rooms.values(), strict=True)]

        def size(item: Item) -> float:
            return max(
                amount / total
                for amounts in item.takes.values()
                for amount, total in zip(amounts, whole, strict=True)
            )

        self._order = sorted(range(len(items)), key=lambda at: -size(items[at]))
        self._items = [items[at] for at in self._order]
        # Devices that serve the same items with the same amounts can be exchanged.
        kinds = {device: tuple(item.takes.get(device) for item in items) for device in rooms}
        self._sums = [
            Sums.suffixes(
                [[sorted({amounts[capacity] for amounts in item.takes.values()})] for item in self._items]
            )
            for capacity in range(len(whole))
        ]
        numbers: dict[Hashable, int] = {}
        self._number = {device: numbers.setdefault(kind, len(numbers)) for device, kind in kinds.items()}
        self._seen: set[Hashable] = set()
        self._chosen: list[int] = []

    def solve(self) -> list[int] | None:
        """The device of each item, in the order given; None where there is no way, or where the budget ended (then it is below 0)."""
        if not self._place(0, ()):
            return None
        found = dict(zip(self._order, self._chosen, strict=True))
        return [found[at] for at in range(len(found))]

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

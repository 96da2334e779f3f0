"""Cards that are given out in parts: how large a part is, and which other parts taking it makes impossible.

A card that is cut publishes its possible parts (MIG instances) and counters that keep them apart. Nothing
here knows what NVIDIA sells: how large a part is follows from what is published, in thousandths of the card,
as the mean of

    its part of each series    counters that are numbered: memory-slice-0, memory-slice-1, ... are one series
    its `cores`                percent of the card's compute

and, where neither is published, its largest part of any counter.

Taking a part makes others impossible: those that overlap, and those for which too little of a counter is
left. What a choice destroys on a card are all parts that could be taken before and no longer can, its own
among them, each by the square of its size, in thousandths of all parts that the card has. It is least where a
part hurts the large ones least: the first 1g of an empty card goes to the end that no 4g can have, and the
next one beside it. Squares, since of two places the one is to be taken that keeps more of the largest parts
possible, and only where that is the same more of the next ones; by their sizes alone several small ones may
count more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.capacity import nano
from koordra.allocator.devices.pools import GPU, Pool, kept_with_pools
from koordra.api import names
from koordra.api.devices import Device

CARD: Final = 1000
_DIGITS: Final = "0123456789"

Counters = Mapping[str, Decimal]
Amounts = Mapping[str, int]


def size_of(device: Device, takes: Counters, has: Counters) -> int:
    """Thousandths of the card that the part is, at least 1. `takes` and `has` are counters of its set."""
    series: dict[str, list[str]] = {}
    for name in sorted(has):
        stem = name.rstrip(_DIGITS)
        if stem != name and has[name] > 0:
            series.setdefault(stem, []).append(name)
    # Of a counter that is alone in its series nothing can be measured.
    parts = [
        Fraction(sum(takes.get(name, Decimal(0)) for name in counters))
        / Fraction(sum(has[name] for name in counters))
        for counters in series.values()
        if len(counters) > 1
    ]
    parts += [
        Fraction(entry.value) / 100
        for name, entry in device.capacity.items()
        if name.rpartition("/")[2] == names.CAPACITY_CORES
    ][:1]
    if not parts:
        shares = [Fraction(takes[name]) / Fraction(has[name]) for name in takes if has.get(name)]
        parts = [max(shares, default=Fraction(1))]
    return max(1, min(CARD, int(CARD * sum(parts, Fraction(0)) / len(parts))))


class _Part(NamedTuple):
    """`worth` is its size, squared."""

    takes: Amounts
    worth: int


class _Card(NamedTuple):
    """`parts` that nobody has, by position of the device; `left` of the counters before the choice; what is
    possible is worth so much, and all parts."""

    parts: Mapping[int, _Part]
    left: Amounts
    possible: int
    every: int


_CardID = tuple[int, str]
"""Number of the pool on the node, name of the counter set."""


class PartitionableGpus:
    """The cards of one node that have parts, as they were before anything was chosen."""

    def __init__(self, state: AllocationState) -> None:
        self._card_of: dict[int, _CardID] = {}
        self._cards: dict[_CardID, _Card] = {}
        self._known: dict[tuple[_CardID, tuple[int, ...]], int] = {}
        for card, parts in _parts_of(state.pools).items():
            number, name = card
            here = {at: part for at, part in parts.items() if not state.shared[at]}
            free = {at: part for at, part in here.items() if not state.busy[at]}
            left = {key[1]: left for key, left in state.counters[number].items() if key[0] == name}
            self._cards[card] = _Card(
                free, left, _possible(free, left), sum(part.worth for part in here.values())
            )
            self._card_of |= dict.fromkeys(here, card)

    def destroyed(self, devices: Iterable[int]) -> int:
        """Thousandths of what the parts of these devices' cards are worth that cannot be taken any more once
        these are taken."""
        if not self._cards:
            return 0
        taken: dict[_CardID, list[int]] = {}
        for device in devices:
            if device in self._card_of:
                taken.setdefault(self._card_of[device], []).append(device)
        return sum(self._destroyed(card, sorted(chosen)) for card, chosen in taken.items())

    def _destroyed(self, card: _CardID, chosen: Sequence[int]) -> int:
        key = card, tuple(chosen)
        if key not in self._known:
            about = self._cards[card]
            left = dict(about.left)
            for part in (about.parts[device] for device in chosen if device in about.parts):
                for counter, amount in part.takes.items():
                    left[counter] -= amount
            rest = {at: part for at, part in about.parts.items() if at not in chosen}
            self._known[key] = CARD * (about.possible - _possible(rest, left)) // max(1, about.every)
        return self._known[key]


def _possible(parts: Mapping[int, _Part], left: Amounts) -> int:
    """What all parts are worth that could be taken next, each alone."""
    return sum(
        part.worth
        for part in parts.values()
        if all(left[name] >= amount for name, amount in part.takes.items())
    )


@kept_with_pools
def _parts_of(pools: Sequence[Pool]) -> dict[_CardID, dict[int, _Part]]:
    """GPUs that take of one set of counters alone, by that set and by their position on the node."""
    found: dict[_CardID, dict[int, _Part]] = {}
    devices = [(number, offered) for number, pool in enumerate(pools) for offered in pool.devices]
    for at, (number, offered) in enumerate(devices):
        consumes = offered.device.consumes_counters
        if offered.kind == GPU and len(consumes) == 1 and not offered.device.allow_multiple_allocations:
            ((name, takes),) = consumes.items()
            has = {key[1]: amount for key, amount in pools[number].counters.items() if key[0] == name}
            amounts = {counter: nano(amount) for counter, amount in takes.items()}
            found.setdefault((number, name), {})[at] = _Part(
                amounts, size_of(offered.device, takes, has) ** 2
            )
    return found

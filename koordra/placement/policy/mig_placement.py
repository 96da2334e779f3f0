"""What a cut card is worth to who comes, and which of its places a request should take.

A state of a layout (`mig/layout`) has `free`, the most that can still be given out of it. How much of that is
*usable* is expected from the mix of slices that the workload asks for: m is asked for in p_m of all cases,
and counts size_m. It is three parts of the first of these numbers, seven of the second and two of the third.

    alone      what one card would be filled with, if it met the requests in proportion to their counts, for
               thirty rounds, and each took the place that leaves most:
               alone(s) <- sum_m p_m [m fits ? size_m + max over places (alone(s after it)) : alone(s)],
               from 0
    stacked    what could be had of it for one profile, if nothing else came any more:
               stacked(s) = sum_m p_m * size_m * (how often m fits into s)
    together   free(s)^2, in cards: what is free on one card is worth more than the same on two, whatever is
               asked for

`alone` knows which slices go well together, and gives up the large ones too early, since a card is not alone:
`stacked` keeps those placeable. Neither knows that slices end: a card with one small slice on it is as
useless to a large one as a card with four, and will be empty sooner. `together` puts the next one on the
fuller card. On twenty mixes of an H100, none of them the benchmark's (benchmarks/scale_mig.py), in % of the
cards allocated at 100 % of arrivals and while slices come and go: the first two alike 91.4 and 87.6, below
best fit in five mixes of the latter; all three 91.2 and 87.9, below it in two; best fit 90.6 and 86.5.

The hole of a state is what is free and not usable. A request takes the place after which most is usable, so
what it gets beyond what it asked for counts as lost (`expected_waste`).

A tenth of the mix is one slice of every profile that the card has, each alike, whatever was asked for: a
quiet hour must not give up the large ones. Before anything was learned it is all of the mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from koordra.allocator.devices.partitionable_gpu import CARD
from koordra.api.tables import BoundedCache
from koordra.placement.mig.layout import Layout, Slice
from koordra.placement.policy.workload_table import SliceDemand
from koordra.topology.machine_shape import positions

_ROUNDS: Final = 30
_WHATEVER: Final = 10
_ALONE, _STACKED, _TOGETHER = 3, 7, 2
_MOST_SUMS: Final = 64
_MICRO: Final = 1000
_Numbers = npt.NDArray[np.int64]


class MigCardValues:
    """What cards are worth, for one mix of slices; an empty mix is what nobody knows."""

    def __init__(self, slices: Sequence[SliceDemand] = ()) -> None:
        self.slices = tuple(slices)
        self._usable = BoundedCache[Layout, list[int]](1 << 12)
        self._kept = BoundedCache[tuple[Layout, int, int], tuple[int, ...]](1 << 17)
        self._lost = BoundedCache[tuple[Layout, int], int](1 << 15)
        self._sums = BoundedCache[
            tuple[frozenset[Layout | None], tuple[Slice, ...]], tuple[tuple[int, int], ...]
        ](1 << 12)

    def usable(self, layout: Layout, code: int) -> int:
        """Thousandths of a milli-GPU that will be used of what is free."""
        return self.table(layout)[layout.state_of(code)]

    def free(self, layout: Layout, code: int) -> int:
        """Thousandths of the card that can still be given out."""
        return layout.states.free[layout.state_of(code)]

    def table(self, layout: Layout) -> list[int]:
        """Usable by number of the state."""
        return self._usable.get_or_make(layout, lambda: _usable(layout, self._mix(layout)))

    def choices(self, layout: Layout, code: int, asked: Slice) -> tuple[int, ...]:
        """Places that are free for one slice; of one size and with as much usable after it, the first."""
        open_places = layout.open_places(code) & layout.places_of(asked.profiles)
        key = layout, layout.state_of(code), open_places
        return self._kept.get_or_make(key, lambda: self._choices(*key))

    def least_of_place(self, layout: Layout, place: int) -> int:
        """Usable GPU that is gone at least when the place is taken, in thousandths of a milli-GPU."""
        return self._lost.get_or_make((layout, place), lambda: self._least_of_place(layout, place))

    def least_of_slices(
        self, layouts: Sequence[Layout | None], slices: tuple[Slice, ...]
    ) -> tuple[tuple[int, int], ...]:
        """Thousandths of cards that the slices may take together, each with the usable GPU that is gone then
        at least.

        A slice may get a larger place than it needs, which costs more usable GPU and is more that is given.
        Neighbours of many sums become one that is better than each, so that there are few.
        """
        key = frozenset(layouts), slices
        return self._sums.get_or_make(key, lambda: self._least_of_slices(*key))

    def _choices(self, layout: Layout, state: int, open_places: int) -> tuple[int, ...]:
        usable, after = self.table(layout), layout.states.after[state]
        found = dict[tuple[int, int], int]()
        for place in positions(open_places):
            found.setdefault((layout.places[place].milli, usable[after[place]]), place)
        return tuple(found.values())

    def _least_of_place(self, layout: Layout, place: int) -> int:
        usable, after = self.table(layout), enumerate(layout.states.after)
        return min([usable[at] - usable[then[place]] for at, then in after if place in then], default=0)

    def _least_of_slices(
        self, layouts: frozenset[Layout | None], slices: Sequence[Slice]
    ) -> tuple[tuple[int, int], ...]:
        sums = {0: 0}
        for one in slices:
            sizes = dict[int, int]()
            for layout in layouts - {None}:
                assert layout is not None
                for at in positions(layout.places_of(one.profiles)):
                    _keep_least(sizes, layout.places[at].milli, self.least_of_place(layout, at))
            every, sums = sums, {}
            for share, lost in every.items():
                for milli, more in (sizes or {one.milli: 0}).items():
                    _keep_least(sums, share + milli, lost + more)
            known = sorted(sums.items())
            step = -(-len(known) // _MOST_SUMS)
            chunks = [known[at : at + step] for at in range(0, len(known), step)]
            sums = {chunk[-1][0]: min([lost for _, lost in chunk]) for chunk in chunks}
        return tuple(sums.items())

    def _mix(self, layout: Layout) -> list[tuple[float, int, int]]:
        """Parts of the mix, what is asked for, and the places that serve it, as bits; parts sum up to one."""
        empty = layout.states.possible[-1]
        asked: dict[int, float] = {}
        for one in self.slices:
            places = layout.places_of(one.profiles) & empty
            if places:
                asked[places] = asked.get(places, 0.0) + one.part
        total = sum(asked.values())
        found = {places: part * (_WHATEVER - 1) / _WHATEVER / total for places, part in asked.items()}
        profiles = [places for name in layout.profiles if (places := layout.places_of((name,)) & empty)]
        for places in profiles:
            found[places] = found.get(places, 0.0) + (1 / _WHATEVER if asked else 1.0) / len(profiles)
        return [
            (part, min(layout.places[at].milli for at in positions(places)), places)
            for places, part in sorted(found.items())
        ]


def _keep_least(of: dict[int, int], key: int, value: int) -> None:
    of[key] = min(value, of.get(key, value))


def _usable(layout: Layout, mix: Sequence[tuple[float, int, int]]) -> list[int]:
    """Usable by number of the state, in thousandths of a milli-GPU."""
    count = len(layout.states)
    follows = [(part, size, *_follows(layout, places)) for part, size, places in mix]
    alone = np.zeros(count)
    for _ in range(_ROUNDS):
        new = np.zeros(count)
        for part, size, then, fits in follows:
            new += part * np.where(fits, size + alone[then].max(axis=1), alone)
        alone = new
    stacked = np.zeros(count)
    for part, size, then, fits in follows:
        most = np.zeros(count, dtype=np.int64)
        for state in range(count):
            # What follows has a smaller number, and is known already.
            most[state] = 1 + most[then[state]].max() if fits[state] else 0
        stacked += part * size * most
    free = np.array(layout.states.free)
    together = free * free / CARD
    weighed = _ALONE * alone + _STACKED * stacked + _TOGETHER * together
    # Rounded to what survives differences of the last bits between platforms.
    return [int(round(float(value), 3) * _MICRO) for value in weighed / (_ALONE + _STACKED + _TOGETHER)]


def _follows(layout: Layout, places: int) -> tuple[_Numbers, npt.NDArray[np.bool_]]:
    """The states that may follow each one when a place of these is taken, in rows of equal length; whether
    there are any."""
    rows = [[then for at, then in after.items() if places >> at & 1] for after in layout.states.after]
    width = max(1, *map(len, rows))
    table = [row + row[:1] * (width - len(row)) if row else [0] * width for row in rows]
    return np.array(table, dtype=np.int64), np.array([bool(row) for row in rows])

"""How a card may be cut, and every state it can come into, from what is published of it alone.

A *layout* is what a card in MIG mode publishes: counters, and *places*, each with its profile and what it
takes of the counters. What is taken of a card is a bit per place, and so a whole number, its *code*; places
that nobody may have now (tainted) are bits above those. A *slice* is what a request takes of a card: one
place of some profiles.

Many codes have the same future: the same places can still be taken, with the same places after each of them.
They are one *state* of the layout. A card of seven compute and eight memory slices has some 250 of them. They
are numbered from the fullest to the empty card, so that what follows from a state has a smaller number, and a
table over states can be filled in one go:

    possible[s]     places that can be taken, as bits
    after[s]        for each of them the state that follows
    free[s]         the most that can still be given out, in thousandths of the card; 0 when nothing fits any
                    more

A layout with too many states (parts that do not exclude each other) is not made; its card is then not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from koordra.api.tables import BoundedCache

MOST_STATES: Final = 1 << 12
MOST_PLACES: Final = 128

Counts = tuple[int, ...]


class Place(NamedTuple):
    """`takes` is of each counter of the layout; `milli` the size in thousandths of the card."""

    profile: str
    takes: Counts
    milli: int


class Slice(NamedTuple):
    """One part of a cut card: any of the profiles will do; `milli` is the smallest of them, in thousandths of
    its card."""

    profiles: tuple[str, ...]
    milli: int


@dataclass(frozen=True, order=True)
class Layout:
    """Places of one sort of card, in the order they are published. Equal ones are interchangeable."""

    counters: Counts
    places: tuple[Place, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Many tables are kept by layout."""
        return hash((self.counters, self.places))

    @cached_property
    def profiles(self) -> tuple[str, ...]:
        """What is offered, each once, in the order in which it is published."""
        return tuple(dict.fromkeys(place.profile for place in self.places))

    @cached_property
    def states(self) -> States:
        """Made when first asked for. Raises OverflowError for too many; `layout_of` gives no such layout."""
        return States(self)

    def places_of(self, profiles: Sequence[str]) -> int:
        """Places of any of the profiles, as bits."""
        return sum(1 << at for at, place in enumerate(self.places) if place.profile in profiles)

    def state_of(self, code: int) -> int:
        """The number of the state that a code is in."""
        return self.states.number(code & (1 << len(self.places)) - 1)

    def open_places(self, code: int) -> int:
        """Places that can be taken now and that nobody is kept from, as bits."""
        return self.states.possible[self.state_of(code)] & ~(code >> len(self.places)) & ~code


class States:
    """See the module; lists by number of the state."""

    def __init__(self, layout: Layout) -> None:
        """Raises OverflowError where there are too many."""
        self._layout = layout
        self._of_left: dict[Counts, int] = {}
        self._of_taken = BoundedCache[int, int](MOST_STATES << 4)
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        # The fullest first: what follows from a state is known before the state.
        for left in sorted(_reached(layout), key=lambda one: (sum(one), one)):
            after = tuple([(at, self._of_left[then]) for at, then in _following(layout, left)])
            self._of_left[left] = numbers.setdefault(after, len(numbers))
        self.after = [dict(after) for after in numbers]
        self.possible = [sum(1 << at for at in after) for after in self.after]
        self.free: list[int] = []
        for after in numbers:
            sizes = [layout.places[at].milli + self.free[then] for at, then in after]
            self.free.append(max(sizes, default=0))

    def __len__(self) -> int:
        return len(self.free)

    def number(self, taken: int) -> int:
        """Of the state where these places are taken."""
        return self._of_taken.get_or_make(taken, lambda: self._of_left.get(_left(self._layout, taken), 0))


def layout_of(counters: Counts, places: Sequence[Place]) -> Layout | None:
    """The layout, None where it cannot be counted: a place that takes nothing, too many places or states."""
    if not places or len(places) > MOST_PLACES or any(not any(place.takes) for place in places):
        return None
    layout = Layout(counters, tuple(places))
    try:
        return layout if len(layout.states) else None
    except OverflowError:
        return None


def _left(layout: Layout, taken: int) -> Counts:
    """What is left of the counters. Where more is taken than there is, no state is found, and nothing can be
    had."""
    left = list(layout.counters)
    for at, place in enumerate(layout.places):
        if taken >> at & 1:
            left = [have - takes for have, takes in zip(left, place.takes, strict=True)]
    return tuple(left)


def _reached(layout: Layout) -> set[Counts]:
    """What may be left of the counters. Raises OverflowError for too many."""
    reached = {layout.counters}
    new = [layout.counters]
    while new:
        for _, then in _following(layout, new.pop()):
            if then not in reached:
                if len(reached) >= MOST_STATES:
                    raise OverflowError
                reached.add(then)
                new.append(then)
    return reached


def _following(layout: Layout, left: Counts) -> Iterator[tuple[int, Counts]]:
    """The places that can be taken of what is left, and what is left then."""
    for at, place in enumerate(layout.places):
        then = tuple([have - takes for have, takes in zip(left, place.takes, strict=True)])
        if min(then) >= 0:
            yield at, then

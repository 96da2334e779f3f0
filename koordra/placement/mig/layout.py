"""How a card may be cut, and every state it can come into, from what is published of it alone.

A *layout* is what a card in MIG mode publishes: counters, and *places*, each with its profile and what it takes of the
counters. What is taken of a card is a bit per place, and so a whole number, its *code*; places that nobody may have now (tainted)
are bits above those.

Many codes have the same future: the same places can still be taken, with the same places after each of them. They are one
*state* of the layout. A card of seven compute and eight memory slices has some 250 of them. They are numbered from the fullest
to the empty card, so that what follows from a state has a smaller number, and a table over states can be filled in one go:

    possible[s]     places that can be taken, as bits
    after[s]        for each of them the state that follows
    free[s]         the most that can still be given out, in thousandths of the card; 0 when nothing fits any more

A layout with too many states (parts that do not exclude each other) is not made; its card is then not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

MOST_STATES: Final = 1 << 12
MOST_PLACES: Final = 128

Counts = tuple[int, ...]


class Place(NamedTuple):
    """`takes` is of each counter of the layout; `milli` the size in thousandths of the card."""

    profile: str
    takes: Counts
    milli: int


class Layout:
    """Places of one sort of card, in the order in which they are published. Equal ones are interchangeable."""

    __slots__ = ("__dict__", "_hash", "counters", "places")

    def __init__(self, counters: Counts, places: Sequence[Place]) -> None:
        self.counters, self.places = counters, tuple(places)
        self._hash = hash((self.counters, self.places))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Layout)
            and self._hash == other._hash
            and (self.counters, self.places) == (other.counters, other.places)
        )

    def __repr__(self) -> str:
        return f"Layout({len(self.places)} places, {', '.join(self.profiles)})"

    def __lt__(self, other: Layout) -> bool:
        return (self.counters, self.places) < (other.counters, other.places)

    @cached_property
    def profiles(self) -> tuple[str, ...]:
        """What is offered, each once, in the order in which it is published."""
        return tuple(dict.fromkeys(place.profile for place in self.places))

    @cached_property
    def states(self) -> States:
        """Made when first asked for. Raises OverflowError for too many; `layout_of` gives no such layout."""
        return _states(self)

    @cached_property
    def _of_profile(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for at, place in enumerate(self.places):
            found[place.profile] = found.get(place.profile, 0) | 1 << at
        return found

    def places_of(self, profiles: Sequence[str]) -> int:
        """Places of any of the profiles, as bits."""
        found = 0
        for profile in profiles:
            found |= self._of_profile.get(profile, 0)
        return found

    def state_of(self, code: int) -> int:
        """The number of the state that a code is in."""
        return self.states.number(code & (1 << len(self.places)) - 1)

    def open_places(self, code: int) -> int:
        """Places that can be taken now and that nobody is kept from, as bits."""
        return self.states.possible[self.state_of(code)] & ~(code >> len(self.places)) & ~code


class States:
    """See the module; lists by number of the state. `reachable`: the state that follows from each place that can be taken."""

    def __init__(
        self, layout: Layout, of_left: dict[Counts, int], reachable: Iterable[tuple[tuple[int, int], ...]]
    ) -> None:
        self.after = [dict(after) for after in reachable]
        self.possible = [sum(1 << at for at in after) for after in self.after]
        sizes = [place.milli for place in layout.places]
        self.free: list[int] = []
        for after in self.after:
            self.free.append(max((sizes[at] + self.free[then] for at, then in after.items()), default=0))
        self._layout, self._of_left = layout, of_left
        self._of_taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.free)

    def number(self, taken: int) -> int:
        """Of the state where these places are taken."""
        found = self._of_taken.get(taken)
        if found is None:
            if len(self._of_taken) >= MOST_STATES << 4:
                self._of_taken.clear()
            found = self._of_taken[taken] = self._of_left.get(_left(self._layout, taken), 0)
        return found


def layout_of(counters: Counts, places: Sequence[Place]) -> Layout | None:
    """The layout, None where it cannot be counted: a place that takes nothing, too many places or states."""
    if not places or len(places) > MOST_PLACES or any(not any(place.takes) for place in places):
        return None
    layout = Layout(counters, places)
    try:
        return layout if len(layout.states) else None
    except OverflowError:
        return None


def _left(layout: Layout, taken: int) -> Counts:
    """What is left of the counters. Where more is taken than there is, no state is found, and nothing can be had."""
    left = list(layout.counters)
    for at, place in enumerate(layout.places):
        if taken >> at & 1:
            left = [have - takes for have, takes in zip(left, place.takes, strict=True)]
    return tuple(left)


def _states(layout: Layout) -> States:
    """Raises OverflowError where there are too many."""
    reached = {layout.counters}
    new = [layout.counters]
    while new:
        left = new.pop()
        for place in layout.places:
            then = _without(left, place.takes)
            if then is not None and then not in reached:
                if len(reached) >= MOST_STATES:
                    raise OverflowError
                reached.add(then)
                new.append(then)
    # The fullest first: what follows from a state is known before the state.
    of_left: dict[Counts, int] = {}
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    for left in sorted(reached, key=lambda one: (sum(one), one)):
        found = []
        for at, place in enumerate(layout.places):
            then = _without(left, place.takes)
            if then is not None:
                found.append((at, of_left[then]))
        after = tuple(found)
        if after not in numbers:
            numbers[after] = len(numbers)
        of_left[left] = numbers[after]
    return States(layout, of_left, numbers)


def _without(left: Counts, takes: Counts) -> Counts | None:
    found = tuple([have - taken for have, taken in zip(left, takes, strict=True)])
    return found if min(found) >= 0 else None

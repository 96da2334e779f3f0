"""Which member goes to which node, where counts say how many do.

Members of a class follow the order of the fabric. That keeps units with a required level together, since each
domain of it takes whole units. Units that only prefer a level are made up from the narrow domains to the wide
ones, as many whole ones at each as counts allow; what they leave goes to the members of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from koordra.placement.gang.topology.cost_tables import Count
from koordra.placement.gang.topology.domains import Path
from koordra.placement.gang.topology.units import Sorts, Units


class Seat(NamedTuple):
    """Where its node comes in the order of the fabric, and which of its class's members there it is for."""

    order: int
    number: int
    node: str


@dataclass(slots=True, eq=False)
class _Made:
    """A whole unit: the seats of its own members by class, and its parts by sort."""

    seats: dict[int, list[Seat]] = field(default_factory=dict)
    parts: dict[Sorts, list[_Made]] = field(default_factory=dict)

    def every(self) -> Iterator[tuple[int, list[Seat]]]:
        yield from self.seats.items()
        for part in chain.from_iterable(self.parts.values()):
            yield from part.every()

    def first(self) -> Seat:
        return min(own[0] for _, own in self.every())


@dataclass(slots=True)
class _Loose:
    """What is in a domain and in no unit yet, in order of the fabric."""

    seats: dict[int, list[Seat]] = field(default_factory=dict)
    made: dict[Sorts, list[_Made]] = field(default_factory=dict)

    def add(self, other: _Loose) -> None:
        for at, own in other.seats.items():
            self.seats.setdefault(at, []).extend(own)
        for sort, units in other.made.items():
            self.made.setdefault(sort, []).extend(units)


def seated(
    units: Units, counts: Mapping[str, Count], paths: Mapping[str, Path]
) -> dict[str, list[list[int]]]:
    """By node, for each class the members there, by their number in the class. `counts` in order of the
    fabric."""
    classes = range(len(units.classes))
    found = {node: [[0] * number for number in count] for node, count in counts.items()}
    seats = {
        node: {of: [Seat(order, number, node) for number in range(count[of])] for of in classes if count[of]}
        for order, (node, count) in enumerate(counts.items())
    }
    whole = _Loose()
    if any(rule.preferred is not None for rule in units.rules.values()):
        whole = _made_up(units, seats, paths)
    else:
        for there in seats.values():
            whole.add(_Loose(there))
    ordered: dict[int, list[Seat]] = {of: [] for of in classes}
    for _, made in sorted(whole.made.items(), key=lambda item: len(item[0])):
        for unit in sorted(made, key=_Made.first):
            for of, own in unit.every():
                ordered[of] += own
    for of, own in whole.seats.items():
        ordered[of] += own
    for of, own in ordered.items():
        for member, seat in enumerate(own):
            found[seat.node][of][seat.number] = member
    return found


def _made_up(units: Units, seats: Mapping[str, dict[int, list[Seat]]], paths: Mapping[str, Path]) -> _Loose:
    """All units that can be made whole, each in as narrow a domain as can be."""
    needs = _needs(units)
    by_path: dict[Path, list[_Loose]] = {}
    for node, own in seats.items():
        by_path.setdefault(paths[node], []).append(_made_in(_Loose(own), needs))
    for depth in range(len(next(iter(by_path))), -1, -1):
        wider: dict[Path, list[_Loose]] = {}
        for path, parts in by_path.items():
            together = _Loose()
            for part in parts:
                together.add(part)
            wider.setdefault(path[: max(0, depth - 1)], []).append(_made_in(together, needs))
        by_path = wider
    ((found,),) = by_path.values()
    return found


def _needs(units: Units) -> list[tuple[Sorts, dict[int, int], dict[Sorts, int]]]:
    """Of how many members of a class, and of how many parts, a unit of a sort is made; inner ones first."""
    number = {sort: len(own) for sort, own in units.units.items()}
    members = Counter[tuple[Sorts, int]]()
    for at, (one, sort) in enumerate(zip(units.classes, units.sorts, strict=True)):
        if sort:
            members[sort, at] += len(one.members) // number[sort]
    return [
        (
            sort,
            {at: each for (own, at), each in members.items() if own == sort and each},
            {inner: number[inner] // number[sort] for inner in number if inner[:-1] == sort},
        )
        for sort in sorted(number, key=len, reverse=True)
    ]


def _made_in(loose: _Loose, needs: list[tuple[Sorts, dict[int, int], dict[Sorts, int]]]) -> _Loose:
    """With as many whole units as there can be."""
    for sort, members, parts in needs:
        have = [len(loose.seats.get(at, ())) // each for at, each in members.items()]
        have += [len(loose.made.get(inner, ())) // each for inner, each in parts.items()]
        for _ in range(min(have, default=0)):
            unit = _Made()
            for at, each in members.items():
                unit.seats[at], loose.seats[at] = loose.seats[at][:each], loose.seats[at][each:]
            for inner, each in parts.items():
                unit.parts[inner], loose.made[inner] = loose.made[inner][:each], loose.made[inner][each:]
            loose.made.setdefault(sort, []).append(unit)
    return loose

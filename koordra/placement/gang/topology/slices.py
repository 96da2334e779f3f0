"""Slices: units of so many members, in up to a few layers.

Members with numbers are in the slice of their number. Members without are in whichever slice is open: those
that stay make up slices by the domains that they are in, and new ones complete these before they begin
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from koordra.placement.gang.topology.domains import Path
from koordra.placement.gang.types import Fixed, NewMember

Member = NewMember | Fixed


class Layer(NamedTuple):
    """`required` and `preferred` number levels."""

    size: int
    required: int | None
    preferred: int | None

    @property
    def narrowest(self) -> int:
        return max(-1 if at is None else at for at in (self.required, self.preferred))


@dataclass(slots=True, eq=False)
class Unit:
    """Members that stand together. `new` and `fixed` are those in none of its `parts`; `size`: how many it is
    to have, of a slice."""

    name: str
    required: int | None = None
    preferred: int | None = None
    size: int | None = None
    new: list[NewMember] = field(default_factory=list)
    fixed: list[Fixed] = field(default_factory=list)
    parts: list[Unit] = field(default_factory=list)

    def every_new(self) -> list[NewMember]:
        return [*self.new, *(member for part in self.parts for member in part.every_new())]

    def every_fixed(self) -> list[Fixed]:
        return [*self.fixed, *(one for part in self.parts for one in part.every_fixed())]

    @property
    def missing(self) -> int:
        """Members that a slice lacks."""
        have = len(self.every_new()) + len(self.every_fixed())
        return 0 if self.size is None else max(0, self.size - have)


def sliced(
    layers: Sequence[Layer],
    new: Sequence[NewMember],
    fixed: Sequence[Fixed],
    *,
    numbers: Mapping[str, int | None],
    paths: Mapping[str, Path],
    of: str,
) -> list[Unit]:
    """The outermost slices, with all of these members. `layers`: the outer first; `numbers` by key; `of`:
    what is sliced, for people."""
    members: list[Member] = [*new, *fixed]
    numbered = [(number, one) for one in members if (number := numbers[one.key]) is not None]
    if len(numbered) == len(members):
        return _by_number(layers, numbered, of)
    found = _by_domain(layers, fixed, paths)
    waiting = iter(new)
    for unit in found:
        _complete(unit, layers, waiting)
    while (unit := _complete(_slice(layers[0]), layers, waiting)).every_new():
        found.append(unit)
    for number, unit in enumerate(found):
        _call(unit, f"slice {number}{of}")
    return found


def _slice(layer: Layer, name: str = "") -> Unit:
    return Unit(name, layer.required, layer.preferred, layer.size)


def _call(unit: Unit, name: str) -> None:
    unit.name = name
    for number, part in enumerate(unit.parts):
        _call(part, f"part {number} of {name}")


def _by_number(layers: Sequence[Layer], members: Sequence[tuple[int, Member]], of: str) -> list[Unit]:
    known: dict[tuple[int, int], Unit] = {}
    found: list[Unit] = []
    for number, member in sorted(members, key=lambda one: one[0]):
        beside, name = found, of
        for depth, layer in enumerate(layers):
            key = depth, number // layer.size
            if key not in known:
                own = key[1] if not depth else key[1] % (layers[depth - 1].size // layer.size)
                word = "slice" if not depth else "part"
                known[key] = _slice(layer, f"{word} {own}{name}")
                beside.append(known[key])
            unit = known[key]
            beside, name = unit.parts, f" of {unit.name}"
        if isinstance(member, Fixed):
            unit.fixed.append(member)
        else:
            unit.new.append(member)
    return found


def _by_domain(layers: Sequence[Layer], fixed: Sequence[Fixed], paths: Mapping[str, Path]) -> list[Unit]:
    """What the members that stay make up."""

    def domain(unit: Unit, layer: Layer) -> Path:
        return paths.get(unit.every_fixed()[0].node, ())[: layer.narrowest + 1]

    inner = layers[-1]
    found = [
        Unit("", fixed=[one]) for one in sorted(fixed, key=lambda one: (paths.get(one.node, ()), one.key))
    ]
    below = 1
    for layer in reversed(layers):
        groups: dict[Path, list[Unit]] = {}
        for unit in found:
            groups.setdefault(domain(unit, layer), []).append(unit)
        found, each = [], layer.size // below
        for own in groups.values():
            for first in range(0, len(own), each):
                unit, chosen = _slice(layer), own[first : first + each]
                if layer is inner:
                    unit.fixed = [one for part in chosen for one in part.fixed]
                else:
                    unit.parts = chosen
                found.append(unit)
        below = layer.size
    return found


def _complete(unit: Unit, layers: Sequence[Layer], waiting: Iterator[NewMember]) -> Unit:
    """With as many of those that wait as it lacks."""
    layer, *inner = layers
    if not inner:
        for _ in range(unit.missing):
            if (member := next(waiting, None)) is not None:
                unit.new.append(member)
        return unit
    for part in unit.parts:
        _complete(part, inner, waiting)
    while len(unit.parts) < layer.size // inner[0].size:
        part = _complete(_slice(inner[0]), inner, waiting)
        if not part.every_new():
            break
        unit.parts.append(part)
    return unit

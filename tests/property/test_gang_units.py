"""Slices, roles and levels of the cluster's own, against trying every seat.

Written from what is promised, not from the code. Made-up clusters have levels with labels of nobody's
dialect, in an order that somebody wrote; gangs have a level that is required, one that is preferred, and
parts: roles and slices in layers, with levels of their own. Every way to give every member a node, or none,
is tried:

    required    all members of a unit are in one domain that has a name; a unit of which nobody is there yet
                is placed whole or not at all; a slice that is not complete waits
    preferred   members in units that are not whole in one domain are few, wide levels before narrow ones; of
                the gang itself: its domains are few, down to that level
    then        the fewest domains of the other levels, the fewest nodes

The members' places that `place_gang` answers are judged by the same rules, one by one, so that who is in
which slice counts, too.

`make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from koordra.placement.gang import (
    Fixed,
    GangPlaced,
    GangRequest,
    GangUnsatisfiable,
    NewMember,
    Part,
    Slices,
    place_gang,
)
from koordra.topology.network_topology import Level, Levels
from tests.fakes.gang_engine import gang_engine, member
from tests.long import mostly_long
from tests.unit.allocator.machines import claim, device_classes, gpu, node, place, pod, request, slice_of

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)

FABRIC = Levels(
    (Level("hall", ("example.com/hall",)), Level("row", ("example.com/row",)), Level("rack", ("rack",)))
)
NAMES = ("hall", "row", "rack", "node")


@dataclass
class Unit:
    """`members` with those of its `parts`; `lacks`: members that a slice waits for."""

    members: set[str]
    required: str | None
    preferred: str | None
    parts: list[Unit] = field(default_factory=list)
    lacks: int = 0

    def __post_init__(self) -> None:
        if self.required and self.preferred and NAMES.index(self.preferred) <= NAMES.index(self.required):
            self.preferred = None  # kept anyhow


@dataclass
class Case:
    """`paths`: node -> hall, row, rack, itself ("": nobody knows); `free`: GPUs; `gpus`: what a member asks;
    `fixed`: member -> node."""

    paths: dict[str, tuple[str, ...]]
    free: dict[str, int]
    gpus: dict[str, int]
    fixed: dict[str, str]
    least: int
    required: str | None
    preferred: str | None
    parts: tuple[Part, ...]
    units: list[Unit]


def made_up(draw: random.Random) -> Case:
    paths, free = {}, {}
    nameless = draw.choice((0.0, 0.0, 0.2))
    for number in range(draw.randint(2, 5)):
        name = f"n{number}"
        own = [draw.choice("ab"), draw.choice("ab"), draw.choice("xy")]
        paths[name] = (*("" if draw.random() < nameless else one for one in own), name)
        free[name] = draw.randint(0, 3)
    keys = [f"m{number}" for number in range(draw.randint(2, 5))]
    gpus = {key: draw.choice((1, 1, 1, 2)) if draw.random() < 0.5 else 1 for key in keys}
    fixed = {f"f{number}": draw.choice(sorted(paths)) for number in range(draw.choice((0, 0, 0, 1, 2)))}
    parts, units = parts_of(draw, keys, fixed)
    required = draw.choice((None, None, None, "hall", "row", "rack"))
    preferred = draw.choice((None, None, "hall", "example.com/row", "rack", "node"))
    least = draw.choice((1, len(keys))) + len(fixed)
    return Case(paths, free, gpus, fixed, least, required, preferred, parts, units)


def parts_of(
    draw: random.Random, keys: list[str], fixed: dict[str, str]
) -> tuple[tuple[Part, ...], list[Unit]]:
    """Roles, each with slices or without, and what they mean: the units."""
    every = [*fixed, *keys]
    draw.shuffle(every)
    roles = draw.choice((1, 1, 2))
    found, units = [], []
    for role in range(roles):
        own = sorted(every[role::roles])
        if not own:
            continue
        is_numbered = bool(fixed.keys() & set(own)) or draw.random() < 0.7
        numbers: dict[str, int | None] = {}
        for at, key in enumerate(sorted(own, key=lambda key: (key in fixed, key))):
            numbers[key] = at if is_numbered else None
        required, preferred = draw.choice((None, None, "hall", "row")), draw.choice((None, None, "rack"))
        layers = tuple(
            Slices(
                size, draw.choice((None, "hall", "row", "rack", "node")), draw.choice((None, "row", "rack"))
            )
            for size in draw.choice(((), (2,), (1,), (3,), (2, 1), (4, 2), (4, 2, 1)))
        )
        found.append(Part(f"role {role}", numbers, required, preferred, layers))
        inside = sliced(layers, {key: at if at is not None else int(key[1:]) for key, at in numbers.items()})
        if not is_numbered:
            order = sorted(own)
            inside = sliced(layers, {key: at for at, key in enumerate(order)})
        units += [Unit(set(own), required, preferred, inside)] if required or preferred else inside
    return tuple(found), units


def sliced(layers: tuple[Slices, ...], numbers: dict[str, int]) -> list[Unit]:
    if not layers:
        return []
    outer, *inner = layers
    found = []
    for at in sorted({number // outer.size for number in numbers.values()}):
        own = {key: number for key, number in numbers.items() if number // outer.size == at}
        unit = Unit(set(own), outer.required, outer.preferred, sliced(tuple(inner), own))
        unit.lacks = outer.size - len(own)
        found.append(unit)
    return found


def every(units: list[Unit]) -> Iterator[Unit]:
    for unit in units:
        yield unit
        yield from every(unit.parts)


def domain(case: Case, at: str, level: str) -> tuple[str, ...] | None:
    """None where nobody knows it. Levels that no node knows are none."""
    number = NAMES.index(level.rpartition("/")[2])
    path = case.paths[at][: number + 1]
    return path if path[-1] else None


def judged(case: Case, seats: dict[str, str]) -> tuple[int, ...] | None:
    """The score, less is better; None for what must not be. `seats`: new members that are placed."""
    used: dict[str, int] = {}
    for key, at in seats.items():
        used[at] = used.get(at, 0) + case.gpus[key]
    if any(number > case.free[at] for at, number in used.items()):
        return None
    placed = {**case.fixed, **seats}
    if len(placed) < case.least or not seats:
        return None
    if case.required and not together(case, placed.values(), case.required):
        return None
    for unit in every(case.units):
        there = {key: at for key, at in placed.items() if key in unit.members}
        if unit.required and there:
            if not together(case, there.values(), unit.required):
                return None
            is_whole = not unit.lacks and len(there) == len(waiting_not(unit, unit.members))
            if not is_whole and not unit.members & case.fixed.keys():
                return None
    known = [level for at, level in enumerate(NAMES[:-1]) if any(path[at] for path in case.paths.values())]
    counts = {level: entered(case, level, seats, placed) for level in known}
    nodes = len(set(seats.values()) - set(case.fixed.values()))
    wish = -1 if case.preferred is None else NAMES.index(case.preferred.rpartition("/")[2])
    first = [counts[level] for level in known if NAMES.index(level) <= wish] + [nodes] * (wish == 3)
    narrowest = max((NAMES.index(unit.preferred) for unit in every(case.units) if unit.preferred), default=-1)
    cut = [cut_at(case, level, seats) for level in known if NAMES.index(level) <= narrowest]
    return (-len(placed), *first, *cut, *counts.values(), nodes)


def together(case: Case, nodes: Any, level: str) -> bool:
    domains = {domain(case, at, level) for at in nodes}
    return len(domains) == 1 and None not in domains


def entered(case: Case, level: str, seats: dict[str, str], placed: dict[str, str]) -> int:
    depth = NAMES.index(level) + 1
    before = {case.paths[at][:depth] for at in case.fixed.values()}
    return len({case.paths[at][:depth] for at in seats.values()} - before)


def cut_at(case: Case, level: str, seats: dict[str, str]) -> int:
    """Members in units that are not whole in one domain of the level, of units that mind."""
    number = 0
    for unit in every(case.units):
        if unit.preferred is None or NAMES.index(unit.preferred) < NAMES.index(level):
            continue
        own = {key: at for key, at in seats.items() if key in unit.members}
        new = unit.members - case.fixed.keys()
        homes = {domain_path(case, case.fixed[key], level) for key in unit.members & case.fixed.keys()}
        if homes:
            number += sum(domain_path(case, at, level) not in homes for at in own.values())
        elif len(own) < len(waiting_not(unit, new)) or not together(case, own.values(), level):
            number += len(own)
    return number


def domain_path(case: Case, at: str, level: str) -> tuple[str, ...]:
    return case.paths[at][: NAMES.index(level) + 1]


def waiting_not(unit: Unit, new: set[str]) -> set[str]:
    """Without members of slices inside that are not complete."""
    for part in every(unit.parts):
        if part.required and part.lacks and new >= part.members:
            new = new - part.members
    return new


def best_of(case: Case) -> tuple[int, ...] | None:
    keys = sorted(case.gpus)
    scores = []
    for where in itertools.product([None, *sorted(case.paths)], repeat=len(keys)):
        seats = {key: at for key, at in zip(keys, where, strict=True) if at is not None}
        if (score := judged(case, seats)) is not None:
            scores.append(score)
    return min(scores, default=None)


def answered(case: Case, draw: random.Random) -> Any:
    found: list[dict[str, Any]] = [*device_classes()]
    for name, path in case.paths.items():
        labels = dict(zip(("example.com/hall", "example.com/row", "rack"), path, strict=False))
        found.append(node(name, labels={label: value for label, value in labels.items() if value}))
        found.append(slice_of([gpu(at, place=place(at)) for at in range(case.free[name])], name=name))
    draw.shuffle(found)
    members: list[NewMember] = [
        member(key, [pod(key, key)], [claim(key, request("gpu", "gpu", number))])
        for key, number in case.gpus.items()
    ]
    draw.shuffle(members)
    gang = GangRequest(
        "g",
        members,
        case.least,
        fixed=tuple(Fixed(key, at) for key, at in case.fixed.items()),
        required=case.required,
        preferred=case.preferred,
        parts=case.parts,
        levels=FABRIC,
    )
    return place_gang(gang, gang_engine(found))


def known_to_all(case: Case) -> bool:
    """Whether some node knows each level that is required: else the gang is refused before anybody is
    placed."""
    words = [case.required, *(unit.required for unit in every(case.units))]
    return all(
        any(path[NAMES.index(word.rpartition("/")[2])] for path in case.paths.values())
        for word in words
        if word
    )


def stay_together(case: Case) -> bool:
    """Whether those who stay keep already what is required."""
    groups = [(set(case.fixed), case.required)]
    groups += [(unit.members & case.fixed.keys(), unit.required) for unit in every(case.units)]
    return all(
        len({domain_path(case, case.fixed[key], level.rpartition("/")[2]) for key in own}) < 2
        for own, level in groups
        if level
    )


@pytest.mark.parametrize("thirty", mostly_long(range(20 * HUNDREDS), fast=3))
def test_units_get_what_trying_everything_finds(thirty: int) -> None:
    for number in range(30):
        draw = random.Random(30 * thirty + number)
        case = made_up(draw)
        best = best_of(case) if known_to_all(case) and stay_together(case) else None
        answer = answered(case, draw)
        if not isinstance(answer, GangPlaced):
            assert isinstance(answer, GangUnsatisfiable)
            assert best is None, (thirty, number, case)
            continue
        assert answer.proven
        seats = {one.key: one.node for one in answer.members}
        assert judged(case, seats) == best, (thirty, number, case, seats)

"""Racks joined by NVLink, NICs whose rail nobody knows, and the order of input: gangs against trying every
seat.

Written from what is promised, not from the code: members go into the fewest spines, then the fewest NVLink
domains; a domain that nobody uses is not begun where another way is as good; then the fewest nodes, then the
fewest rails. Every member's every choice of a node and of pairs of GPU and NIC there is tried.

NICs without a rail are together on one that has no name. Neither the order of objects, nor that of members,
nor what nodes are called may change how good the answer is; with the same names it is the same answer.

`make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from koordra.placement.gang import GangAnswer, GangPlaced, GangRequest, NewMember, place_gang
from tests.fakes.gang_engine import gang_engine, member
from tests.long import mostly_long
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    gpu,
    joint,
    nic,
    node,
    place,
    pod,
    request,
    slice_of,
)

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)

Seat = tuple[str, tuple[int, ...]]
"""A node, and the pairs that a member has there."""


@dataclass(frozen=True)
class Tray:
    """A node of a rack: pairs of a GPU and the NIC beside it, by the NIC's rail (None: nobody knows), and
    those in use."""

    name: str
    spine: str
    rack: str
    rails: tuple[int | None, ...]
    held: frozenset[int]

    @property
    def free(self) -> list[int]:
        return [pair for pair in range(len(self.rails)) if pair not in self.held]


@dataclass(frozen=True)
class Case:
    trays: tuple[Tray, ...]
    members: int
    pairs: int
    least: int
    required: bool


def made_up(draw: random.Random) -> Case:
    width = draw.choice((2, 3))
    racks = {"r1": draw.choice("st"), "r2": draw.choice("st"), "r3": draw.choice("st")}
    nameless = draw.choice((0.0, 0.2, 1.0))
    trays = []
    for number in range(draw.randint(2, 5)):
        rack = draw.choice(sorted(racks))
        rails: list[int | None] = [None if draw.random() < nameless else pair for pair in range(width)]
        if draw.random() < 0.4:
            draw.shuffle(rails)
        busy = draw.choice((0.0, 0.0, 0.5))
        held = frozenset(pair for pair in range(width) if draw.random() < busy)
        trays.append(Tray(f"n{number}", racks[rack], rack, tuple(rails), held))
    members = draw.randint(1, 4)
    return Case(
        tuple(trays), members, draw.choice((1, 1, 2, width)), draw.randint(1, members), draw.random() < 0.25
    )


def best_of(case: Case) -> tuple[int, ...] | None:
    """The best score over every way to seat the members, and to leave some out."""
    options: list[Seat] = [
        (tray.name, chosen) for tray in case.trays for chosen in itertools.combinations(tray.free, case.pairs)
    ]
    scores = [
        score
        for number in range(case.least, case.members + 1)
        for seats in ways(options, number)
        if (score := judged(case, seats)) is not None
    ]
    return min(scores, default=None)


def ways(options: list[Seat], number: int, start: int = 0) -> Iterator[list[Seat]]:
    """Sets of seats that share no pair; members are alike, so their order is no matter."""
    if not number:
        yield []
        return
    for at in range(start, len(options)):
        name, pairs = options[at]
        rest = [
            (other, theirs)
            for other, theirs in options[at + 1 :]
            if other != name or not {*pairs} & {*theirs}
        ]
        for seats in ways(rest, number - 1):
            yield [(name, pairs), *seats]


def judged(case: Case, seats: list[Seat]) -> tuple[int, ...] | None:
    trays = {tray.name: tray for tray in case.trays}
    used = {trays[name] for name, _ in seats}
    racks = {(tray.spine, tray.rack) for tray in used}
    if case.required and len(racks) > 1:
        return None
    begun = 0
    for spine, rack in racks:
        own = [tray for tray in case.trays if (tray.spine, tray.rack) == (spine, rack)]
        could = sum(min(case.members, len(tray.free) // case.pairs) for tray in own)
        does = sum(trays[name] in own for name, _ in seats)
        begun += not any(tray.held for tray in own) and does < could
    rails = {trays[name].rails[pair] for name, pairs in seats for pair in pairs}
    return (
        -len(seats),
        len({tray.spine for tray in used}),
        len(racks),
        begun,
        len(used),
        len(rails) if len(used) > 1 else 0,
    )


def objects_of(case: Case) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for tray in case.trays:
        labels = {"fabric.koordra.io/spine": tray.spine, "fabric.koordra.io/nvlink": tray.rack}
        devices = [gpu(pair, place=place(pair), nvlinkDomain=tray.rack) for pair in range(len(tray.rails))]
        devices += [
            nic(pair, place=place(pair), **({} if rail is None else {"rail": rail}))
            for pair, rail in enumerate(tray.rails)
        ]
        found += [node(tray.name, labels=labels), slice_of(devices, name=tray.name)]
        results = [
            {"request": "r", "driver": "koordra.io", "pool": tray.name, "device": f"{kind}-{pair}"}
            for pair in sorted(tray.held)
            for kind in ("gpu", "nic")
        ]
        if results:
            found.append(
                allocated(claim(f"held-{tray.name}", request("r")), {"devices": {"results": results}})
            )
    return found


def members_of(case: Case) -> list[NewMember]:
    asked = [request("gpu", "gpu", case.pairs), request("nic", "nic", case.pairs)]
    return [
        member(
            f"default/m{index}",
            [pod(f"m{index}", f"m{index}")],
            [claim(f"m{index}", *asked, configs=[joint("PCIeSwitch")])],
            index=index,
        )
        for index in range(case.members)
    ]


def answered(case: Case, draw: random.Random) -> GangAnswer:
    """With everything in some order."""
    objects, members = [*device_classes(), *objects_of(case)], members_of(case)
    draw.shuffle(objects)
    draw.shuffle(members)
    gang = GangRequest("g", members, case.least, required="nvlink" if case.required else None)
    return place_gang(gang, gang_engine(objects))


def score_of(answer: GangAnswer) -> tuple[int, ...] | None:
    if not isinstance(answer, GangPlaced):
        return None
    score, domains = answer.score, dict(answer.score.domains)
    assert score.apart == 0
    assert answer.proven
    return (
        -score.placed,
        domains["spine"],
        domains["nvlink"],
        score.opened,
        score.nodes,
        score.rails if score.nodes > 1 else 0,
    )


@pytest.mark.parametrize("thirty", mostly_long(range(2 * HUNDREDS)))
def test_members_go_into_the_fewest_racks_and_on_the_fewest_rails(thirty: int) -> None:
    for number in range(30):
        draw = random.Random(30 * thirty + number)
        case = made_up(draw)
        answer = answered(case, draw)
        assert score_of(answer) == best_of(case), (thirty, number, case)
        if isinstance(answer, GangPlaced):
            assert judged(case, [seat for one in answer.members for seat in seats_of(one)]) == score_of(
                answer
            )


def seats_of(one: Any) -> list[Seat]:
    """What the allocations really say."""
    results = [entry for allocation in one.allocations.values() for entry in allocation["devices"]["results"]]
    gpus = sorted(int(entry["device"][4:]) for entry in results if entry["device"].startswith("gpu-"))
    nics = sorted(int(entry["device"][4:]) for entry in results if entry["device"].startswith("nic-"))
    assert gpus == nics
    assert {entry["pool"] for entry in results} == {one.node}
    return [(one.node, tuple(gpus))]


@pytest.mark.parametrize("thirty", mostly_long(range(HUNDREDS), fast=0))
def test_the_order_of_input_changes_nothing_and_names_change_no_score(thirty: int) -> None:
    for number in range(30):
        draw = random.Random(1_000_000 + 30 * thirty + number)
        case = made_up(draw)
        first = answered(case, draw)
        for _ in range(3):
            other = answered(case, draw)
            if isinstance(first, GangPlaced):
                assert isinstance(other, GangPlaced)
                # Members that are left out are told in the order in which they were given.
                assert replace(other, left=tuple(sorted(other.left))) == replace(
                    first, left=tuple(sorted(first.left))
                )
            else:
                assert other == first
        called = [tray.name for tray in case.trays]
        draw.shuffle(called)
        renamed = replace(
            case,
            trays=tuple(replace(tray, name=name) for tray, name in zip(case.trays, called, strict=True)),
        )
        assert score_of(answered(renamed, draw)) == score_of(first), (thirty, number, case)

"""Roles with a least each, against trying every seat.

Written from what is promised, not from the code: a gang whose roles add up to what it needs is placed when
that is possible at all; whatever is placed has the least of each role, and the least of the gang.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

from koordra.placement.gang import (
    GangAnswer,
    GangPlaced,
    GangRequest,
    LeastOf,
    place_gang,
    with_least_of_each,
)
from tests.fakes.gang_engine import gang_engine, member
from tests.long import mostly_long
from tests.unit.allocator.machines import claim, device_classes, gpu, node, place, pod, request, slice_of

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)


class Case:
    """`free`: GPUs by node; `gpus`: what each member asks; `roles`: members and how many of them are
    needed."""

    def __init__(self, draw: random.Random) -> None:
        self.free = {f"n{number}": draw.randint(0, 3) for number in range(draw.randint(1, 3))}
        self.gpus = {f"m{number}": draw.choice((1, 1, 2)) for number in range(draw.randint(2, 5))}
        keys = draw.sample(sorted(self.gpus), len(self.gpus))
        cut = draw.randint(1, len(keys))
        sets = [frozenset(keys[:cut]), frozenset(keys[cut:])]
        self.roles = [
            LeastOf(f"role {at}", own, draw.randint(1, len(own))) for at, own in enumerate(sets) if own
        ]
        self.least = sum(role.least for role in self.roles)

    def answer(self) -> GangAnswer:
        found = list(device_classes())
        for name, free in self.free.items():
            found.append(node(name))
            found.append(slice_of([gpu(at, place=place(at)) for at in range(free)], name=name))
        members = [
            member(key, [pod(key, key)], [claim(key, request("gpu", "gpu", number))])
            for key, number in self.gpus.items()
        ]
        gang = GangRequest("g", members, self.least, least_of=tuple(self.roles))
        engine = gang_engine(found)
        return with_least_of_each(gang, lambda asked: place_gang(asked, engine))

    def is_enough(self, placed: set[str]) -> bool:
        return len(placed) >= self.least and all(
            len(role.members & placed) >= role.least for role in self.roles
        )

    def is_possible(self) -> bool:
        """With any members of each role, in any seats."""
        groups = [itertools.combinations(sorted(role.members), role.least) for role in self.roles]
        return any(self._fit([key for own in chosen for key in own]) for chosen in itertools.product(*groups))

    def _fit(self, keys: list[str]) -> bool:
        for nodes in itertools.product(self.free, repeat=len(keys)):
            used = dict.fromkeys(self.free, 0)
            for key, name in zip(keys, nodes, strict=True):
                used[name] += self.gpus[key]
            if all(used[name] <= free for name, free in self.free.items()):
                return True
        return False


@pytest.mark.parametrize("seed", mostly_long(range(max(10, HUNDREDS))))
def test_each_role_gets_its_least_or_nobody_gets_anything(seed: int) -> None:
    kinds = set()
    for number in range(100):
        case = Case(random.Random(100 * seed + number))
        found = case.answer()
        why = (case.free, case.gpus, case.roles, found)
        if isinstance(found, GangPlaced):
            placed = {one.key for one in found.members}
            assert case.is_enough(placed), why
            assert placed.isdisjoint(found.left), why
            assert placed | set(found.left) == case.gpus.keys(), why
        assert isinstance(found, GangPlaced) is case.is_possible(), why
        kinds.add(isinstance(found, GangPlaced))
    assert kinds == {True, False}


def test_a_part_that_is_placed_whole_or_not_at_all_is_left_and_said_to_wait() -> None:
    """Of two cards, three members: a pair that only goes together makes room for the single one."""
    found = [*device_classes(), node("n"), slice_of([gpu(at, place=place(at)) for at in range(2)], name="n")]
    members = [
        member(key, [pod(key, key)], [claim(key, request("gpu", "gpu", 1))]) for key in ("a", "b", "c")
    ]
    pair = LeastOf("pair", frozenset({"b", "c"}), 2, or_none=True)
    gang = GangRequest("g", members, 1, least_of=(pair,))
    engine = gang_engine(found)
    answer = with_least_of_each(gang, lambda asked: place_gang(asked, engine))
    assert isinstance(answer, GangPlaced)
    assert ([one.key for one in answer.members], answer.left) == (["a"], ("b", "c"))

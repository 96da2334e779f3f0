"""The best pairing of GPUs and NICs, against every one there is."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from koordra.allocator.devices.gpu_nic_distance import least_sum, level_of, worst_pair
from koordra.topology.levels import Level
from tests.unit.allocator.machines import machine, state_of


def every(costs: list[list[int]]) -> int:
    """A column serves as many rows as its share is."""
    room = -(-len(costs) // len(costs[0]))
    places = [column for column in range(len(costs[0])) for _ in range(room)]
    return min(
        sum(row[column] for row, column in zip(costs, chosen, strict=True))
        for chosen in permutations(places, len(costs))
    )


def test_the_best_pairing_is_the_least_of_all() -> None:
    draw = random.Random(1)
    for _ in range(200):
        rows, columns = draw.randint(1, 5), draw.randint(1, 5)
        costs = [[draw.randint(1, 9) for _ in range(columns)] for _ in range(rows)]
        assert least_sum(costs) == every(costs), costs


def test_the_nearest_nic_of_one_gpu_may_be_left_to_another() -> None:
    # Not 1 + 5 + 5 (in order), 9 + 1 + 1 or 1 + 9 + 1.
    assert least_sum([[1, 4, 9], [1, 5, 9], [9, 1, 5]]) == 4 + 1 + 5


@pytest.mark.parametrize(
    ("gpus", "nics", "worst"),
    [
        ([0, 4], [0, 4], Level.PIX),
        ([0, 1], [1, 0], Level.PIX),
        ([0, 1], [0], Level.NODE),
        ([0, 1], [0, 4], Level.SYS),
        ([0, 1, 4], [0, 4], Level.NODE),
        ([], [0], None),
        ([0], [], None),
    ],
)
def test_the_worst_pair_is_that_of_the_pairing_where_it_is_best(
    gpus: list[int], nics: list[int], worst: Level | None
) -> None:
    """Four GPUs and NICs on a NUMA node, each with a switch of its own."""
    plain = [device.plain for device in state_of(machine(8, 8)).devices]
    some, others = [plain[gpu] for gpu in gpus], [plain[8 + nic] for nic in nics]
    assert worst_pair(some, others) == worst
    assert level_of(some + others) == (None if worst is None else str(worst))

"""The best pairing of GPUs and NICs, against every one there is."""

from __future__ import annotations

import random
from itertools import permutations

from koordra.allocator.devices.gpu_nic_distance import least_sum


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

"""What a set of devices costs whatever else is free: by the terms at least, and in a table of sets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from koordra.allocator import selection_terms
from koordra.allocator.device_table import MachineTerms
from koordra.allocator.devices.nvlink_fabric import NO_FABRIC
from koordra.allocator.search import symmetry
from koordra.allocator.selection_terms import SelectionTerms
from koordra.topology.levels import Level

MILLION, STEP = 10**6, 10**4
"""A step of nearness, and one of compactness."""

PAIRS = [(1, [frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5})])]
HALVES = [(2, [frozenset({0, 1, 2, 3}), frozenset({4, 5})])]


@pytest.mark.parametrize(
    ("chosen", "further", "more", "steps"),
    [
        ({0}, {1, 2, 4}, 0, 0),
        ({0}, {1, 2, 4}, 1, 0),
        ({0}, {1, 2, 4}, 2, 1),
        ({0}, {1, 2, 4}, 3, 2 + 2),
        ({0}, {2, 3, 4}, 2, 1),
        ({0}, {0, 2, 4}, 1, 1),
        ({0, 4}, {1, 5}, 2, 1 + 2),
        (set(), {0, 1, 2}, 2, 0),
        (set(), {0, 1, 2}, 3, 1),
        (set(), {0, 4}, 1, 0),
        (set(), {0, 4}, 2, 1 + 2),
    ],
)
def test_gpus_to_come_open_the_fewest_groups(
    chosen: Collection[int], further: Collection[int], more: int, steps: int
) -> None:
    terms = SelectionTerms(lambda *_: Level.PIX, NO_FABRIC, PAIRS + HALVES)
    assert terms.least_together(chosen, further=frozenset(further), more=more) == steps * STEP


def near(gpu: int, nic: int) -> Level:
    """GPUs 0 and 1 are beside NIC 3, GPU 2 beside NIC 4."""
    return Level.PIX if (gpu < 2) == (nic == 3) else Level.SYS


@pytest.mark.parametrize(
    ("chosen", "nics", "further", "more", "steps"),
    [
        ([0], {3, 4}, set(), 0, 1),
        ([0, 2], {3}, set(), 0, 1 + 5),
        ([2], {3}, {0, 2}, 2, 5 + 2 * 1),
        ([0], {3}, {0, 2}, 1, 1 + 5),
        ([0], {3}, {0}, 1, 1),
    ],
)
def test_each_gpu_is_as_near_as_to_the_nearest_nic(
    chosen: list[int], nics: Collection[int], further: Collection[int], more: int, steps: int
) -> None:
    terms = SelectionTerms(near, NO_FABRIC, [])
    least = terms.least_nearness(chosen, frozenset(nics), further=frozenset(further), more=more)
    assert least == steps * MILLION


def test_what_a_set_costs_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []
    spread, least_sum = SelectionTerms._spread, selection_terms.least_sum

    def spread_counted(*given: Any) -> int:
        worked.append("together")
        return spread(*given)

    def sum_counted(rows: Any) -> int:
        worked.append("nearness")
        return least_sum(rows)

    monkeypatch.setattr(SelectionTerms, "_spread", spread_counted)
    monkeypatch.setattr(selection_terms, "least_sum", sum_counted)
    terms = SelectionTerms(near, NO_FABRIC, PAIRS)
    for _ in range(3):
        terms.cost([0, 2], [3, 4])
        terms.least_together([0], further=frozenset({1, 2}), more=1)
    assert sorted(worked) == ["nearness", "together", "together"]


GPUS, NICS = range(3), range(3, 5)
MACHINE = MachineTerms(
    SelectionTerms(near, NO_FABRIC, [(1, [frozenset({0, 1}), frozenset({2})])]),
    gpus=GPUS,
    nics=NICS,
    bit={device: 1 << device for device in (*GPUS, *NICS)},
    whole=[(4, frozenset({0, 1})), (1, frozenset({0, 1, 2}))],
)
SETS = [MACHINE.mask(one) for one in ((0, 3), (0, 1), (0, 2), (2,), (0, 2, 3, 4), (0, 1, 3, 4))]
COST = [MILLION, 0, STEP, 0, 2 * MILLION + STEP, 6 * MILLION]


def test_a_table_has_what_each_set_costs() -> None:
    assert MACHINE.table(np.array(SETS)).cost.tolist() == COST


@pytest.mark.parametrize(
    ("untouched", "broken"),
    [
        ({0, 1, 2}, [4 * 1 + 2, 1, 4 * 1 + 1, 2, 4 * 1 + 1, 1]),
        ({0, 1}, [4 * 1, 0, 4 * 1, 0, 4 * 1, 0]),
        ({0, 2}, [0] * 6),
    ],
)
def test_a_table_counts_the_cards_left_in_groups_that_nobody_uses(
    untouched: Collection[int], broken: list[int]
) -> None:
    table = MACHINE.table(np.array(SETS))
    found = table.broken(np.arange(len(SETS)), MACHINE.mask(untouched))
    assert found.tolist() == [10 * one for one in broken]


def test_the_cheapest_set_is_among_those_that_may_be_taken() -> None:
    table = MACHINE.table(np.array(SETS))
    assert table.least(takeable=-1, untouched=-1).tolist() == [MACHINE.mask([0, 1])]
    without = MACHINE.mask([0, 2, 3])
    assert table.least(takeable=without, untouched=0).tolist() == [MACHINE.mask([2])]
    assert table.least(takeable=MACHINE.mask([1, 4]), untouched=-1).tolist() == []


def test_devices_that_differ_in_what_compactness_reads_are_not_exchangeable() -> None:
    assert {attribute for attribute, _ in selection_terms.COMPACT} <= set(symmetry._LEVELS)

"""The shape tables against trying everything: every mask, every size, on every machine of up to 8 GPUs and 8 NICs.

For 8 + 8 devices these are 1.6 million questions, which belong to ``make soak``; other runs ask there for all masks of a few
devices. Random machines are asked a few questions each.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordra.topology.machine import Machine
from koordra.topology.shape_search import ShapeSearch
from koordra.topology.shape_tables import ShapeTables
from koordra.topology.shapes import shape_of_machine
from tests.fakes.best_choice import BestChoice, all_answers, mask_of
from tests.machines import catalogue
from tests.unit.topology.test_random_machines import machines

SOAK = os.environ.get("KOORDRA_EXAMPLES") is not None
SMALL = [
    name
    for name in catalogue.NAMES
    if max(len(catalogue.machine(name).gpus), len(catalogue.machine(name).nics)) <= 8
]


def assert_equal(machine: Machine, *, gpus: int, nics: int) -> int:
    """All masks within these; returns how many questions that was."""
    tables, asked = ShapeTables(shape_of_machine(machine)), 0
    for eligible_gpus, eligible_nics, k, j, best_gpus, best_nics in all_answers(
        BestChoice.of(machine), gpus, nics
    ):
        found = tables.best(eligible_gpus, eligible_nics, k, j)
        assert found is not None
        assert (found.gpus, found.nics) == (best_gpus, best_nics), (eligible_gpus, eligible_nics, k, j)
        asked += 1
    return asked


EIGHT = [
    name for name in SMALL if len(catalogue.machine(name).gpus) == len(catalogue.machine(name).nics) == 8
]
LONG = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOAK, reason="1.6 million questions, half a minute: make soak"),
]


@pytest.mark.parametrize("name", EIGHT)
def test_every_mask_of_a_few_devices(name: str) -> None:
    machine, rng = catalogue.machine(name), random.Random(name)
    gpus, nics = mask_of(rng.sample(range(8), 4)), mask_of(rng.sample(range(8), 4))
    assert assert_equal(machine, gpus=gpus, nics=nics) == 48 * 48


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in EIGHT else ()) for name in SMALL])
def test_every_mask_of_every_machine(name: str) -> None:
    machine = catalogue.machine(name)
    gpus, nics = (1 << len(machine.gpus)) - 1, (1 << len(machine.nics)) - 1
    # (1 + sizes) summed over all masks of n devices is (n + 2) 2^(n - 1).
    n, m = len(machine.gpus), len(machine.nics)
    assert assert_equal(machine, gpus=gpus, nics=nics) == (n + 2) * 2**n // 2 * ((m + 2) * 2**m // 2)


@settings(max_examples=500 if SOAK else 25)
@given(machines(), st.randoms(use_true_random=False))
def test_random_machines(machine: Machine, rng: random.Random) -> None:
    physical = replace(machine, gpus=machine.gpus[:8], nics=machine.nics[:8])
    shape, truth = shape_of_machine(physical), BestChoice.of(physical)
    tables, search = ShapeTables(shape), ShapeSearch(shape)
    for _ in range(6):
        gpus = [gpu for gpu in range(shape.gpus) if rng.random() < 0.7]
        nics = [nic for nic in range(shape.nics) if rng.random() < 0.7]
        k, j = rng.randint(0, min(4, len(gpus))), rng.randint(0, min(4, len(nics)))
        best_gpus, best_nics, level = truth.best(tuple(gpus), tuple(nics), k, j)
        expected = (mask_of(best_gpus), mask_of(best_nics), level)
        assert tables.best(mask_of(gpus), mask_of(nics), k, j) == expected
        assert search.best(mask_of(gpus), mask_of(nics), k, j) == expected

"""GPU and NIC together on a machine of known shape: the best level that is free, whatever the state, however it is numbered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest

from benchmarks.scale_alignment import flat
from koordra.placement.columns.canonical import CanonicalOrder
from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.state import Choice, Request, State, after
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload_table import Demand, Table
from koordra.simulation.dlrm import nodes_of
from koordra.topology.levels import Level
from koordra.topology.machine_shape import MachineShape, pair_level, shape_of_machine
from tests.machines import catalogue

MACHINES = ("dgx-a100", "hgx-h100", "pcie-a100x8-2nic", "two-switches-one-root", "v100x8-sxm2")


def _shape(name: str) -> MachineShape:
    return shape_of_machine(catalogue.machine(name))


def _random_state(shape: MachineShape, generator: np.random.Generator) -> State:
    gpus = tuple(int(generator.choice([0, 300, 500, 1000])) for _ in range(shape.gpus))
    nics = tuple(int(generator.choice([0, 25, 50, 100])) for _ in range(shape.nics))
    return State(0, 64_000, 1 << 20, gpus, nics)


@pytest.mark.parametrize("name", MACHINES)
def test_the_best_level_of_the_node_is_taken(name: str) -> None:
    shape = _shape(name)
    cluster, generator = nodes_of(shape, 1), np.random.default_rng(3)
    table = Table(nics=(Demand(50, 500_000),))
    for _ in range(60):
        state = _random_state(shape, generator)
        fleet = Fleet(cluster.kinds, [state], ExpectedWaste(table))
        for milli, percent in ((1000, 100), (1000, 25), (300, 25), (500, 50)):
            request = Request(1000, 1024, 1, milli, (), 1, percent)
            pairs = [
                pair_level(shape, 1 << gpu, 1 << nic)
                for gpu, free in enumerate(state.gpus)
                if free >= milli
                for nic, left in enumerate(state.nics)
                if left >= percent
            ]
            found = fleet.find(request)
            if not pairs:
                assert found is None
                continue
            assert found is not None
            chosen = pair_level(shape, 1 << found.gpus[0], 1 << found.nics[0])
            assert found.level == chosen == min(pairs)
            left = after(state, request, Choice(found.gpus, found.nics))
            assert min(*left.gpus, *left.nics) >= 0


@pytest.mark.parametrize("name", MACHINES)
def test_several_devices_are_as_near_as_any_that_are_free(name: str) -> None:
    shape = _shape(name)
    cluster, generator = nodes_of(shape, 1), np.random.default_rng(4)
    for _ in range(30):
        state = _random_state(shape, generator)
        fleet = Fleet(cluster.kinds, [state], ExpectedWaste())
        for gpus, nics in ((2, 1), (2, 2), (4, 2)):
            found = fleet.find(Request(1000, 1024, gpus, 1000, (), nics, 50))
            free = [at for at, left in enumerate(state.gpus) if left == 1000]
            open_nics = [at for at, left in enumerate(state.nics) if left >= 50]
            if len(free) < gpus or len(open_nics) < nics:
                assert found is None
                continue
            assert found is not None
            steps = {
                (some, others): _steps(shape, some, others)
                for some in combinations(free, gpus)
                for others in combinations(open_nics, nics)
            }
            assert steps[found.gpus, found.nics] == min(steps.values())


def _steps(shape: MachineShape, gpus: Sequence[int], nics: Sequence[int]) -> int:
    """Of the best pairing, tried one by one; a NIC serves its part of the GPUs."""
    room = -(-len(gpus) // len(nics))
    return min(
        sum(
            int(pair_level(shape, 1 << gpu, 1 << nic) or 0) // 10
            for gpu, nic in zip(gpus, order, strict=True)
        )
        for order in product(nics, repeat=len(gpus))
        if all(order.count(nic) <= room for nic in nics)
    )


@pytest.mark.parametrize("name", MACHINES)
def test_a_state_and_what_stands_for_it_hold_the_same(name: str) -> None:
    shape, generator = _shape(name), np.random.default_rng(5)
    canonical = CanonicalOrder(shape)
    for _ in range(100):
        state = _random_state(shape, generator)
        stands, order = canonical.ordered(state)
        assert canonical.ordered(stands) == (stands, None)
        if order is not None:
            assert stands.gpus == tuple(state.gpus[at] for at in order.gpus)
            assert stands.nics == tuple(state.nics[at] for at in order.nics)
            assert sorted(order.gpus) == list(range(shape.gpus))
            moved = {
                sum(1 << order.gpus[at] for at in range(shape.gpus) if mask >> at & 1)
                for mask in shape.partitions
            }
            assert moved == set(shape.partitions)
            for gpu in range(shape.gpus):
                for nic in range(shape.nics):
                    there = 1 << order.gpus[gpu], 1 << order.nics[nic]
                    assert pair_level(shape, 1 << gpu, 1 << nic) == pair_level(shape, *there)


def test_equal_groups_are_one_state() -> None:
    shape = _shape("hgx-h100")
    states = [
        State(0, 1, 1, tuple(0 if at == used else 1000 for at in range(8)), (100,) * shape.nics)
        for used in range(8)
    ]
    assert len({CanonicalOrder(shape).ordered(state)[0] for state in states}) < 8


def test_gpus_without_a_nic_go_to_who_wants_none() -> None:
    """On two switches, one of which has no NIC left, a request without NIC takes the GPU there."""
    shape = _shape("hgx-h100")
    nics = tuple(
        0 if pair_level(shape, 1, 1 << at) in {Level.PIX, Level.PXB} else 100 for at in range(shape.nics)
    )
    state = State(0, 64_000, 1 << 20, (1000,) * 8, nics)
    fleet = Fleet(nodes_of(shape, 1).kinds, [state], ExpectedWaste(Table(nics=(Demand(100, 1_000_000),))))
    found = fleet.find(Request(1000, 1024, 1, 1000))
    assert found is not None
    assert all(
        nics[at] == 0
        for at in range(shape.nics)
        if pair_level(shape, 1 << found.gpus[0], 1 << at) == Level.PIX
    )


def test_a_flat_machine_has_one_level() -> None:
    shape = flat(_shape("dgx-a100"))
    assert pair_level(shape, 1, 1 << (shape.nics - 1)) == Level.PIX

"""The policy `koordra` against its formula, written out plainly in fractions; and what it knows before it
learned."""

from __future__ import annotations

from fractions import Fraction

import pytest

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import Choice, FreeAmounts, Request, after
from koordra.placement.policy.expected_waste import StrandedCapacity
from koordra.placement.policy.workload import Online, Workload, expected
from koordra.placement.policy.workload_table import LearnedTable, PerGpuDemand
from koordra.simulation.fleet import INFEASIBLE, Fleet
from koordra.simulation.learning import FleetExpectedWaste
from tests.unit.placement import fleets


def _lacking(demands: tuple[PerGpuDemand, ...], usable: Fraction, free: int) -> Fraction:
    """Thousandths of GPU."""
    zero = Fraction(0)
    return sum(
        (
            Fraction(one.part, 10**6) * max(zero, usable - Fraction(1000 * free, one.per_gpu))
            for one in demands
            if one.per_gpu
        ),
        zero,
    )


def _worth(table: LearnedTable, state: FreeAmounts) -> tuple[Fraction, Fraction]:
    """What of the cost depends on the state alone (thousandths of GPU), and U."""
    holes = sum((Fraction(int(table.hole[free]), 1000) for free in state.gpus), Fraction(0))
    rest, model = sum(state.gpus), fleets.KINDS[state.kind].model
    usable = rest - holes
    short = max(_lacking(table.cores, usable, state.cpu), _lacking(table.memory, usable, state.memory))
    whole = sum(free == 1000 for free in state.gpus)
    blocks = sum(
        (
            Fraction(one.part, 10**6)
            * (
                rest - 1000 * whole
                if whole >= one.gpus and state.cpu >= one.cpu and (not one.models or model in one.models)
                else rest
            )
            for one in table.blocks
        ),
        Fraction(0),
    )
    reserved = Fraction(table.reserved.get(model, 0), 1000) * rest
    return holes + short / 2 + Fraction(3, 10) * blocks - reserved / 5, usable


def test_the_key_is_the_formula() -> None:
    requests = fleets.stream(60)
    table = fleets.table(requests)
    assert table.blocks
    assert table.cores
    assert table.memory
    assert table.reserved
    fleet = Fleet(fleets.KINDS, fleets.nodes(), FleetExpectedWaste(fleets.KINDS, table))
    compared = 0
    for request in requests:
        for node, state in enumerate(fleet.nodes):
            key = int(fleet.keys(request)[node])
            if key >= INFEASIBLE:
                continue
            then = after(state, request, Choice(fleet.policy.choose(fleet, node, request)))
            before, _ = _worth(table, state)
            now, usable = _worth(table, then)
            assert abs((key >> 10) - float(now - before + usable / 100)) <= 0.51
            compared += 1
        fleet.place(request)
    assert compared > 200


def test_the_gpu_that_leaves_least_is_taken() -> None:
    """810 goes where it leaves nothing, and 650 where 350 stays rather than 190, if 350 is what gets
    filled."""
    holes = [0] * 101
    holes[19], holes[35] = 190_000, 30_000
    table = LearnedTable(holes=tuple(holes))
    state = FreeAmounts(0, 24_000, 128_000, (1000, 840))
    fleet = Fleet(fleets.KINDS, [state], FleetExpectedWaste(fleets.KINDS, table))
    placement = fleet.place(Request(1000, 0, 1, 650))
    assert placement is not None
    assert placement.gpus == (0,)
    holes[19], holes[35] = 0, 300_000
    fleet = Fleet(fleets.KINDS, [state], FleetExpectedWaste(fleets.KINDS, LearnedTable(holes=tuple(holes))))
    placement = fleet.place(Request(1000, 0, 1, 650))
    assert placement is not None
    assert placement.gpus == (1,)


def test_before_it_learned_it_is_best_fit() -> None:
    states = [
        FreeAmounts(1, 96_000, 512_000, (1000,) * 8),
        FreeAmounts(1, 96_000, 512_000, (1000, 500) + (0,) * 6),
    ]
    fleet = Fleet(fleets.KINDS, states, FleetExpectedWaste(fleets.KINDS))
    placement = fleet.place(Request(1000, 1024, 1, 500))
    assert placement is not None
    assert (placement.node, placement.gpus) == (1, (1,))


def test_it_learns_from_what_arrives() -> None:
    requests = fleets.stream(200)
    policy = FleetExpectedWaste(fleets.KINDS)
    fleet = Fleet(fleets.KINDS, fleets.nodes(60), policy)
    online = Online({"T4": 40, "G2": 160, "V100": 80})
    changes = 0
    for request in requests:
        learned = online.observe(request)
        if learned is not None:
            policy.learn(learned)
            fleet.policy_changed()
            changes += 1
        fleet.place(request)
        assert policy.table.pods == 0 or policy.table.pods >= 32
    assert changes >= 5
    assert policy.table.holes[19] > 0
    assert fleets.drifted(fleet) == []


def test_the_table_survives_writing_and_reading() -> None:
    table = fleets.table(fleets.stream(100))
    assert LearnedTable.from_document(table.to_document()) == table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"apiVersion": "v0"}, "apiVersion"),
        ({"holes": [1, 2]}, "101 amounts"),
        ({"holes": [10**9] * 101}, "101 amounts"),
        ({"cores": None}, "learn it anew"),
    ],
)
def test_a_table_that_is_none_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidManifest, match=words):
        LearnedTable.from_document({**LearnedTable().to_document(), **change})


def test_old_arrivals_are_forgotten() -> None:
    workload = Workload(horizon=100)
    for _ in range(1000):
        workload.add(Request(1, 1, 1, 190))
    for _ in range(1000):
        workload.add(Request(1, 1, 1, 810))
    assert workload.count <= 100
    assert workload.counts.get(Request(1, 1, 1, 190), 0) == 0


def test_a_loaded_table_does_not_depend_on_the_order_of_arrival() -> None:
    requests = fleets.stream(100)
    capacity = {"T4": 8, "G2": 32}
    assert expected(Workload.of(requests), capacity) == expected(Workload.of(requests[::-1]), capacity)


def test_lacking_is_its_sum() -> None:
    demands = (PerGpuDemand(8000, 300_000), PerGpuDemand(12_000, 500_000), PerGpuDemand(3000, 200_000))
    lacking = StrandedCapacity(demands)
    for usable in (0, 190_000, 1_000_000, 7_654_321):
        for free in (0, 1000, 5000, 50_000, 1 << 30):
            exact = float(_lacking(demands, Fraction(usable, 1000), free)) * 1000
            assert abs(lacking.one(usable, free) - exact) <= 20


def test_infeasible_is_worse_than_any_cost() -> None:
    requests = fleets.stream(50)
    fleet = Fleet(fleets.KINDS, fleets.nodes(), FleetExpectedWaste(fleets.KINDS, fleets.table(requests)))
    for request in requests:
        fleet.place(request)
    keys = [key for request in requests for key in fleet.keys(request).tolist() if key < INFEASIBLE]
    assert max(keys) < INFEASIBLE >> 2

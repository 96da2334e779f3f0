"""The fleet keeps keys that are never stale, and breaks ties as written."""

from __future__ import annotations

import pytest

from koordra.errors import PlanError
from koordra.placement.free_amounts.state import FreeAmounts, Request
from koordra.placement.policy.workload import Workload
from koordra.simulation import fleet as fleet_module
from koordra.simulation.fleet import INFEASIBLE, Fleet
from koordra.simulation.learning import FleetExpectedWaste
from koordra.simulation.replay import NAMES, policy_named
from tests.unit.placement import fleets


def _fleet(name: str, requests: list[Request], count: int = 12) -> Fleet:
    policy = policy_named(name, fleets.KINDS, Workload.of(requests), fleets.table(requests))
    return Fleet(fleets.KINDS, fleets.nodes(count), policy)


@pytest.mark.parametrize("name", NAMES)
def test_kept_keys_are_what_is_computed_afresh(name: str) -> None:
    requests = fleets.stream(150)
    fleet = _fleet(name, requests)
    for request in requests:
        fleet.place(request)
    assert fleets.drifted(fleet) == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_given_twice_and_whatever_fits_is_placed(name: str) -> None:
    requests = fleets.stream(300, seed=2)
    fleet = _fleet(name, requests, count=6)
    for request in requests:
        feasible = any(
            state.cpu >= request.cpu
            and state.memory >= request.memory
            and sum(free >= request.milli for free in state.gpus) >= request.gpus
            and (not request.models or fleets.KINDS[state.kind].model in request.models)
            for state in fleet.nodes
        )
        placement = fleet.place(request)
        assert (placement is not None) == feasible
        if placement is not None:
            assert len(set(placement.gpus)) == request.gpus
    for state in fleet.nodes:
        assert min(state.cpu, state.memory, *state.gpus) >= 0


def test_ties_go_to_the_first_node_in_order() -> None:
    request = Request(1000, 1024, 1, 1000)
    state = FreeAmounts(1, 96_000, 512_000, (1000,) * 8)
    fleet = Fleet(fleets.KINDS, [state] * 5, policy_named("fgd", fleets.KINDS, Workload.of([request])))
    taken = [placed.node for _ in range(16) if (placed := fleet.place(request)) is not None]
    assert taken[:8] == [0] * 8
    assert taken[8:] == [1] * 8


def test_the_best_node_has_the_least_key() -> None:
    requests = fleets.stream(60)
    fleet = _fleet("koordra", requests)
    for request in requests:
        keys = fleet.keys(request).copy()
        fitting = [node for node in range(len(fleet.nodes)) if keys[node] < INFEASIBLE]
        best = fleet.place(request)
        first = min(fitting, key=lambda node: (keys[node], node), default=None)
        assert (best.node if best else None) == first


def test_rows_that_are_forgotten_change_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of too many classes."""
    requests = [request for seed in range(4) for request in fleets.stream(100, seed=seed)]
    table = fleets.table(requests)
    plain = Fleet(fleets.KINDS, fleets.nodes(), FleetExpectedWaste(fleets.KINDS, table))
    placed = [plain.place(request) for request in requests]
    monkeypatch.setattr(fleet_module, "_KEPT_BYTES", 16 * 8 * 12)
    tight = Fleet(fleets.KINDS, fleets.nodes(), FleetExpectedWaste(fleets.KINDS, table))
    assert [tight.place(request) for request in requests] == placed
    assert len(tight._rows) <= 16
    assert fleets.drifted(tight) == []


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(PlanError, match="'greedy' is not a policy; policies are random, best-fit"):
        policy_named("greedy", fleets.KINDS, Workload())

"""The fleet keeps keys that are never stale, breaks ties as written, and gives back what was released."""

from __future__ import annotations

import numpy as np
import pytest

from koordra.errors import PlanError
from koordra.placement.columns.arrays import INFEASIBLE, fits
from koordra.placement.columns.fleet import Fleet, Placement
from koordra.placement.columns.state import Request, State
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.simulation.policies import NAMES, policy_named
from tests.unit.placement import fleets


def _fleet(name: str, requests: list[Request], count: int = 12, **limits: int) -> Fleet:
    policy = policy_named(name, Workload.of(requests), fleets.table(requests))
    return Fleet(fleets.KINDS, fleets.nodes(count), policy, **limits)


@pytest.mark.parametrize("name", NAMES)
def test_kept_keys_are_what_is_computed_afresh(name: str) -> None:
    requests = fleets.stream(150)
    fleet = _fleet(name, requests)
    held: list[Placement] = []
    for number, request in enumerate(requests):
        placement = fleet.place(request)
        if placement is not None:
            held.append(placement)
        if number % 3 == 2 and held:
            fleet.release(held.pop(number % len(held)))
    assert fleets.drifted(fleet) == []


@pytest.mark.parametrize("name", NAMES)
def test_columns_and_rows_agree(name: str) -> None:
    """A class that comes late (row) gets the keys that an early one got (column)."""
    requests = fleets.stream(80)
    fleet = _fleet(name, requests)
    for request in requests:
        fleet.place(request)
    slots = np.array([at for at, state in enumerate(fleet.slots.states) if state is not None])
    for number in range(len(fleet.classes)):
        assert (fleet.policy.row(slots, number) == fleet._keys[number, slots]).all()


@pytest.mark.parametrize("name", NAMES)
def test_classes_that_were_expected_change_no_decision(name: str) -> None:
    requests = fleets.stream(150, seed=3)
    surprised, ready = _fleet(name, requests), _fleet(name, requests)
    ready.expect(sorted(set(requests)))
    assert len(ready.classes) == len(set(requests))
    assert [surprised.place(one) for one in requests] == [ready.place(one) for one in requests]
    assert fleets.drifted(ready) == []


def test_no_more_classes_are_expected_than_are_kept() -> None:
    requests = sorted(set(fleets.stream(150, seed=3)))
    fleet = _fleet("koordra", requests, most_classes=20)
    fleet.expect(requests)
    assert len(fleet.classes) == 10


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_given_twice_and_whatever_fits_is_placed(name: str) -> None:
    requests = fleets.stream(300, seed=2)
    fleet = _fleet(name, requests, count=6)
    for request in requests:
        feasible = any(
            state is not None
            and fits(state, request)
            and (not request.models or fleets.KINDS[state.kind].model in request.models)
            for state in fleet.nodes
        )
        placement = fleet.place(request)
        assert (placement is not None) == feasible
        if placement is not None:
            assert len(set(placement.gpus)) == request.gpus
    for state in fleet.nodes:
        assert state is not None
        assert min(state.cpu, state.memory, *state.gpus) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_releasing_everything_gives_the_empty_cluster(name: str) -> None:
    requests = fleets.stream(60)
    fleet = _fleet(name, requests)
    held = [placement for request in requests if (placement := fleet.place(request)) is not None]
    for placement in held[::-1]:
        fleet.release(placement)
    assert [state._replace(tags=0) for state in fleet.nodes if state] == fleets.nodes()


def test_ties_go_to_the_first_node_in_order() -> None:
    request = Request(1000, 1024, 1, 1000)
    state = State(1, 96_000, 512_000, (1000,) * 8)
    fleet = Fleet(fleets.KINDS, [state] * 5, policy_named("fgd", Workload.of([request])))
    assert fleet.find(request) is not None
    fleet.set_node(0, None)
    found = fleet.find(request)
    assert found is not None
    assert found.node == 1
    fleet.set_node(0, state)
    found = fleet.find(request)
    assert found is not None
    assert found.node == 0


def test_the_best_node_has_the_least_key() -> None:
    requests = fleets.stream(60)
    fleet = _fleet("koordra", requests)
    for request in requests:
        fleet.place(request)
    for request in set(requests):
        keys = fleet.keys_of_nodes(request)
        fitting = [node for node in range(len(fleet.nodes)) if keys[node] < INFEASIBLE]
        best = fleet.find(request)
        first = min(fitting, key=lambda node: (keys[node], node), default=None)
        assert (best.node if best else None) == first
        assert [fleet.key_on(node, request) for node in range(len(fleet.nodes))] == keys.tolist()


def test_a_state_that_nobody_is_in_is_not_chosen() -> None:
    """The only node with room goes; its state's keys must go too."""
    request = Request(1000, 1024, 1, 1000)
    states = [State(0, 24_000, 128_000, (1000, 1000)), State(0, 24_000, 128_000, (0, 0))]
    fleet = Fleet(fleets.KINDS, states, ExpectedWaste())
    assert fleet.find(request) is not None
    fleet.set_node(0, None)
    assert fleet.find(request) is None


def test_flapping_nodes_leave_nothing_behind() -> None:
    requests = fleets.stream(40)
    fleet = _fleet("koordra", requests)
    for request in requests:
        fleet.place(request)
    used = fleet.slots.used
    for turn in range(2000):
        number = turn % len(fleet.nodes)
        state = fleet.nodes[number]
        fleet.set_node(number, None)
        fleet.set_node(number, state)
    assert fleets.drifted(fleet) == []
    assert fleet.slots.used <= used + len(fleet.nodes)
    assert sum(map(len, fleet._members)) <= 3 * len(fleet.nodes) + 64 * fleet.slots.used


def test_too_many_classes_are_forgotten_and_decisions_stay_the_same() -> None:
    requests = [request for seed in range(4) for request in fleets.stream(100, seed=seed)]
    table = fleets.table(requests)
    plain = Fleet(fleets.KINDS, fleets.nodes(), ExpectedWaste(table))
    tight = Fleet(fleets.KINDS, fleets.nodes(), ExpectedWaste(table), most_classes=16)
    for request in requests:
        assert plain.place(request) == tight.place(request)
    assert len(tight.classes) <= 16
    assert fleets.drifted(tight) == []


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(PlanError, match="'greedy' is not a policy; policies are random, best-fit"):
        policy_named("greedy", Workload())

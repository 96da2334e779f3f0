"""What a placement wastes at least: never more than what it is found to waste, and by today's measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from koordra.allocator.devices.capacity import Demand, nano
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.solution import CostPair
from koordra.api.claims import ResourceClaim
from koordra.placement import engine_for, plan
from koordra.placement.candidates.candidate_list import Result, ResultCache
from koordra.placement.node_class import NodeClassUsage
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload_table import LearnedTable
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.quantity import parse
from tests.unit.allocator import machines

Object = dict[str, Any]


def _node(name: str, memory: str) -> list[Object]:
    gpu = machines.gpu(0, memory=memory, place=machines.place(0))
    return [machines.node(name), machines.slice_of([gpu], name=name)]


def _share(name: str, memory: str) -> Object:
    return machines.claim(name, machines.request("gpu", capacity={"memory": memory}))


def _allocated(claim: Object, *others: Object) -> Object:
    found = plan([*machines.device_classes(), *others, claim])
    return {**claim, "status": {"allocation": next(iter(found.allocations.values()))}}


def test_a_share_is_measured_by_the_gpus_of_the_node_it_would_be_on() -> None:
    """A quarter of the large GPU that is half of a usual one: it leaves 500 there, which closes a hole of
    750, and not 250."""
    large, held = _node("z", "80Gi"), _share("held", "20Gi")
    cluster = [*machines.device_classes(), *_node("a", "40Gi"), *_node("b", "40Gi"), *large]
    holes = tuple({25: 250_000, 75: 100_000}.get(step, 0) for step in range(101))
    engine = engine_for(learned=Learned(LearnedTable(holes=holes, pods=100)))
    found = plan([*cluster, _allocated(held, *large), _share("new", "20Gi")], engine=engine)
    assert found.nodes == {"default/new": "z"}


def test_the_bound_counts_only_what_a_share_adds_to_the_fuller_capacity() -> None:
    """Half of the memory is in use and a tenth of the cores; half of the cores beside that is a tenth more of
    the GPU."""
    gpu = machines.gpu(0, place=machines.place(0))
    holder = machines.claim("held", machines.request("gpu", capacity={"memory": "40Gi", "cores": "10"}))
    shown = [machines.node(), machines.slice_of([gpu])]
    state = machines.state_of([*shown, _allocated(holder, *shown)])
    waste = ExpectedWaste(LearnedTable(pods=1)).on_node(state)
    amounts = {name: nano(parse(amount)) for name, amount in (("memory", "8Gi"), ("cores", "50"))}
    least = waste.least(0, amounts)
    state.parts[0] = state.whole * 6 // 10
    one = SimpleNamespace(device=0, wanted=SimpleNamespace(spec=SimpleNamespace(admin_access=False)))
    found = waste(cast(PartialChoice, SimpleNamespace(placed=[one], demand=Demand({}))))
    assert found.share == 100
    assert 0 < least <= found.cost


def test_what_is_known_of_requests_is_forgotten_when_nodes_publish_anew() -> None:
    """So that request classes that nobody asks any more are not kept for ever."""
    engine = engine_for(learned=Learned(LearnedTable(pods=100)))
    for turn in range(5):
        node, pool = _node("a", "80Gi")
        node["metadata"]["labels"]["turn"] = str(turn)
        plan([*machines.device_classes(), node, pool, _share("c", f"{1 + turn}Gi")], engine=engine)
    assert len(engine.order._requests) == 1


def test_costs_and_bounds_of_an_older_table_are_not_used() -> None:
    known, state = ResultCache(), NodeClassUsage(None, False)
    for result in (
        Result(cost=CostPair(1, (5, 0, 0, 0, 2)), epoch=1),
        Result(bound=CostPair(1, (5,)), epoch=1),
    ):
        known[state] = result
        assert known.saying(state, 1, CostPair(0, (9,)), 1) is result
        assert known.saying(state, 2, CostPair(0, (9,)), 1) is None
    nowhere = Result(epoch=1)
    known[state] = nowhere
    assert known.saying(state, 2, None, 1) is nowhere


def test_that_so_many_placements_did_not_decide_it_is_no_answer_to_who_tries_more() -> None:
    known, state = ResultCache(), NodeClassUsage(None, False)
    known[state] = result = Result(undecided=20)
    assert [known.saying(state, 0, None, budget) for budget in (10, 20, 21)] == [result, result, None]


def test_nodes_are_ordered_anew_when_cards_are_cut_otherwise() -> None:
    devices, counters = machines.cut_card(
        0, [("1g.10gb", 0, 1, 1), ("1g.10gb", 1, 1, 1)], slices=2, compute=2, place=machines.place(0)
    )
    engine = engine_for(learned=Learned(LearnedTable(pods=100)))
    whole = [*machines.device_classes(), *_node("a", "80Gi")]
    plan(whole, engine=engine)
    before = engine.order.epoch
    whole[-2] = machines.node("a", labels={"other": "label"})
    plan(whole, engine=engine)
    assert engine.order.epoch == before
    sliced = [
        machines.node("b"),
        machines.slice_of(devices, name="b"),
        machines.counters_of([counters], name="b"),
    ]
    for entry in sliced[1:]:
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    claim = machines.claim("c", machines.request("mig", "mig"))
    plan([*whole, *sliced, claim], engine=engine)
    assert engine.order.epoch == before + 1
    resolved = engine.resolve(ClaimGroup((ResourceClaim.from_dict(claim),)))
    request = engine.order.request(resolved)
    assert request is not None
    assert [one.profiles for one in request.slices] == [("1g.10gb",)]

"""What one node says to a group: an offer, a bound, a proof that nothing fits, or that the budget ran out;
and what is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koordra.allocator import group_search
from koordra.allocator.group_search import GroupSearch, NodeAnswer
from koordra.allocator.search.search import BUDGET, Search
from koordra.allocator.search.solution import CostPair, Outcome
from koordra.api.claims import ResourceClaim
from koordra.placement import engine_for
from koordra.placement.manifests import Manifests
from koordra.placement.request.claim_groups import ClaimGroup
from tests.unit.allocator.machines import (
    claim,
    device_classes,
    gpu,
    joint,
    machine,
    nic,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]


class Asked:
    """A claim, asked of the nodes that are published. `searched`: the nodes that were searched."""

    def __init__(
        self, published: Sequence[Dict], wanted: Dict, *, policy: str = "koordra", budget: int = BUDGET
    ) -> None:
        self.engine = engine_for(policy=policy)
        Manifests.of([*device_classes(), *published]).fill(self.engine.index)
        self.engine.settle()
        self.resolved = self.engine.resolve(ClaimGroup((ResourceClaim.from_dict(wanted),)))
        self.searched: list[str] = []
        self.placement = GroupSearch(
            self.resolved.asked,
            self.resolved.siblings,
            policy=self.engine.policy,
            features=self.engine.features,
            budget=budget,
        )
        search = self.placement._search

        def noted(name: str, *given: Any) -> NodeAnswer:
            self.searched.append(name)
            return search(name, *given)

        self.placement._search = noted  # type: ignore[method-assign]

    def on(self, name: str, **options: Any) -> NodeAnswer:
        index = self.engine.index
        return self.engine.search(
            self.resolved, index.nodes[name], index.taken, placement=self.placement, **options
        )


ONE, TWO = claim("a", request("g")), claim("a", request("g", count=2))


def test_what_costs_no_less_than_the_ceiling_is_a_bound_and_no_offer() -> None:
    offer = Asked(machine(4, 0), TWO).on("node-1").offer
    assert offer is not None
    above = offer.cost._replace(cluster=(offer.cost.cluster[0] + 1,))
    below = Asked(machine(4, 0), TWO).on("node-1", ceiling=above).offer
    assert below is not None
    assert below.cost == offer.cost
    cut = Asked(machine(4, 0), TWO).on("node-1", ceiling=offer.cost)
    assert (cut.offer, cut.bound, cut.exhausted) == (None, offer.cost, False)


def test_a_wider_scope_than_the_ceiling_pays_for_is_not_tried() -> None:
    pair = claim(
        "a", request("g"), request("n", "nic"), configs=[joint("PCIeSwitch", enforcement="Preferred")]
    )
    offer = Asked(machine(1, 1), pair).on("node-1").offer
    assert offer is not None
    cut = Asked(machine(1, 1), pair).on("node-1", ceiling=offer.cost)
    assert (cut.offer, cut.bound) == (None, offer.cost)


def test_what_costs_more_than_the_ceiling_however_it_is_placed_is_not_tried() -> None:
    """Two GPUs without a switch in common cost the claim something in any case."""
    asked = Asked(machine(4, 0), TWO)
    least = asked.on("node-1", ceiling=CostPair(1)).bound
    assert least is not None
    assert least.claim > 1
    assert asked.on("node-1", ceiling=least).bound == least
    assert asked.placement.left == BUDGET


def test_that_nothing_fits_is_proved_under_a_ceiling_too() -> None:
    """One card has room for two shares of 30 GiB, and for one of 60 GiB, but not for one of each."""
    small, large = (request(f"r{size}", capacity={"memory": f"{size}Gi"}) for size in (30, 60))
    asked = Asked(machine(1, 0), claim("a", small, large))
    answer = asked.on("node-1", ceiling=CostPair(10**12))
    assert (answer.offer, answer.bound, answer.exhausted) == (None, None, False)
    assert answer.tried == ()


def alike(*names: str, gpus: int = 1) -> list[Dict]:
    return [entry for name in names for entry in machine(gpus, 0, name=name)]


def test_of_nodes_that_are_alike_one_is_searched_and_each_gives_its_reasons() -> None:
    asked = Asked(alike("a", "b"), TWO)
    answers = [asked.on(name, alike="kind") for name in "ab"]
    assert asked.searched == ["a"]
    assert [{why.node for _, why in answer.reasons()} for answer in answers] == [{"a"}, {"b"}]


def test_what_fits_on_one_of_the_nodes_that_are_alike_is_not_looked_for_on_the_next() -> None:
    asked = Asked(alike("a", "b"), ONE)
    offers = [asked.on(name, alike="kind").offer for name in "ab"]
    assert (offers[0] is None, offers[1], asked.searched) == (False, None, ["a"])


def test_a_budget_that_ran_out_says_nothing_of_the_nodes_that_are_alike() -> None:
    asked = Asked(alike("a", "b", gpus=2), TWO, budget=2)
    answers = [asked.on("a", alike="kind")]
    asked.placement.left = 0
    answers.append(asked.on("b", alike="kind"))
    assert asked.searched == ["a", "b"]
    assert [answer.exhausted for answer in answers] == [True, True]


def test_nodes_of_no_kind_are_each_searched() -> None:
    asked = Asked(alike("a", "b"), ONE)
    assert [asked.on(name).offer is None for name in "ab"] == [False, False]
    assert asked.searched == ["a", "b"]


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_the_budget_is_the_number_of_placements_that_may_be_tried(policy: str) -> None:
    """Three: the first card, again for the second device of the request, and the second card."""
    for budget, exhausted in ((2, True), (3, False)):
        answer = Asked(machine(2, 0), TWO, policy=policy, budget=budget).on("node-1")
        assert (answer.offer is None, answer.exhausted) == (exhausted, exhausted)


def test_where_nothing_fits_a_pool_that_cannot_be_trusted_is_the_claims_error() -> None:
    published = machine(2, 0)
    published[1]["spec"]["devices"][1]["name"] = "gpu-0"
    error = Asked(published, ONE).on("node-1").error
    assert error is not None
    assert error.claim == "default/a"
    assert "duplicate device name gpu-0" in error.reason.detail


@pytest.mark.parametrize(
    ("tries", "shares", "walks"),
    [
        (1, {}, 1),  # that there is no packing is a proof
        (1, None, 2),  # packing gave up, so that the walk is made with all of the budget
        (None, None, 1),  # there was nothing to pack, and no budget is left for a second walk
    ],
)
def test_a_walk_that_was_cut_short_for_packing_is_made_again(
    tries: int | None, shares: dict[Any, Any] | None, walks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[int] = []
    run = Search.run

    def noted(search: Search) -> Outcome:
        budgets.append(search.budget)
        return run(search)

    monkeypatch.setattr(Search, "run", noted)
    monkeypatch.setattr(group_search, "tries_before_packing", lambda _: tries)
    monkeypatch.setattr(group_search, "packed", lambda _: shares)
    answer = Asked(machine(8, 0), TWO, budget=3 if tries else 1).on("node-1")
    assert budgets == [1, 3][:walks]
    assert answer.exhausted == (shares is None and walks == 1)


def test_a_gpu_without_a_nic_in_its_scope_does_not_count_for_a_common_value() -> None:
    """Each NUMA node has two GPUs, but only one of them has a NIC at its switch."""
    devices = [gpu(n, place=place(n, per_numa=2)) for n in range(4)]
    devices += [nic(n, place=place(n, per_numa=2)) for n in (0, 2)]
    wanted = claim(
        "a",
        request("gpu", count=2),
        request("nic", "nic", 2),
        configs=[joint("PCIeSwitch")],
        constraints=[{"requests": ["gpu"], "matchAttribute": "koordra.io/numaNode"}],
    )
    asked = Asked([node(), slice_of(devices)], wanted)
    answer = asked.on("node-1")
    assert (answer.offer, answer.exhausted, asked.placement.left) == (None, False, BUDGET)

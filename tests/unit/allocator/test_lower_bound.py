"""What the search says along its first way that the rest costs at least: one figure before each request, and
one at the end.

They are worked out by hand from what the open requests may take (koordra/allocator/search/lower_bound.py);
the terms themselves are in test_cost_bound.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.search.lower_bound import LowerBound, _Option
from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import CostPair, Outcome, Position
from koordra.placement import plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    counters_of,
    cut_card,
    device_classes,
    devices_of,
    joint,
    machine,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]

MILLION, STEP = 10**6, 10**4
"""A step of nearness, and one of compactness."""

HGX = machine(8, 8)
"""Each GPU and NIC with a switch and a root of its own, four on a NUMA node; no NVLink."""


class Seen:
    """What the first search knows before it starts. `bounds` are those of its first way."""

    def __init__(self, objects: Sequence[Dict], *requests: Dict, configs: Sequence[Dict] = ()) -> None:
        self.bounds: list[int | None] = []
        self.nics_after: list[list[int]] = []
        self.cards_after: list[tuple[int, int]] = []
        run = Search.run

        def noted(search: Search) -> Outcome:
            if not self.bounds:
                self.nics_after, self.cards_after = search.nics_after, search.cards_after
                self._walk(search)
            return run(search)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Search, "run", noted)
            plan([*device_classes(), *objects, claim("a", *requests, configs=configs)], policy="koordra")

    def _walk(self, search: Search) -> None:
        at, steps = Position(0), []
        self.bounds = [written(search.least(0))]
        while at.request < len(search.requests):
            steps.append(search._moves(at))
            at = next(steps[-1])
            if at.alternative is None:
                self.bounds.append(written(search.least(at.request)))
        for step in reversed(steps):
            step.close()


def written(bound: CostPair | None) -> int | None:
    return None if bound is None else bound.written if bound.cluster else bound.claim


def test_whole_devices() -> None:
    start = 2 * MILLION + 2 * STEP + 750
    # Once the GPUs are chosen, a NUMA node is broken of which two are left.
    seen = Seen(HGX, request("g", count=2), request("n", "nic", 2))
    assert seen.bounds == [start, start + 20, start + 20]


def test_shares_of_one_request_are_on_different_cards() -> None:
    seen = Seen(machine(4, 0), request("g", count=2, capacity={"memory": "40Gi"}))
    assert seen.bounds == [2 * STEP + 2 * 500 + 750, 2 * STEP + 2 * 500 + 20 + 750]


def test_shares_that_do_not_fit_together_need_a_card_each() -> None:
    large = {"memory": "60Gi"}
    seen = Seen(machine(4, 0), request("a", capacity=large), request("b", capacity=large))
    # Before the second, the three cards left on the NUMA node may still be taken: broken groups are not
    # certain.
    assert seen.bounds == [
        2 * STEP + 2 * 250 + 625,
        2 * STEP + 2 * 250 + 625,
        2 * STEP + 2 * 250 + 20 + 625,
    ]


def test_shares_that_fit_together_may_be_on_one_card() -> None:
    small = {"memory": "20Gi"}
    seen = Seen(machine(4, 0), request("a", capacity=small), request("b", capacity=small))
    assert seen.bounds[0] == 500 + 875
    assert seen.bounds[1] == 750 - 250 + 875


def test_of_several_alternatives_the_fewest_devices_are_certain() -> None:
    two, one = request("two", count=2)["exactly"], request("one")["exactly"]
    listed = {
        "name": "gpus",
        "firstAvailable": [{"name": "two", **two}, {"name": "one", **one}],
    }
    assert Seen(HGX, listed).bounds == [750, 2 * STEP + 20 + 750]


def test_parts_of_a_card_are_nobody_elses() -> None:
    parts = [("1g.10gb", 0, 1, 1), ("1g.10gb", 1, 1, 1), ("2g.20gb", 0, 2, 2)]
    devices, counters = cut_card(0, parts, slices=2, compute=2, place=place(0))
    card = [node(), slice_of(devices), counters_of([counters])]
    for entry in card[1:]:
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    # The first destroys itself and the large one: by the squares of their sizes 5 of 6.
    assert Seen(card, request("part", "mig", capacity={"memory": "10Gi"})).bounds == [666, 833 + 666]


def test_shares_of_nics_may_coincide_but_where_each_gpu_has_its_own() -> None:
    quarter = {"share": "25"}
    asked = [
        request("g", count=2),
        request("m", "nic", capacity=quarter),
        request("n", "nic", capacity=quarter),
    ]
    near = 2 * MILLION + 2 * STEP + 750
    assert Seen(HGX, *asked).bounds[:2] == [near + 500, near + 20 + 500]
    paired = Seen(HGX, *asked, configs=[joint("NUMANode")])
    assert paired.bounds[:3] == [near + 1500, near + 20 + 1500, near + 20 + 1500]
    on_switches = Seen(HGX, *asked, configs=[joint("PCIeSwitch")])
    assert on_switches.bounds == [near + 1500, near + 20 + 1500, near + 20 + 1500, near + 20 + 1500]


def test_a_gpu_that_is_not_in_the_joint_allocation_needs_no_nic() -> None:
    asked = [request("g"), request("n", "nic", capacity={"share": "25"}), request("h")]
    seen = Seen(HGX, *asked, configs=[joint("NUMANode", requests=["g", "n"])])
    near = 2 * MILLION + 2 * STEP + 750 + 750
    # The second GPU is on the NUMA node of the first one's NIC at best: 4 steps away instead of 1.
    assert seen.bounds == [near, near, near + 3 * MILLION, near + 3 * MILLION + 20]


def test_what_later_requests_can_bring_is_counted_per_joint_allocation() -> None:
    asked = [request("g"), request("n", "nic", 2), request("m", "nic"), request("h", "nic")]
    assert Seen(HGX, *asked, configs=[joint("NUMANode", requests=["g", "n", "m"])]).nics_after == [
        [3, 1, 0, 0]
    ]


def in_use(device: str, **consumed: str) -> Dict:
    result = {"request": "r", "driver": "koordra.io", "pool": "node-1", "device": device, "shareID": "s"}
    holder = claim(f"on-{device}", namespace="elsewhere")
    return allocated(holder, {"devices": {"results": [{**result, "consumedCapacity": consumed}]}})


@pytest.mark.parametrize("scopes", [("Node", "NUMANode"), ("NUMANode", "Node")])
def test_a_nic_that_one_rule_needs_serves_another_rule_too(scopes: Sequence[str]) -> None:
    """The card in use is the better one. Its NUMA node has one NIC, which is all that the rule over the node
    lacks."""
    asked = claim(
        "a",
        request("g", capacity={"memory": "20Gi"}),
        request("n", "nic", capacity={"share": "25"}),
        configs=[joint(scope) for scope in scopes],
    )
    busy = in_use("gpu-1", memory="40Gi", cores="0", slots="1")
    found = plan([*device_classes(), *machine(2, 2, per_numa=1), busy, asked])
    assert devices_of(found.allocations["default/a"]) == ["gpu-1", "nic-1"]


def test_a_nic_that_one_rule_needs_leaves_another_one_to_further_gpus() -> None:
    """GPU 1 is given NIC 0; once its switch has got NIC 1, NIC 0 is there for GPU 0 as far as the rule over
    the node goes."""
    asked = claim(
        "a",
        request("g", capacity={"memory": "40Gi"}),
        request("n", "nic", capacity={"share": "50"}),
        request("h", capacity={"memory": "80Gi"}),
        request("o", "nic", capacity={"share": "100"}),
        configs=[joint("PCIeSwitch"), joint("Node")],
    )
    busy = [
        in_use("gpu-1", memory="40Gi", cores="0", slots="1"),
        in_use("nic-0", share="50", bandwidth="0"),
    ]
    found = plan([*device_classes(), *machine(3, 3), *busy, asked], policy="Binpack")
    assert devices_of(found.allocations["default/a"]) == ["gpu-1", "nic-0", "gpu-0", "nic-1"]


def test_what_later_requests_take_of_a_partition_is_counted() -> None:
    asked = [request("g", count=2), request("n", "nic"), request("h", count=2)]
    honored = [config("GpuConfig", partition="Honor")]
    seen = Seen(machine(8, 8, links="hopper"), *asked, configs=honored)
    assert seen.cards_after == [(2, 2), (2, 2), (0, 0)]


def test_what_open_requests_waste_is_the_least_of_each_together() -> None:
    """Admin access wastes nothing, and a request that no device can serve is nobody's."""
    least = {(0, 5): 70, (0, None): 30, (1, None): -20}
    waste = SimpleNamespace(least=lambda device, amounts: least[device, amounts and amounts["memory"]])
    requests = [
        [_Option(2, {0: {"memory": 5}}, admin=False), _Option(3, {0: None}, admin=False)],
        [_Option(1, {}, admin=False)],
        [_Option(1, {0: None, 1: None}, admin=False)],
        [_Option(1, {0: None}, admin=False), _Option(1, {0: None}, admin=True)],
    ]
    for known, expected in ((waste, [70, -20, -20, 0, 0]), (None, [0] * 5)):
        cost = cast(Any, SimpleNamespace(waste=known))
        assert LowerBound._wastes_of(cast(Any, None), requests, cost) == expected

"""What a partial choice costs at least, to the last unit: a bound that is too low changes no answer, only the
effort.

`Cost.bound` is told what is chosen and what remains; the sums are worked out by hand from the table in
koordra/allocator/score.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.devices.capacity import Demand, nano
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.score import Cost, policy_of
from koordra.allocator.search.packing import SubsetSums
from koordra.allocator.search.partial_choice import Clauses, PartialChoice
from koordra.allocator.search.remaining_supply import DeviceTypeDemand, OpenRequests
from koordra.allocator.search.solution import Placed
from koordra.quantity import parse
from tests.unit.allocator.machines import allocated, claim, machine, state_of

Dict = dict[str, Any]

MILLION, STEP = 10**6, 10**4
"""A step of nearness, and one of compactness."""

NOBODY = DeviceTypeDemand()
NONE = frozenset[int]()


class Partial:
    """A node of which some devices are chosen. `taken`: of each device, the memory of a card or the share of
    a NIC."""

    def __init__(
        self, published: Sequence[Dict], taken: Mapping[int, str] | None = None, *, policy: str = "koordra"
    ) -> None:
        self.state = state = state_of(published)
        halves = policy_of(policy)
        assert halves is not None
        self.cost = Cost(state, halves)
        for device, amount in (taken or {}).items():
            name = "memory" if "memory" in state.capacity[device] else "share"
            state.used[device] = {name: nano(parse(amount))}
            state.parts[device] = state.part(device, state.used[device])
            state.holders[device] = 1

    def bound(
        self,
        gpus: Sequence[int] = (),
        others: Sequence[int] = (),
        *,
        of_gpus: DeviceTypeDemand = NOBODY,
        of_others: DeviceTypeDemand = NOBODY,
        brings_nic: bool = False,
        nics: frozenset[int] = NONE,
        may_get: frozenset[int] = NONE,
        more: tuple[int, int] = (0, 0),
        alternative: int = 0,
    ) -> int:
        choice = PartialChoice(
            [],
            self.state,
            Clauses(partitions=False),
            scored=True,
            strict=True,
        )
        wanted = cast(RequestAlternative, SimpleNamespace(claim=0, request=0, index=alternative))
        choice.placed = [Placed(wanted, device, Demand({}), shared=True) for device in (*gpus, *others)]
        tail = OpenRequests(of_gpus, of_others, brings_nic, nics, may_get or nics)
        return self.cost.bound(
            choice, gpus, others, tail=tail, more_gpus=more[0], more_others=more[1]
        ).written


def shared(*devices: int, most: int, **fields: Any) -> DeviceTypeDemand:
    """Devices that may serve what remains, all of them shared."""
    return DeviceTypeDemand(most=most, devices=frozenset(devices), shared=frozenset(devices), **fields)


def memory(*amounts: str) -> tuple[tuple[str, SubsetSums], ...]:
    """What the open requests take of cards."""
    return (("memory", SubsetSums.suffixes((tuple((nano(parse(one)),) for one in amounts),))[0]),)


HGX = machine(8, 8)
"""Each GPU and NIC with a switch and a root of its own, four on a NUMA node; NIC n is the device 8 + n."""

FOURS = machine(8, 0, per_switch=4, per_numa=8)
"""Two switch groups of four, one NUMA node: a card is in whole groups that weigh 4 + 1."""


def test_where_nothing_remains_it_is_what_the_choice_costs() -> None:
    chosen = Partial(HGX, {0: "80Gi", 8: "100"})
    assert chosen.bound([0], [8]) == MILLION + 10 * 3 + 875
    assert chosen.bound([0], [8], alternative=2) == 2 * 10**9 + MILLION + 10 * 3 + 875


def test_broken_groups_count_less_what_the_rest_may_take_of_them() -> None:
    chosen = Partial(FOURS, {0: "80Gi"})
    two = 2 * chosen.state.whole
    rest = shared(*range(1, 8), most=2, thousandths=2000, parts=two)
    # Of a switch group 3 cards are left and of the NUMA node 7; two more cards take no more than 2 * (4 + 1)
    # of that.
    assert chosen.bound([0], of_gpus=rest, more=(1, 0)) == 10 * (4 * 3 + 7 - 2 * 5) + 625
    many = shared(*range(1, 8), most=7, thousandths=7000, parts=chosen.state.whole * 7)
    assert chosen.bound([0], of_gpus=many, more=(1, 0)) == 0


def test_more_cards_open_as_few_groups_as_they_can() -> None:
    chosen = Partial(FOURS, {0: "80Gi"})
    rest = shared(*range(1, 8), most=4, thousandths=4000, parts=4 * chosen.state.whole)
    # Three of four find room beside the first; the other switch group has a root of its own.
    assert chosen.bound([0], of_gpus=rest, more=(3, 0)) == 375
    assert chosen.bound([0], of_gpus=rest, more=(4, 0)) == 2 * STEP + 375


def test_cards_count_what_the_chosen_leave_and_the_fullest_of_the_others_less_what_is_taken() -> None:
    # 250, 400 and 700 are left; in all 1.65 cards of 8 are taken.
    chosen = Partial(HGX, {0: "60Gi", 1: "48Gi", 2: "24Gi"})
    rest = shared(1, 2, most=1, thousandths=100)
    assert chosen.bound([0], of_gpus=rest) == 250 - 100 + 793
    assert chosen.bound([0], of_gpus=rest, more=(1, 0)) == 2 * STEP + 250 + 400 - 100 + 793
    alone = shared(1, 2, most=1, unshared=1)
    assert chosen.bound([0], of_gpus=alone, more=(1, 0)) == 2 * STEP + 250 + 793
    assert chosen.bound([0], of_gpus=shared(0, 2, most=1), more=(1, 0)) == 2 * STEP + 250 + 700 + 793


def test_nics_count_as_cards_do() -> None:
    chosen = Partial(HGX, {8: "75", 9: "60"})
    rest = shared(9, 10, most=1, thousandths=100)
    assert chosen.bound(others=[8], of_others=rest) == 250 - 100 + 1000
    assert chosen.bound(others=[8], of_others=rest, more=(0, 1)) == 250 + 400 - 100 + 1000


@pytest.mark.parametrize(("free", "least"), [(11, 900), (12, 900), (13, 400)])
def test_few_cards_are_tried_for_a_set_that_has_the_room(free: int, least: int) -> None:
    """Two shares of 30Gi: of 8Gi nothing can be used, of 32Gi and of 40Gi 30Gi each; an empty card would
    leave 1000."""
    chosen = Partial(machine(14, 0), {0: "72Gi", 1: "48Gi", 2: "40Gi"})
    rest = shared(*range(1, 1 + free), most=2, sums=memory("30Gi", "30Gi"))
    assert chosen.bound([0], of_gpus=rest, more=(1, 0)) == 2 * STEP + 100 + least + 857


def test_a_card_more_than_needed_costs_its_way_to_a_nic() -> None:
    """As above, beside a NIC: two cards would be a million apart from one."""
    chosen = Partial(HGX, {0: "72Gi", 1: "48Gi", 2: "40Gi", 8: "100"})
    rest = shared(1, 2, 3, most=2, sums=memory("30Gi", "30Gi"))
    near = (1 + 4) * MILLION
    assert chosen.bound([0], [8], of_gpus=rest, more=(1, 0)) == near + 2 * STEP + 100 + 1000 + 750


def test_gpus_are_as_near_as_to_any_nic_that_they_surely_have() -> None:
    chosen = Partial(HGX, {0: "80Gi", 9: "100", 12: "100"})
    rest = 10 * 3 + 875
    beside, far = frozenset({9}), frozenset({12})  # NODE and SYS
    assert chosen.bound([0], [9]) == 4 * MILLION + rest
    assert chosen.bound([0], [12], nics=beside, may_get=beside | far) == 4 * MILLION + rest
    assert chosen.bound([0], brings_nic=True, nics=far) == 5 * MILLION + rest
    assert chosen.bound([0], brings_nic=True, nics=far, may_get=beside | far) == 4 * MILLION + rest
    assert chosen.bound([0], nics=far) == rest
    assert chosen.bound([0], brings_nic=True) == rest
    further = DeviceTypeDemand(most=1, devices=frozenset({1, 4}))
    assert chosen.bound([0], [9], of_gpus=further, more=(1, 0)) == (4 + 1) * MILLION + 2 * STEP + 875


def test_spread_counts_what_the_shares_use_and_the_node_has_in_use() -> None:
    chosen = Partial(HGX, {0: "60Gi", 8: "50"}, policy="Spread")
    rest = shared(1, most=1, thousandths=1000, parts=chosen.state.whole)
    # Steps to the NIC count one each, and so do a switch and a root more.
    assert chosen.bound([0], [8], of_gpus=rest, more=(1, 0)) == 1 + 4 + 2 + 750 + 500 + 93


def test_more_given_out_than_is_published_counts_less_than_nothing() -> None:
    result = {
        "request": "r",
        "driver": "koordra.io",
        "pool": "node-1",
        "device": "gpu-0",
        "shareID": "s",
        "consumedCapacity": {"memory": "100Gi", "slots": "1"},
    }
    held = allocated(claim("held"), {"devices": {"results": [result]}})
    assert Partial([*machine(1, 0), held]).bound() == -250 - 250


def test_a_card_of_which_too_much_was_given_out_leaves_nothing_of_another() -> None:
    chosen = Partial(HGX, {0: "100Gi", 1: "60Gi"})
    assert chosen.bound([0, 1]) == 2 * STEP + 10 * 2 + 250 + 750


def test_sets_with_the_room_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ways leave the same cards in the same state."""
    asked, cover = [], DeviceTypeDemand.least_cover

    def counted(demand: DeviceTypeDemand, *given: Any, **options: Any) -> int:
        asked.append(given)
        return cover(demand, *given, **options)

    monkeypatch.setattr(DeviceTypeDemand, "least_cover", counted)
    chosen = Partial(HGX, {0: "72Gi", 1: "48Gi"})
    rest = shared(1, 2, most=2, sums=memory("30Gi", "30Gi"))
    again = [chosen.bound([0], of_gpus=rest, more=(1, 0)) for _ in range(3)]
    assert (len(set(again)), len(asked)) == (1, 1)


@pytest.mark.parametrize(
    ("free", "more", "penalty", "least"),
    [
        ([(400, 1)], 1, 0, 0),
        ([(400, 1), (1000, 3)], 1, 0, 1000),
        ([(400, 1), (500, 2), (1000, 3)], 1, 0, 900),
        ([(400, 1), (500, 2), (1000, 3)], 1, 50, 950),
        ([(400, 1), (500, 2), (1000, 3)], 1, 100, 1000),
        ([(400, 1), (500, 2), (1000, 3)], 3, 100, 1900),
    ],
)
def test_the_least_set_with_room_for_two_shares(
    free: Sequence[tuple[int, int]], more: int, penalty: int, least: int
) -> None:
    """Of 30Gi each: the chosen card has 8Gi, the others 32, 40 and 80. 0 where no set has the room."""
    state = Partial(machine(4, 0), {0: "72Gi", 1: "48Gi", 2: "40Gi"}).state
    demand = shared(1, 2, 3, most=2, sums=memory("30Gi", "30Gi"))
    assert demand.least_cover(state, [0], free, more=more, penalty=penalty) == least

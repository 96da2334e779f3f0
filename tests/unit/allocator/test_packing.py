"""How many devices amounts need at least, and how long the search tries before it packs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.search import packing
from koordra.allocator.search.packing import Item, Packing, SubsetSums, packed, tries_before_packing
from koordra.allocator.search.search import _Best


@pytest.mark.parametrize(
    ("held", "free", "needed"),
    [
        ([], [8, 8, 8], 2),
        ([], [8], None),
        ([5], [4, 4], 2),
        ([5, 4, 3], [8], 0),
        ([13], [8], 0),
        ([2], [8, 8], 2),
        ([], [], None),
    ],
)
def test_devices_that_three_amounts_need(
    held: Sequence[int], free: Sequence[int], needed: int | None
) -> None:
    """3, 3 and 3: of 8 two of them fill 6, of 5 and of 4 one fills 3, and of 2 nothing can be used."""
    sums = SubsetSums.suffixes((((3,), (3,), (3,)),))[0]
    assert sums.devices_needed(held, free) == needed


FEW, SOME = packing._FEW_TRIES, packing._TRIES


@pytest.mark.parametrize(
    ("items", "rooms", "tries"),
    [
        # Three shares of five fill two devices of ten and five: everyone is full afterwards.
        ([{0: (5,), 1: (5,)}] * 3, {0: (10,), 1: (5,)}, FEW),
        ([{0: (5,), 1: (5,)}] * 2, {0: (5,), 1: (5,)}, SOME),
        ([{0: (4,), 1: (5,)}] * 3, {0: (10,), 1: (5,)}, None),
        # A device with nothing left of what is filled is not filled by it.
        ([{0: (5,), 1: (0,)}, {0: (5,)}, {0: (5,)}], {0: (10,), 1: (0,)}, SOME),
        ([{0: (5, 1), 1: (5, 1)}] * 3, {0: (10, 9), 1: (5, 9)}, FEW),
    ],
)
def test_shares_that_fill_their_devices_are_packed_soon(
    items: Sequence[Mapping[int, tuple[int, ...]]],
    rooms: Mapping[int, tuple[int, ...]],
    tries: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [Item(number, takes) for number, takes in enumerate(items)]
    capacities = [str(at) for at in range(len(rooms[0]))]
    monkeypatch.setattr(packing, "_items", lambda _: (capacities, found))
    state = SimpleNamespace(room=lambda device, name: rooms[device][int(name)])
    search = SimpleNamespace(requests=[None] * 3, state=state)
    assert tries_before_packing(cast(Any, search)) == tries
    search.requests.pop()
    assert tries_before_packing(cast(Any, search)) is None


def test_what_was_cut_off_is_a_bound_unless_the_search_gave_up() -> None:
    best = _Best(5)
    assert [best.may_improve(least) for least in (4, 9, 7, 8)] == [True, False, False, False]
    assert best.outcome().bound == 7
    gave_up = best.outcome(exhausted=True)
    assert (gave_up.bound, gave_up.exhausted) == (None, True)
    best.offer([], 4)
    assert (best.outcome().cost, best.outcome().bound) == (4, None)


def test_the_largest_part_of_what_there_is_comes_first() -> None:
    """50 of 200 are less than 9 of 20. Of what no device has, nothing is taken."""
    rooms = {0: (100, 10, 0), 1: (100, 10, 0)}
    items = [Item("a", dict.fromkeys(rooms, (50, 0, 0))), Item("b", dict.fromkeys(rooms, (10, 9, 0)))]
    found = Packing(items, rooms, budget=10).solve()
    assert found is not None
    assert [item.request for item, _ in found] == ["b", "a"]


@pytest.mark.parametrize(("budget", "found"), [(1, False), (2, True)])
def test_no_more_items_are_placed_than_the_budget_allows(budget: int, found: bool) -> None:
    rooms = {0: (4,), 1: (4,)}
    items = [Item("a", {0: (4,)}), Item("b", {1: (4,)})]
    assert (Packing(items, rooms, budget=budget).solve() is not None) == found


@pytest.mark.parametrize(("budget", "answer"), [(0, None), (2, None), (3, {})])
def test_packing_that_used_its_budget_to_the_last_is_a_proof(
    budget: int, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for three, but two of them are for the device of one: the first is tried on both, the
    second once."""
    rooms = {0: (4,), 1: (8,)}
    items = [Item("a", {0: (4,), 1: (4,)}), Item("b", {0: (4,)}), Item("c", {0: (4,)})]
    monkeypatch.setattr(packing, "_items", lambda _: (["0"], items))
    monkeypatch.setattr(packing, "PACKING_BUDGET", budget)
    state = SimpleNamespace(room=lambda device, name: rooms[device][int(name)])
    assert packed(cast(Any, SimpleNamespace(state=state))) == answer

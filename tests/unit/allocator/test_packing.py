"""How many devices amounts need at least, and how long the search tries before it packs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.search import packing
from koordra.allocator.search.packing import Item, SubsetSums, tries_before_packing
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
    monkeypatch.setattr(packing, "_items", lambda _: ([], capacities, found))
    state = SimpleNamespace(room=lambda device, name: rooms[device][int(name)])
    search = SimpleNamespace(requests=[None] * 3, state=state)
    assert tries_before_packing(cast(Any, search)) == tries
    search.requests.pop()
    assert tries_before_packing(cast(Any, search)) is None


def test_what_was_cut_off_is_a_bound_unless_the_search_gave_up() -> None:
    best = _Best(5)
    assert [best.may_improve(least) for least in (4, 9, 7, 8)] == [True, False, False, False]
    assert best.outcome(tried=3).bound == 7
    gave_up = best.outcome(exhausted=True, tried=3)
    assert (gave_up.bound, gave_up.exhausted, gave_up.tried) == (None, True, 3)
    best.offer([], 4)
    assert (best.outcome().cost, best.outcome().bound) == (4, None)

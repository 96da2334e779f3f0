"""The order in which requests are served: those that constraints tie together follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.search.partial_choice import walking_order


def order(claims: Sequence[tuple[str, Sequence[Sequence[str]]]], *, tied: bool = True) -> list[str]:
    """The requests (a letter each), claim by claim with the requests that each constraint names."""
    given = [
        SimpleNamespace(
            requests=[SimpleNamespace(name=name) for name in names],
            constraints=[SimpleNamespace(requests=named) for named in constraints],
        )
        for names, constraints in claims
    ]
    found = walking_order(cast(Any, given), tied=tied)
    assert sorted((claim, index) for claim, index, _ in found) == [
        (claim, index) for claim, (names, _) in enumerate(claims) for index in range(len(names))
    ]
    return [f"{claim}{request.name}" for claim, _, request in found]


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [
        ([], "abcd"),
        ([["a", "c"]], "acbd"),
        ([["d", "b/large"]], "abdc"),
        ([["a", "d"], ["c", "d"]], "adcb"),
        ([["a", "b", "c"], ["a", "c"], ["c", "d"]], "acbd"),
        ([["a", "c"], []], "acbd"),
    ],
)
def test_tied_requests_follow_one_another(constraints: list[list[str]], expected: str) -> None:
    assert order([("abcd", constraints)]) == [f"0{name}" for name in expected]


def test_a_constraint_ties_the_requests_of_its_own_claim() -> None:
    assert order([("ab", []), ("abc", [["a", "c"]])]) == ["0a", "0b", "1a", "1c", "1b"]


def test_first_fit_keeps_the_order_of_the_claim() -> None:
    assert order([("abc", [["a", "c"]])], tied=False) == ["0a", "0b", "0c"]

"""What is known of a claim beside what the cache shows."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.controller.cache.assume_cache import AssumeCache, is_older

ALLOCATION = {"devices": {"results": []}}


def claim(version: str, **status: Any) -> dict[str, Any]:
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version},
        "status": status,
    }


@pytest.mark.parametrize(
    ("one", "other", "older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("9", "9", False),
        ("9", "x", True),
        ("x", "9", True),
        ("x", "y", True),
        ("x", "x", False),
    ],
)
def test_versions_are_numbers_or_the_same(one: str, other: str, older: bool) -> None:
    assert is_older(claim(one), claim(other)) is older


def test_a_write_stands_for_the_claim_until_the_cache_shows_it_or_a_later_one() -> None:
    cache, written = AssumeCache(), claim("7", allocation=ALLOCATION)
    cache.assume(written)
    assert cache.current(claim("6")) == written
    cache.assume(claim("5"))
    assert cache.current(claim("6")) == written, "an answer that came late"
    assert cache.current(claim("7", seen=True)) == claim("7", seen=True)
    assert cache.current(claim("6")) == claim("6"), "it is not kept once the cache has caught up"


def test_a_write_in_doubt_counts_as_done_until_its_version_has_passed() -> None:
    cache = AssumeCache()
    cache.doubt(claim("6", reservedFor=[]), ALLOCATION)
    assert cache.current(claim("6")) == claim("6", reservedFor=[], allocation=ALLOCATION)
    assert [pending.claim for pending in cache.pending_writes()] == [claim("6", reservedFor=[])]
    assert cache.current(claim("8")) == claim("8")
    assert cache.pending_writes() == []


def test_an_answer_ends_the_doubt() -> None:
    cache = AssumeCache()
    cache.doubt(claim("6"), ALLOCATION)
    cache.assume(claim("6"))
    assert (cache.current(claim("6")), cache.pending_writes()) == (claim("6"), [])


def test_a_lost_claim_is_nothing_and_a_forgotten_one_is_what_the_cache_shows() -> None:
    cache = AssumeCache()
    cache.assume(claim("7"))
    cache.doubt(claim("7"), ALLOCATION)
    cache.lose("u")
    assert cache.current(claim("6")) is None
    cache.forget("u")
    assert (cache.current(claim("6")), cache.pending_writes()) == (claim("6"), [])


def test_what_the_cache_has_caught_up_with_is_known_by_the_cache_alone() -> None:
    cache = AssumeCache()
    cache.assume(claim("7"))
    assert not cache.has_caught_up_with(claim("6"))
    assert cache.has_caught_up_with(claim("7"))
    assert not cache.has_caught_up_with(claim("7")), "a later event is news"
    assert cache.current(claim("6")) == claim("6"), "nothing is kept"

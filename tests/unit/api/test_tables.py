"""What the tables keep, and what they say when something fails."""

from __future__ import annotations

from functools import partial

import pytest

from koordra.api.tables import BoundedCache


def test_a_bounded_cache_forgets_rather_than_grow_and_keeps_none() -> None:
    cache, made = BoundedCache[int, int | None](2), list[int]()
    for key in (1, 1, 2, 3, 1):
        assert cache.get_or_make(key, partial(made.append, key)) is None
        assert len(cache) <= 2
    assert made == [1, 2, 3, 1]


def test_what_fails_while_it_is_made_says_nothing_of_the_key() -> None:
    """A key may be a class of nodes with all their devices, and the text of the error ends up in logs."""

    def fails() -> int:
        raise ValueError("this alone")

    cache = BoundedCache[str, int](2)
    with pytest.raises(ValueError, match="this alone") as raised:
        cache.get_or_make("all that a node publishes", fails)
    assert raised.value.__context__ is None
    assert not cache

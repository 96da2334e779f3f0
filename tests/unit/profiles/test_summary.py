"""A summary against one that keeps every sample; parts, orders and detours make no difference; its size is
bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.profiles.condensed import POINTS, condensed
from koordra.profiles.summary import (
    BASE,
    ERROR,
    HIGHEST,
    LATEST,
    MOST,
    Summary,
    merged,
    read_summary,
    summary_document,
)

Sample = tuple[int, int, int]
"""When it ended, how long it was, in milliseconds, and the value."""
START = 1_700_000_000_000
SAMPLES = st.lists(
    st.tuples(
        st.one_of(st.integers(START, START + 600_000), st.integers(START, START + 86_400_000 * 40)),
        st.integers(1, 30_000),
        st.one_of(st.integers(0, 1000), st.integers(0, 1 << 42)),
    ),
    min_size=1,
    max_size=60,
)


def summary(samples: Sequence[Sample], resolution: int = 1) -> Summary:
    found = Summary(resolution)
    for at, ms, value in samples:
        found.add(at, ms, value)
    return found


def plain_quantile(samples: Sequence[Sample], part: Fraction) -> int:
    """The least value that at least this part of the time is not above."""
    wanted, passed = part * sum(ms for _, ms, _ in samples), 0
    for value, ms in sorted((value, ms) for _, ms, value in samples):
        passed += ms
        if passed >= wanted:
            return value
    raise AssertionError


def plain_points(samples: Sequence[Sample], width: int) -> list[int | None]:
    """Means over the tenths of the cells between the first sample and the last."""
    cells = [at // width for at, _, _ in samples]
    first, length = min(cells), max(cells) - min(cells) + 1
    count = min(POINTS, length)
    found: list[int | None] = []
    for number in range(count):
        own = [
            (ms, value)
            for (_, ms, value), cell in zip(samples, cells, strict=True)
            if (cell - first) * count // length == number
        ]
        weight = sum(ms for ms, _ in own)
        mean = Fraction(sum(ms * value for ms, value in own), weight) if weight else None
        found.append(None if mean is None else int(mean + Fraction(1, 2)))
    return found


@given(SAMPLES, st.sampled_from([1, 1000, 1 << 20]))
def test_condensed_is_what_somebody_who_keeps_every_sample_finds(
    samples: list[Sample], resolution: int
) -> None:
    whole = summary(samples, resolution)
    found = condensed(whole)
    assert found.peak == max(value for _, _, value in samples)
    assert found.seconds == sum(ms for _, ms, _ in samples) // 1000
    assert list(found.points) == plain_points(samples, whole.width)
    asked = [
        *((Fraction(number + 1, 10), found.deciles[number]) for number in range(POINTS)),
        (Fraction(99, 100), found.p99),
    ]
    for part, value in asked:
        wanted = plain_quantile(samples, part)
        assert abs(value - wanted) <= max(ERROR * wanted, resolution / 2) + 1, (part, value, wanted)
    assert list(found.deciles) == sorted(found.deciles)
    assert found.deciles[-1] <= found.peak


@given(SAMPLES, st.randoms(use_true_random=False), st.integers(1, 5))
def test_parts_in_any_order_make_the_same_whole(samples: list[Sample], random: object, parts: int) -> None:
    whole = summary(samples)
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    some = [summary(shuffled[number::parts]) for number in range(parts)]
    left = merged(some)
    right = merged([some[0], merged(some[1:])]) if len(some) > 1 else merged(some)
    assert summary(shuffled) == whole
    assert left == whole
    assert right == whole


@given(SAMPLES)
def test_what_is_stored_is_read_back(samples: list[Sample]) -> None:
    whole = summary(samples, 1000)
    document = json.loads(json.dumps(summary_document(whole)))
    assert read_summary(document, 1000) == whole


@given(SAMPLES)
def test_cells_are_no_wider_than_they_must_be(samples: list[Sample]) -> None:
    found = summary(samples)
    assert len(found.cells) <= MOST
    half = {at // (found.width // 2) for at, _, _ in samples}
    assert found.width == BASE or max(half) - min(half) >= MOST


def test_a_month_takes_the_room_of_an_hour() -> None:
    found = Summary()
    for number in range(50_000):
        found.add(START + number * 52_000, 52_000, (number * 7919) % 1000)
    assert len(found.cells) <= MOST
    assert len(json.dumps(summary_document(found))) < 8000
    assert all(abs(point - 500) < 5 for point in condensed(found).points if point is not None)
    assert condensed(found).p99 == pytest.approx(990, rel=ERROR)


@pytest.mark.parametrize("value", [-5, HIGHEST * 1000, 0])
@pytest.mark.parametrize("at", [-1, LATEST * 1000, START])
def test_garbled_samples_are_held_within_bounds(at: int, value: int) -> None:
    found = summary([(at, 1 << 60, value), (START, 1, 1)])
    assert 0 <= found.peak <= HIGHEST
    assert len(found.cells) <= MOST
    assert read_summary(summary_document(found), 1) == found


def test_what_lasts_no_time_is_no_sample() -> None:
    assert summary([(START, 0, 5), (START, -3, 5)]) == Summary()
    with pytest.raises(ValueError, match="no samples"):
        condensed(Summary())


GOOD = summary_document(summary([(START, 5000, 7), (START + 5000, 5000, 900)]))


@pytest.mark.parametrize(
    "document",
    [
        [],
        "text",
        {},
        {**GOOD, "width": 0},
        {**GOOD, "width": 7},
        {**GOOD, "width": 15_000},
        {**GOOD, "width": "5000"},
        {**GOOD, "cells": [[1, 2, 3]]},
        {**GOOD, "cells": [[-1, 2, 3, 4]]},
        {**GOOD, "cells": [[1, 2.5, 3, 4]]},
        {**GOOD, "cells": [[1, True, 3, 4]]},
        {**GOOD, "cells": [[0, 1, 1, 1], [MOST, 1, 1, 1]]},
        {**GOOD, "bins": [[number, 1] for number in range(1000)]},
        {**GOOD, "bins": 5},
        {**GOOD, "cells": None},
    ],
)
def test_what_is_no_summary_is_refused(document: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_summary(document, 1)

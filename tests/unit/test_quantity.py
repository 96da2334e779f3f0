"""Quantities: exact in, shortest exact out, nothing rounded on the way."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra import quantity
from koordra.errors import InvalidQuantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("10", 10),
        ("+5", 5),
        ("-5", -5),
        ("1Ki", 1024),
        ("80Gi", 80 * 1024**3),
        ("1.5Gi", 3 * 512 * 1024**2),
        ("1k", 1000),
        ("1E", 10**18),
        ("1e3", 1000),
        ("2E2", 200),
        ("500m", Decimal("0.5")),
        ("100n", Decimal("0.0000001")),
        (".5", Decimal("0.5")),
        ("5.", 5),
        (7, 7),
    ],
)
def test_values(text: str | int, value: Decimal | int) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Gi",
        "1K",
        "1 Gi",
        "1Gi ",
        "1Gib",
        "1gi",
        "1mi",
        "nan",
        "inf",
        "0x10",
        "+-1",
        "1e",
        "1e9999",
        "١",
        "9" * 65,
        True,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        quantity.parse(text)


def test_a_fraction_is_not_dropped() -> None:
    with pytest.raises(InvalidQuantity, match="not a whole number"):
        quantity.to_int("1500m")
    assert quantity.to_int("1.5Ki") == 1536


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1536, "1536"),
        (85899345920, "80Gi"),
        (Decimal("0.5"), "500m"),
        (Decimal(1000), "1000"),
        (1024**6, "1Ei"),
    ],
)
def test_canonical(value: Decimal | int, text: str) -> None:
    assert quantity.canonical(value) == text


@given(st.integers(min_value=-(2**63), max_value=2**63), st.sampled_from(["", "Ki", "Mi", "k", "M", "m"]))
def test_canonical_reads_back_exactly(number: int, suffix: str) -> None:
    value = quantity.parse(f"{number}{suffix}")
    assert quantity.parse(quantity.canonical(value)) == value

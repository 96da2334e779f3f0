"""How the real server prints quantities back: canonical, in the family they were written in.

`1024Mi` comes back as `1Gi`, `1000m` as `1`, `1000` as `1k`, `0.5` as `500m`, `1e3` stays in exponent form.
What is finer than nano is rounded up. (k8s.io/apimachinery resource.Quantity, CanonicalizeBytes.)
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

from koordra import quantity

_NANO = Decimal("1e-9")
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@lru_cache(maxsize=8192)
def canonical(text: str) -> str:
    """The canonical spelling. Raises InvalidQuantity."""
    value = quantity.parse(text).quantize(_NANO, rounding=ROUND_CEILING)
    if value == 0:
        return "0"
    whole = value == value.to_integral_value()
    if text.endswith("i") and whole and abs(value) >= 1024:
        return _binary(int(value))
    if _is_exponent(text):
        return _exponent(value)
    return _decimal(value)


def _is_exponent(text: str) -> bool:
    return ("e" in text or "E" in text) and not text.endswith(("e", "E", "i"))


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        value //= 1024
        power += 1
    return f"{value}{_BINARY_SUFFIXES[power]}"


def _decimal(value: Decimal) -> str:
    number, exponent = _thousands(value)
    return f"{number}{_DECIMAL_SUFFIXES[exponent // 3 + 3]}"


def _exponent(value: Decimal) -> str:
    number, exponent = _thousands(value)
    return f"{number}e{exponent}" if exponent else str(number)


def _thousands(value: Decimal) -> tuple[int, int]:
    """(integer, exponent divisible by three between -9 and 18) of the same value."""
    number, exponent = int(value.scaleb(9)), -9
    while number % 1000 == 0 and exponent < 18:
        number //= 1000
        exponent += 3
    return number, exponent

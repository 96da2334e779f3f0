"""Strict Kubernetes quantities: `80Gi`, `500m`, `1e3`, exactly.

A quantity is a decimal number with at most one suffix: binary (`Ki` .. `Ei`), decimal (`n u m k M G T P E`)
or an exponent (`e3`, `E-2`). The value is kept as an exact `Fraction`-free `Decimal`; nothing is rounded on
the way in. Two things are written out: `canonical` (the shortest exact form, as the API server prints it for
binary sizes) and `to_int`, which refuses a fraction instead of dropping it: half a MiB that silently became 0
is how a memory limit gets lost.

Source of the rules: k8s.io/apimachinery `resource.Quantity` (sign, digits, one suffix; no blanks, no
upper-case `K`).
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact
from functools import lru_cache

from koordra.errors import InvalidQuantity

_BINARY = {
    suffix: Decimal(1024) ** power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<exponent>[eE][+-]?[0-9]{1,3})|(?P<decimal>[numkMGTPE]))?",
    re.ASCII,
)
# 64 digits hold every product of an accepted number and suffix; more is refused rather than rounded.
_EXACT = Context(prec=64, traps=[Inexact])
_MAX_TEXT = 64


def parse(text: object) -> Decimal:
    """The exact value of a quantity as Kubernetes writes it; numbers without quotes count as they are
    written.

    Raises InvalidQuantity for anything the API server would refuse.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InvalidQuantity(f"a quantity is text or a number, not {text!r}", remedy='write it like "10Gi"')
    return _parse(text if isinstance(text, str) else repr(text))


@lru_cache(maxsize=65536)
def _parse(spelled: str) -> Decimal:
    found = _FORM.fullmatch(spelled) if len(spelled) <= _MAX_TEXT else None
    if found is None:
        raise InvalidQuantity(
            f"{spelled[:_MAX_TEXT]!r} is not a quantity", remedy='write it like "10Gi", "500m" or "3"'
        )
    number = Decimal(found["number"])
    try:
        if found["binary"]:
            return _EXACT.multiply(number, _BINARY[found["binary"]])
        if found["exponent"]:
            return number.scaleb(int(found["exponent"][1:]), _EXACT)
        return number.scaleb(_DECIMAL[found["decimal"]], _EXACT) if found["decimal"] else number
    except (Inexact, ArithmeticError) as error:
        raise InvalidQuantity(f"{spelled!r} has more digits than a quantity can hold") from error


def to_int(text: str | int) -> int:
    """The value as a whole number (bytes, devices, percent). Raises InvalidQuantity for a fraction."""
    value = parse(text)
    if value != value.to_integral_value():
        raise InvalidQuantity(f"{text!r} is not a whole number", remedy="use a smaller unit")
    return int(value)


def canonical(value: Decimal | int) -> str:
    """The shortest exact spelling: the largest binary suffix of a whole number, milli for fractions."""
    exact = Decimal(value)
    if exact != exact.to_integral_value():
        milli = exact.scaleb(3)
        if milli == milli.to_integral_value():
            return f"{int(milli)}m"
        return f"{exact.normalize():f}"
    whole = int(exact)
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_BINARY[suffix])
        if whole and whole % unit == 0:
            return f"{whole // unit}{suffix}"
    return str(whole)


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(?:[0-9]{1,9}[smhd])+")
_PART = re.compile(r"([0-9]+)([smhd])")


def seconds_of(text: str, *, longest: float) -> float | None:
    """A time as annotations and specs spell it: `300`, `90s`, `5m`, `1h30m`; None where it is none, or too
    long."""
    spelled, total = f"{text}s" if text.isdecimal() else text, 0.0
    if _TIME.fullmatch(spelled):
        total = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(spelled))
    return total if 0 < total <= longest else None

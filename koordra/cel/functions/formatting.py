"""`string.format` and `string()` in CEL as cel-go writes values.

    %s           any value: nested strings quoted, maps in order of their keys
    %d           whole numbers
    %b %o %x %X  whole numbers, %x also strings and bytes
    %f           with thousands separated, six decimals or as many as it says
    %e           1.500000×10⁰³

Source: cel-go's strings extension (formatting of version 2, which Kubernetes has).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from koordra.cel.functions.lists import MOMENT, SPAN, plain

_CLAUSE: Final = re.compile(r"%(?:%|(?:\.([0-9]+))?([a-zA-Z]))?")
_MAX_PRECISION: Final = 100
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def formatted(text: str, values: Any) -> str:
    """Raises ValueError for a clause that is none, or does not fit its value."""
    left = deque(plain(values))

    def written(clause: re.Match[str]) -> str:
        if clause.group() == "%%":
            return "%"
        if clause[2] is None:
            raise ValueError("could not parse formatting clause")
        if not left:
            raise ValueError("index out of range: more clauses than arguments")
        return _written(clause[2], clause[1], left.popleft())

    found = _CLAUSE.sub(written, text)
    if left:
        raise ValueError("too many arguments supplied to string.format")
    return found


def _written(clause: str, digits: str | None, value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    precision = 6 if digits is None else int(digits)
    if precision > _MAX_PRECISION:
        raise ValueError(f"precision {precision} exceeds maximum allowed precision {_MAX_PRECISION}")
    if clause == "s":
        return text_of(value)
    if clause == "d" and whole:
        return str(value)
    if clause in "ef" and isinstance(value, float):
        return _special(value) or _written_double(clause, precision, value)
    if clause == "b" and isinstance(value, int):
        return f"{int(value):b}"
    if clause == "o" and whole:
        return f"{value:o}"
    if clause in "xX" and isinstance(value, str | bytes | int) and not isinstance(value, bool):
        raw = value.encode() if isinstance(value, str) else value
        found = raw.hex() if isinstance(raw, bytes) else f"{raw:x}"
        return found.upper() if clause == "X" else found
    raise ValueError(f"error during formatting: clause %{clause} cannot write a {type(value).__name__}")


def _special(value: float) -> str:
    if math.isfinite(value):
        return ""
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"


def _written_double(clause: str, precision: int, value: float) -> str:
    if clause == "f":
        return f"{Decimal(value):,.{precision}f}"
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    power = ("-" if exponent[0] == "-" else "") + exponent[1:]
    return f"{mantissa}×10{power.translate(_RAISED)}"


def text_of(value: Any, *, nested: bool = False) -> str:
    """A value as %s writes it; in a list or map it is written so that its type can be seen."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            if not nested:
                return double_text(value)
            return f"{value:.6f}" if math.isfinite(value) else _quoted(double_text(value))
        case str():
            return _quoted(value) if nested else value
        case bytes():
            text = value.decode("utf-8", "replace")
            return f"b{_quoted(text)}" if nested else text
        case _ if isinstance(value, SPAN):
            return f"duration({_quoted(duration_text(value))})" if nested else duration_text(value)
        case _ if isinstance(value, MOMENT):
            return f"timestamp({_quoted(timestamp_text(value))})" if nested else timestamp_text(value)
        case list() | tuple():
            return f"[{', '.join(text_of(item, nested=True) for item in plain(value))}]"
        case Mapping():
            entries = sorted(
                (text_of(name, nested=True), text_of(item, nested=True)) for name, item in value.items()
            )
            return f"{{{', '.join(f'{name}:{item}' for name, item in entries)}}}"
    raise ValueError(f"error during formatting: a {type(value).__name__} cannot be written")


_ESCAPES: Final = dict(zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True))


def _quoted(text: str) -> str:
    """As a Go string literal."""
    written = []
    for each in text:
        if each in _ESCAPES:
            written.append(f"\\{_ESCAPES[each]}")
        elif each.isprintable():
            written.append(each)
        elif ord(each) < 0x80:
            written.append(f"\\x{ord(each):02x}")
        else:
            written.append(f"\\u{ord(each):04x}" if ord(each) < 0x10000 else f"\\U{ord(each):08x}")
    return f'"{"".join(written)}"'


def double_text(value: float) -> str:
    """The shortest digits that are this number; an exponent below 10^-4 and from 10^6 on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    exact = Decimal(repr(value)).normalize()
    if -4 <= exact.adjusted() < 6:
        return f"{exact:f}"
    digits, _, power = f"{exact:e}".partition("e")
    return f"{digits}e{int(power):+03d}"


def duration_text(value: Any) -> str:
    micro = (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
    return f"{Decimal(micro).scaleb(-6).normalize():f}s" if micro else "0s"


def timestamp_text(value: Any) -> str:
    fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
    year, month, day, hour, minute, second = value.utctimetuple()[:6]
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}{fraction}Z"

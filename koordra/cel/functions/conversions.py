"""Texts that become numbers and times, and patterns: what Go takes of them and the library takes besides.

The library passes over white space around a number, reads a double beyond the range as infinite, and times in
lower case, with one digit or with a leap second. Go refuses all of it: strconv.ParseInt, ParseUint and
ParseFloat, time.Parse with RFC 3339 (cel-go, common/types/string.go).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

_READ: Final = {
    "int": re.compile(r"[+-]?[0-9]+"),
    "uint": re.compile(r"[0-9]+"),
    "double": re.compile(
        r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|0x[0-9a-fp.+-]+)|nan", re.I
    ),
    "timestamp": re.compile(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
    ),
}
READ_FROM: Final = {
    "int": ("int", "uint", "double", "timestamp", "duration"),
    "uint": ("int", "uint", "double"),
    "double": ("int", "uint", "double"),
    "timestamp": ("int", "timestamp"),
}
"""What a conversion takes besides a text: it reaches the library as it is."""


def readable(kind: str) -> Callable[[str], str]:
    """The text itself, for the library to read; raises ValueError where Go does not read it."""

    def checked(text: str) -> str:
        plain = _READ[kind].fullmatch(text)
        if plain and kind == "double" and text.strip("+-")[0] in ".0123456789" and text[:2].lower() != "0x":
            plain = None if math.isinf(float(text)) else plain
        if not plain:
            raise ValueError(f"type conversion error from 'string' to '{kind}'")
        return text

    return checked


def pattern(text: str) -> str:
    """The regular expression itself: RE2's syntax is Go's but for `\\C`. Raises ValueError."""
    if re.search(r"(?<!\\)(?:\\\\)*\\C", text):
        raise ValueError("error parsing regexp: invalid escape sequence: `\\C`")
    return text


def split(text: str, separator: str, limit: int = -1) -> list[str]:
    """Go's strings.SplitN: an empty text has no characters, and 0 is no parts at all."""
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    cut = len(text) if limit < 0 else min(limit - 1, len(text))
    return [*text[:cut], *([text[cut:]] if text[cut:] else [])]

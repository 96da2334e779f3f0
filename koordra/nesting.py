"""JSON that is nested deeply.

An API server takes 10,000 levels, for example in the opaque parameters of a claim (10 KiB, which anybody may
write). Python's decoder gives up at about a thousand, with the whole page of a list in which one such object
stands. So what lies deeper than LEVELS is cut out then, and the rest is read; who uses what may be nested
asks `is_deeper` first, since much of Python's library recurses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

LEVELS: Final = 200
"""Objects of Kubernetes' own kinds have some 20, those of large CRDs 60."""
CUT: Final = "(nested too deeply)"
"""What stands in the place of what was cut out."""

_NESTED: Final = (dict, Mapping, list)
_MARK: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_CUT: Final = json.dumps(CUT).encode()


def decoded(data: bytes) -> tuple[Any, bool]:
    """The document, and whether something had to be cut out of it. Raises ValueError for what is no JSON."""
    try:
        return json.loads(data), False
    except RecursionError:
        return json.loads(_shallow(data)), True


def _shallow(data: bytes) -> bytes:
    """Without what lies deeper than LEVELS; one look at each byte."""
    kept: list[bytes] = []
    level = start = 0
    for found in _MARK.finditer(data):
        mark = found[0]
        if mark in b"[{":
            level += 1
            if level == LEVELS + 1:
                kept += (data[start : found.start()], _CUT)
        elif mark in b"]}":
            if level == LEVELS + 1:
                start = found.end()
            level -= 1
    return b"".join((*kept, data[start:])) if level == 0 else b""


def is_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects are nested in `value` more than so many levels."""
    layer = [value] if isinstance(value, _NESTED) else []
    for _ in range(levels):
        layer = [inner for each in layer for inner in _inside(each) if isinstance(inner, _NESTED)]
    return bool(layer)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()

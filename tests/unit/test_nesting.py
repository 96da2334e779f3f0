"""JSON that is nested more deeply than Python decodes: what lies too deep is cut out, the rest is read."""

from __future__ import annotations

import json
import sys

import pytest

from koordra.api.claims import MOST_LEVELS
from koordra.nesting import CUT, LEVELS, decoded, is_deeper

DEEP = max(10_000, 2 * sys.getrecursionlimit())
"""What an API server takes at most."""


def nested(levels: int, inner: object = 1) -> object:
    """Lists and objects by turns; for few levels."""
    value = inner
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def written(levels: int) -> bytes:
    pairs = [(b"[", b"]") if level % 2 else (b'{"a":', b"}") for level in range(levels)]
    return b"".join(one for one, _ in pairs) + b"1" + b"".join(end for _, end in reversed(pairs))


def test_how_deep_is_too_deep() -> None:
    assert (LEVELS, MOST_LEVELS) == (200, 100)


def test_what_python_can_decode_is_left_alone() -> None:
    value = {"a": nested(LEVELS + 50), "b": ['"[{\\', "]"]}
    assert decoded(json.dumps(value).encode()) == (value, False)


@pytest.mark.parametrize("levels", [DEEP, DEEP + 1])
def test_what_lies_too_deep_is_cut_out_and_nothing_else(levels: int) -> None:
    page = b'{"items":[{"name":"a \\" ]"},{"deep":%b,"after":[1]},{"name":"{\\\\"}]}' % written(levels)
    document, is_cut = decoded(page)
    assert is_cut
    first, second, third = document["items"]
    assert (first, third) == ({"name": 'a " ]'}, {"name": "{\\"})
    assert second["after"] == [1]
    assert not is_deeper(document, LEVELS)
    assert is_deeper(document, LEVELS - 1)
    assert CUT in json.dumps(second["deep"])
    assert is_deeper(second["deep"], MOST_LEVELS), "who bounds what is nested still sees that it is too deep"


@pytest.mark.parametrize(
    "broken",
    [written(DEEP)[:-1], written(DEEP) + b"]]", b"[" * DEEP, b'["' + b'\\"' * DEEP + b"[" * DEEP],
    ids=["no end", "two ends", "only beginnings", "in a text"],
)
def test_what_is_no_json_is_a_value_error(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra"):
        decoded(b"[%b,%b" % (written(DEEP), broken))


def test_levels_are_counted() -> None:
    for value, levels in ((1, 0), ([], 1), ({"a": [1, {}]}, 3), (nested(7, "x"), 7)):
        assert not is_deeper(value, levels)
        assert levels == 0 or is_deeper(value, levels - 1)

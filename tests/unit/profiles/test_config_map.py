"""The document of what is recommended, and nothing where it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.profiles.config_map import KEY, AskedBy, Recommended, read_recommended


def known(text: str) -> dict[str, dict[str, Recommended]]:
    return read_recommended({"data": {KEY: text}})


def test_it_is_read() -> None:
    text = '{"a": {"t": {"memory": 11, "cores": 25, "at": 7}, "u": {"cores": 5, "more": []}}, "b": {}}'
    assert known(text) == {"a": {"t": Recommended(11, 25, 7), "u": Recommended(0, 5, 0)}}


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '"x"', "{", "[" * 100_000, '{"a": 3}', '{"a": {"t": 3}}']
)
def test_what_is_none_has_none(text: str) -> None:
    assert known(text) == {}


@pytest.mark.parametrize("config_map", [{}, {"data": None}, {"data": {}}, {"data": {"other": "{}"}}])
def test_a_config_map_without_it_has_none(config_map: dict[str, Any]) -> None:
    assert read_recommended(config_map) == {}


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, None, 1 << 62])
def test_what_cannot_be_an_amount_is_left_out(value: object) -> None:
    good = {"memory": 1, "cores": 2, "at": 3}
    text = json.dumps({"a": {"bad": {**good, "cores": value}, "good": good}})
    assert known(text) == {"a": {"good": Recommended(1, 2, 3)}}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([["share", 40, 50, 3]], (AskedBy("share", 40, 50, 3),)),
        ([["share", 40, 50, -3], ["share", 40, 50], [5, 1, 1, 1], "x", ["b", 1, 0, 2]], ()),
        ([["b", 1, 0, 2], 7, ["c", 1, 0, 2]], (AskedBy("b", 1, 0, 2),)),
        ("share", ()),
        (None, ()),
    ],
)
def test_of_what_was_asked_only_what_can_be_is_read(asked: object, found: tuple[AskedBy, ...]) -> None:
    text = json.dumps({"a": {"t": {"memory": 11, "asked": asked}}})
    assert known(text) == {"a": {"t": Recommended(11, asked=found)}}
    again = json.dumps({"a": {"t": Recommended(11, asked=found)._asdict()}})
    assert known(again) == {"a": {"t": Recommended(11, asked=found)}}

"""Device selectors of every kind against what Kubernetes' own evaluator said of them, by hand and generated.

cel_answers.json: expression -> true, false, "error" (at run time), "refused" (does not compile), or "cost N"
(compiles, and the estimate is above the limit). Made by cel_answers.go, with Kubernetes 1.36.3 and cel-go
0.27.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordra.api.devices import Attribute, Capacity
from koordra.cel.selectors import DeviceFacts, admission_error, matches
from koordra.errors import SelectorError
from koordra.quantity import parse

ANSWERS: dict[str, bool | str] = json.loads(Path(__file__).with_name("cel_answers.json").read_text())
REFUSED_HERE = {
    "double('1_0')==10.0",
    "{'a':1,'a':2}.size()==1",
    "timestamp('2020-01-01T00:00:00+24:00')>timestamp('2019-01-01T00:00:00Z')",
    "timestamp('2020-01-01T00:00:00,5Z')>timestamp('2019-01-01T00:00:00Z')",
    "duration('1µs')<duration('1ms')",
}
"""The API server answers; nobody writes them."""
UNKNOWN_SIZE = 10**15
"""Costs above this come from sizes that Kubernetes does not know; koordra knows bounds of them."""
DEVICE = DeviceFacts(
    "d.io",
    False,
    {
        "d.io/model": Attribute("string", "H100"),
        "d.io/n": Attribute("int", 42),
        "d.io/v": Attribute("version", "1.2.3"),
        "d.io/b": Attribute("bool", True),
    },
    {"d.io/memory": Capacity(parse("80Gi"), "80Gi")},
)


def answer(expression: str) -> bool | None:
    try:
        return matches(expression, DEVICE)
    except SelectorError:
        return None


def test_what_is_stored_is_answered_alike() -> None:
    stored = {each: said for each, said in ANSWERS.items() if said in (True, False, "error")}
    wrong = {
        each: said for each, said in stored.items() if answer(each) is not (None if said == "error" else said)
    }
    assert wrong.keys() == REFUSED_HERE
    assert not [each for each in wrong if answer(each) is not None]
    assert len(stored) > 250


@pytest.mark.parametrize(
    "expression", [each for each, said in ANSWERS.items() if str(said).startswith("cost")]
)
def test_what_costs_too_much_is_refused(expression: str) -> None:
    if int(str(ANSWERS[expression]).removeprefix("cost ")) < UNKNOWN_SIZE:
        assert admission_error(expression) == "too complex, exceeds cost limit"


@pytest.mark.parametrize(
    "expression",
    [
        "int(' 42') == 42",
        "int(device.attributes['d.io'].model + ' ') == 42",
        "uint('+42') == 42u",
        "double('1e400') > 1.0",
        "timestamp('2020-01-01t00:00:00z') > timestamp('2019-01-01T00:00:00Z')",
        "timestamp('2020-01-01T23:59:60Z') > timestamp('2019-01-01T00:00:00Z')",
        "'a'.matches('\\\\C')",
        "matches('a', 'a|\\\\' + 'C')",
    ],
)
def test_texts_that_go_does_not_read_are_errors(expression: str) -> None:
    assert answer(expression) is None

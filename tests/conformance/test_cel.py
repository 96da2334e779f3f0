"""Device selectors against upstream's table (data/dra/cel-cases.json): 70 of 71. The other one is a
server that knows no consumable capacity, where koordra gives out no shares."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from koordra.api.devices import read_attribute, read_capacity
from koordra.api.reader import Reader
from koordra.cel.selectors import DeviceFacts, admission_error, compile_error, matches
from koordra.cel.syntax import parse
from koordra.errors import SelectorError
from tests.fakes.cel_cost import cost_of


def outcome(case: dict[str, Any]) -> bool | str:
    """True or False, or which kind of error."""
    refused = compile_error
    if case.get("newExpressionsEnv"):
        refused = partial(admission_error, list_attributes=bool(case.get("enableListTypeAttributes")))
    if refused(case["expression"]) is not None:
        return "compile error"
    try:
        return matches(case["expression"], facts(case))
    except SelectorError:
        return "match error"


def facts(case: dict[str, Any]) -> DeviceFacts:
    read = Reader(case, object=case["name"])

    def qualified(name: str) -> str:
        return name if "/" in name else f"{case['driver']}/{name}"

    return DeviceFacts(
        case["driver"],
        case.get("allowMultipleAllocations", False),
        {qualified(name): read_attribute(each) for name, each in read.entries("attributes")},
        {qualified(name): read_capacity(each) for name, each in read.entries("capacity")},
    )


def expected(case: dict[str, Any]) -> bool | str:
    if case.get("expectCompileError"):
        return "compile error"
    return "match error" if case.get("expectMatchError") else bool(case["expectMatch"])


def test_every_case_of_upstreams_table(shared_data: Path) -> None:
    cases = json.loads((shared_data / "dra" / "cel-cases.json").read_text())["cases"]
    wrong = {
        case["name"]: (expected(case), outcome(case)) for case in cases if outcome(case) != expected(case)
    }
    assert wrong.keys() == {"allow_multiple_allocations_disabled"}
    assert len(cases) == 71


def test_every_cost_of_upstreams_table(shared_data: Path) -> None:
    """The API server's estimate, which decides what it stores: equal, not near."""
    cases = json.loads((shared_data / "dra" / "cel-cases.json").read_text())["cases"]
    costs = {
        case["name"]: (case["expectCost"], cost_of(parse(case["expression"])))
        for case in cases
        if "expectCost" in case
    }
    assert not {name: found for name, found in costs.items() if found[0] != found[1]}
    assert len(costs) == 65

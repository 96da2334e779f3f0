"""docs/attacks.md says what the rows say, and the rows say what tests show."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.attacks.page import OUTCOMES, TABLES, render
from tests.attacks.row import Attack, Seen

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "attacks.md"
ROWS = [row for table in TABLES for row in table.rows]
NOT_IN_CI = {"slow", "skip", "xfail"}
"""Marks of tests that `.ci/run` leaves out, or that may say nothing."""


def test_the_document_is_made_from_the_rows(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regen"):
        DOCUMENT.write_text(render())
    assert DOCUMENT.read_text() == render(), "make it anew with pytest --regen"


def test_every_row_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert [row.name for row in ROWS if not (row.how and row.by)] == []
    assert {row.outcome for row in ROWS} <= set(OUTCOMES)


@pytest.mark.parametrize("row", [row for row in ROWS if row.tests], ids=lambda row: row.name)
def test_a_row_shown_elsewhere_names_tests_that_run_and_look_for_what_is_seen(row: Attack) -> None:
    for test in row.tests:
        file, _, name = test.partition("::")
        if file.endswith(".c"):
            assert f"TEST({name})" in (ROOT / file).read_text(), test
            continue
        functions = {each.name: each for each in functions_of(file)}
        assert name in functions, test
        assert not NOT_IN_CI & set(re.findall(r"mark\.(\w+)", decorators(functions[name]))), test
    texts = [(ROOT / test.partition("::")[0]).read_text() for test in row.tests]
    for seen in row.seen:
        assert any(key(seen) in text for text in texts), f"none of {row.tests} looks for {seen}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_every_other_row_has_a_test_in_its_tables_runner(table: object) -> None:
    rows = {row.name for row in table.rows if row.runs}  # type: ignore[attr-defined]
    assert rows == set(registered(table.runner))  # type: ignore[attr-defined]


def registered(file: str) -> list[str]:
    """The names in `@attack("...")`, of the functions of a runner."""
    return [
        mark.args[0].value
        for function in functions_of(file)
        for mark in function.decorator_list
        if isinstance(mark, ast.Call)
        and ast.unparse(mark.func) == "attack"
        and isinstance(mark.args[0], ast.Constant)
        and isinstance(mark.args[0].value, str)
    ]


@cache
def functions_of(file: str) -> list[ast.FunctionDef]:
    path = ROOT / file
    if not path.exists():
        return []
    return [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]


def decorators(function: ast.FunctionDef) -> str:
    return " ".join(map(ast.unparse, function.decorator_list))


def key(seen: Seen) -> str:
    """What tells this place from others: a metric's label, the type of a condition, or the word."""
    if seen.where == "metric":
        return (re.findall(r'"([^"]+)"', seen.word) or [seen.word])[-1]
    return seen.word.partition(":")[0]


def test_what_is_open_is_known() -> None:
    """Each is a decision: a row that opens is a finding, never a side effect."""
    assert {row.name for row in ROWS if row.outcome == "open"} == {
        "devices-that-do-not-exist",
        "hami-core-past",
        "mps-other-user",
        "mps-own-limits",
        "passed-descriptor",
        "host-root",
        "hostpath-above-state",
        "leave-cgroup",
        "privileged-holder",
        "critical-priority",
        "passes-for-a-monitor",
        "namespace-of-the-list",
        "metrics-read",
        "passes-for-the-driver",
        "own-mps-server",
        "attachment-of-its-own",
    }

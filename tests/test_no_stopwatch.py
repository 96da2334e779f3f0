"""No test fails because a machine is slow: none compares the time that something took."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
FILES = [path for path in sorted(TESTS.rglob("*.py")) if "cluster" not in path.parts]


def stopwatches(tree: ast.AST) -> list[int]:
    """Lines that compare a time since an earlier one, with or without a name for the two in between."""
    names: set[str] = set()

    def measures(node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            return _reads_a_clock(node.left)
        return isinstance(node, ast.Name) and node.id in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and measures(node.value):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(map(measures, (node.left, *node.comparators)))
    ]


def _reads_a_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS


def test_what_has_to_be_quick_is_shown_otherwise() -> None:
    """By order, by count or on a clock that the test moves: tests/patience.py, tests/fakes/clock.py,
    tests/fakes/effort.py."""
    found = {str(path.relative_to(TESTS)): stopwatches(ast.parse(path.read_text())) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    ["assert time.monotonic() - began < 0.4", "spent = time.process_time() - began\nassert spent < 0.5"],
)
def test_a_stopwatch_is_found(text: str) -> None:
    assert stopwatches(ast.parse(text))

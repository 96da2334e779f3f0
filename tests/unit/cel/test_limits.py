"""Selectors that are made to be expensive: what they cost is counted, and is in proportion to their length.

Steps are lines of Python that koordra's CEL runs until the library is asked (or the expression refused): the
same number on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from koordra.api.devices import Attribute
from koordra.cel.cost import LIMIT, most_cost
from koordra.cel.selectors import DeviceFacts, admission_error, compile_error, matches
from koordra.cel.syntax import MAX_DEPTH, SyntaxRefused, parse
from koordra.cel.translation import names_read, translated
from koordra.errors import SelectorError
from tests.fakes.cel_cost import cost_of

DEVICE = DeviceFacts(
    "d.io", False, {"d.io/model": Attribute("string", "H100"), "d.io/n": Attribute("int", 42)}, {}
)

Shape = Callable[[int], str]

DEEP: dict[str, tuple[int, Shape]] = {
    "parentheses": (249, lambda n: "(" * n + "true" + ")" * n),
    "nots": (249, lambda n: "!(" * n + ("true" if n % 2 == 0 else "false") + ")" * n),
    "lists": (247, lambda n: f"{'[' * n}1{']' * n} != {'[' * n}2{']' * n}"),
    "sums": (248, lambda n: "1" + "+1" * n + f" == {n + 1}"),
    "indices": (120, lambda n: f"{'[' * n}7{']' * n}{'[0]' * n} == 7"),
    "calls": (248, lambda n: "int(" * n + "7" + ")" * n + " == 7"),
    "ternaries": (124, lambda n: "(false ? 1 : " * n + "7" + ")" * n + " == 7"),
    "elses": (248, lambda n: "false ? false : " * n + "true"),
    "macros": (123, lambda n: "[1].all(x, " * n + "x == 1" + ")" * n),
    "macros of two variables": (123, lambda n: "[1].all(i, x, " * n + "x == i + 1" + ")" * n),
    "one variable a macro": (
        123,
        lambda n: "".join(f"[{k}].all(x{k}, " for k in range(n)) + f"x0 + x{n - 1} == {n - 1}" + ")" * n,
    ),
    "macros in a row": (120, lambda n: "[7]" + ".map(x, x)" * n + " == [7]"),
    "bindings": (
        123,
        lambda n: "".join(f"cel.bind(x{k}, {f'x{k - 1} + 1' if k else '1'}, " for k in range(n)) + f"x{n - 1} == {n}" + ")" * n,
    ),
    "attributes": (123, lambda n: "(" * n + 'device.attributes["d.io"].n == 42' + ")" * n),
    "attributes in lists": (120, lambda n: "[" * n + 'device.attributes["d.io"].n' + "]" * n + "[0]" * n + " == 42"),
}  # fmt: skip

LONG: dict[str, Shape] = {
    "and": lambda n: " && ".join(["true"] * (1100 * n // 1100)),
    "look-ups": lambda n: " || ".join(['device.attributes["d.io"].n == 1'] * (n // 5)),
    "strings": lambda n: " + ".join(["'a\\\\'"] * 200) + " + '" + "\\\\" * n + "' == ''",
    "one string": lambda n: "'" + "\\'" * (4 * n) + "' == ''",
    "comments": lambda n: "// '\n" * n + "true",
    "elements": lambda n: f"size([{', '.join(['1'] * n)}]) == {n}",
    "arguments": lambda n: f"f({', '.join(['(1)'] * n)})",
    "open brackets": lambda n: "[{(" * n,
    "closed brackets": lambda n: "]})" * n,
    "quotes": lambda n: "'''\"" * n,
    "empty strings": lambda n: "''" * n,
    "points": lambda n: "a" + "." * n,
    "messages": lambda n: "a{}" * n,
    "marks": lambda n: "?" * n + "-" * n + "!" * n,
}  # fmt: skip


@contextmanager
def counted() -> Iterator[list[int]]:
    steps = [0]

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if "/koordra/cel/" not in frame.f_code.co_filename:
            return None
        steps[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


def steps_of(expression: str) -> tuple[int, int]:
    """(lines of Python, characters written for the library) for one expression."""
    written = 0
    with counted() as steps:
        try:
            tree = parse(expression)
            most_cost(tree)
            names_read(tree)
            written = sum(len(part.text) for part in translated(tree))
        except SyntaxRefused:
            pass
    return steps[0], written


@pytest.mark.parametrize("name", DEEP)
def test_what_is_deep_is_answered(name: str) -> None:
    most, shape = DEEP[name]
    for depth in (1, 20, 30, 60, most):
        assert matches(shape(depth), DEVICE) is True


@pytest.mark.parametrize("name", [*DEEP, *LONG])
def test_steps_grow_with_the_length(name: str) -> None:
    most, shape = DEEP[name] if name in DEEP else (500, LONG[name])
    few, many = shape(most // 8), shape(most // 2)
    assert len(many.encode()) <= 10 * 1024
    (steps, written), (more, more_written) = steps_of(few), steps_of(many)
    growth = len(many) / len(few)
    assert more <= 1.3 * growth * steps + 2000
    assert more_written <= 1.3 * growth * written + 200
    assert more <= 250 * len(many) + 2000
    assert more_written <= 25 * len(many)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 250 + "true" + ")" * 250,
        "[" * 251 + "]" * 251 + " == []",
        "1" + "+1" * 249 + " == 250",
        "[1].all(x, " * 125 + "true" + ")" * 125,
        "true ? 1 : " * 250 + "2",
        "int(" * 250 + "1" + ")" * 250,
        "(" * 5000 + "true" + ")" * 5000,
    ],
)
def test_beyond_250_levels_cel_gos_words(expression: str) -> None:
    assert compile_error(expression) == f"expression recursion limit exceeded: {MAX_DEPTH}"
    with pytest.raises(SelectorError, match="recursion limit exceeded: 250"):
        matches(expression, DEVICE)


def test_levels_of_different_rules_count_together() -> None:
    nested = "[" * 120 + "x" + ".a + 1][0]" * 120
    assert compile_error(nested) == "max recursion depth exceeded"


def test_the_length_in_the_api_servers_words() -> None:
    assert compile_error("true" + " " * 10237) == "Too long: may not be more than 10240 bytes"
    assert compile_error("true" + " " * 10236) is None
    assert compile_error("'ä' == '" + "ä" * 5120 + "'") == "Too long: may not be more than 10240 bytes"


COSTLY: dict[str, str] = {
    "ranges in ranges": "lists.range(1000000).all(x, lists.range(1000000).all(y, x + y >= 0))",
    "a range without bound": "lists.range(int('1000000000')).size() == 1",
    "comprehensions": "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, "
    "[1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, true))))))",
    "text that doubles": "".join(f"cel.bind(x{n}, {f'x{n - 1} + x{n - 1}' if n else repr('ab')}, " for n in range(40))
    + "x39 == x39"
    + ")" * 40,
    "lists that double": "".join(f"cel.bind(x{n}, {f'x{n - 1} + x{n - 1}' if n else '[1]'}, " for n in range(40))
    + "x39 == x39"
    + ")" * 40,
    "lists of lists": "".join(f"cel.bind(x{n}, {f'[x{n - 1}, x{n - 1}]' if n else '[1]'}, " for n in range(40))
    + "x39 == x39"
    + ")" * 40,
    "maps of maps": "".join(f"cel.bind(x{n}, {f'{{1: x{n - 1}, 2: x{n - 1}}}' if n else '{1: 1}'}, " for n in range(40))
    + "x39 == x39"
    + ")" * 40,
    "a macro that doubles": "[1]" + ".map(x, [x, x])" * 40 + ".size() == 1",
    "optionals that double": "optional.of(1)" + ".optMap(x, x)" * 100 + ".hasValue()",
    "replacements": f"'{'a' * 200}'" + ".replace('', 'aaaaaaaaaa')" * 12 + ".size() == 1",
    "joints": "lists.range(900).map(x, 'aaaaaaaaaa').join('" + "b" * 3000 + "') == ''",
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_what_may_cost_too_much_is_not_evaluated(name: str) -> None:
    """None of these would end, or fit into memory."""
    expression = COSTLY[name]
    assert admission_error(expression) == "too complex, exceeds cost limit"
    with pytest.raises(SelectorError, match="actual cost limit exceeded"):
        matches(expression, DEVICE)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("true", 0),
        ("1 + 1 == 2", 2),
        ("[1, 2].all(x, x > 0)", 21),
        ("[1, 2].exists_one(x, x > 0)", 20),
        ("[1, 2].map(x, x + 1).size() == 2", 51),
        ("lists.range(3) == [0, 1, 2]", 25),
        ("[3, 1, 2].sort() == [1, 2, 3]", 51),
        ("'abcd'.startsWith('ab') ? true : false", 1),
        ("cel.bind(x, 1, x + x == 2)", 14),
        ("has(device.attributes.a)", 2),
    ],
)
def test_costs(expression: str, cost: int) -> None:
    assert cost_of(parse(expression)) == cost


def test_lists_of_sizes_that_devices_have_cost_what_they_cost_in_kubernetes() -> None:
    ones = ", ".join(["1"] * 64)
    assert cost_of(parse(f"[{ones}].map(x, x) == []")) == 20 + 11 + 64 * (12 + 1) + 1
    assert matches("lists.range(2500).map(x, x).size() == 2500", DEVICE)


@pytest.mark.parametrize("count", [1, 10, 120])
def test_an_expression_has_one_environment_whatever_it_binds(count: int) -> None:
    """Each costs as much as a thousand elements."""
    deep = "[" * 23 + "{}" + "]" * 23
    parts = ", ".join(f"cel.bind(v{n}, 1, {deep.format(f'v{n}')})" for n in range(count))
    written = translated(parse(f"[{parts}].size() == {count}"))
    assert len(written) > count
    assert len({part.free for part in written[:-1]}) == 1
    assert matches(f"[{parts}].size() == {count}", DEVICE)


def test_a_name_that_is_bound_in_one_place_only_is_unknown_in_another() -> None:
    deep = "[" * 23 + "x" + "]" * 23
    assert compile_error(f"true || x == 1 || [1].all(x, {deep} == [])") == "undeclared reference to 'x'"
    assert matches(f"[2].all(x, x == 2) && [1].all(x, {deep} != [])", DEVICE)


def test_patterns_of_any_kind_take_linear_time() -> None:
    """A matcher that backtracks would take 2^60 steps."""
    assert matches("'" + "a" * 60 + "!'.find('^(a+)+$') == ''", DEVICE)
    assert matches("'" + "a" * 60 + "!'.findAll('(a|a)*$') == ['']", DEVICE)
    assert matches("'baac'.findAll('a*') == ['', 'aa', '']", DEVICE)


def test_a_precision_is_no_way_to_fill_the_memory() -> None:
    with pytest.raises(SelectorError, match="exceeds maximum allowed precision 100"):
        matches("'%.999999999f'.format([1.0]) == ''", DEVICE)


def test_what_is_cut_into_parts_stops_where_it_would() -> None:
    """A part is evaluated when it is asked for: what is never reached raises nothing."""
    deep = "[" * 60 + "{}" + "]" * 60
    failing = deep.format("1 / 0") + "[0]" * 60 + " == 1"
    assert matches(f"true || {failing}", DEVICE)
    assert matches(f"[1].all(x, x == 1 || {failing})", DEVICE)
    with pytest.raises(SelectorError, match="divide by zero"):
        matches(failing, DEVICE)


def test_the_limit_itself() -> None:
    """Both lists, their elements and 1 for each pair: 20 + 2 + 1 + n * n."""
    ones = [f"[{', '.join(['1'] * n)}]" for n in (999, 1000)]
    assert cost_of(parse(f"sets.contains({ones[0]}, {ones[0]})")) == 20 + 1 + 999 * 999 <= LIMIT
    assert admission_error(f"sets.contains({ones[0]}, {ones[0]})") is None
    assert matches(f"sets.contains({ones[0]}, {ones[0]})", DEVICE)
    assert cost_of(parse(f"sets.contains({ones[1]}, {ones[1]})")) == 20 + 1 + 1000 * 1000 > LIMIT
    assert admission_error(f"sets.contains({ones[1]}, {ones[1]})") == "too complex, exceeds cost limit"


def test_iterations_that_the_library_does_not_make() -> None:
    """Kubernetes answers; refused, as it is known to differ."""
    assert matches("lists.range(9999).all(x, x >= 0)", DEVICE)
    with pytest.raises(SelectorError, match="Iteration budget exceeded"):
        matches("lists.range(10000).all(x, x >= 0)", DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        "'%s'.format([device.attributes[?'q'].?z]) == 'a'",
        "[1].map(x, optional.of(x)).size() == 1",
        "{'a': optional.none()}.transformList(k, v, v).size() == 1",
        "cel.bind(x, [1].first(), [x].reverse().size() == 1)",
        "[device.attributes.q.?x.y].distinct().size() == 1",
        "[1].sortBy(x, true ? 1 : optional.of(x).value()).size() == 1 && [dyn(optional.of(1))].size() == 1",
    ],
)
def test_optional_values_in_lists_do_not_crash_the_process(expression: str) -> None:
    """The library reads them from freed memory when a function is handed the list."""
    with pytest.raises(SelectorError, match="optional values in a list or map cannot be evaluated"):
        matches(expression, DEVICE)


def test_optional_values_elsewhere_are_answered() -> None:
    assert matches(
        "[?optional.of(1), ?optional.none(), 2] == [1, 2] && {?'a': optional.of(1)}.a == 1", DEVICE
    )
    assert matches(
        "device.attributes.q.?x.y.orValue(3) == 3 && [1].first().optMap(x, x + 1).value() == 2", DEVICE
    )

"""CEL device selectors, evaluated as Kubernetes evaluates them: an answer is Kubernetes' answer or a
SelectorError.

The library is the C++ implementation of CEL; Kubernetes uses the Go one with libraries of its own. What
differs is bridged (syntax and translation rewrite the expression, functions adds what Kubernetes adds), and
what cannot be bridged is refused.

1. An unknown *domain* is an empty map, an unknown *id* a run-time error. The library's maps have no default,
   so look-ups of a domain are rewritten. A domain that is reached through a `cel.bind` variable keeps the
   library's error: that is an error where Kubernetes has an empty map, never a wrong answer, since CEL's
   operators are monotone.
2. Quantities, versions, addresses, URLs and formats are messages of a private proto package; their methods
   are Python functions over exact values. The library registers one implementation per kind of argument, so
   types share methods.
3. Kubernetes stops an evaluation at a cost of 1,000,000. The library counts nothing, so the bound is
   estimated before (cost).

What is known to differ. Refused where Kubernetes answers: comparing whole numbers of two types by `<` outside
of `dyn`, `asInteger` of a quantity from 10^18 on, a precision above 100 in `format`, 10,000 iterations in one
evaluation, 2,800 elements of a list that a comprehension makes, and others as rare. Answered where Kubernetes
has an error: a version (address, URL) compared by `==` with a value of another type is unequal; and some
expressions that Kubernetes refuses for their types, since the literals and calls in them, and what is deeper
than the library parses, are not typed as finely here. The API server does not store those.

Programs are cached by expression; results by expression and exactly the values that the expression reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any, Final, NamedTuple

from koordra.api.devices import Attribute, Capacity
from koordra.api.tables import SizedCache
from koordra.cel.cost import most_cost
from koordra.cel.environment import Evaluation, compiled, first_line
from koordra.cel.functions.values import cel_value, quantity_message
from koordra.cel.syntax import SyntaxRefused, parse
from koordra.cel.translation import names_read, translated
from koordra.effort import spend_on_selector
from koordra.errors import SelectorError

_SHOWN: Final = 200


class DeviceFacts(NamedTuple):
    """What a selector can read of a device; names are fully qualified (`domain/id`)."""

    driver: str
    allow_multiple_allocations: bool
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, Capacity]


def matches(expression: str, device: DeviceFacts) -> bool:
    """Whether the device satisfies the selector.

    Raises SelectorError when the expression does not compile, fails on this device, or is not a truth value.
    """
    program = _program(expression)
    if isinstance(program, str):
        detail = f"CEL compile error in {_shown(expression)}: {program}"
        raise SelectorError(detail, remedy="correct the expression")
    outcome = _outcome(program, _values_read(program, device))
    if isinstance(outcome, str):
        raise SelectorError(f"CEL runtime error in {_shown(expression)}: {outcome}")
    return outcome


def compile_error(expression: str) -> str | None:
    """Why the expression does not compile, None when it does."""
    program = _program(expression)
    return program if isinstance(program, str) else None


def admission_error(expression: str, *, list_attributes: bool = True) -> str | None:
    """Why the API server would not store the expression: it does not compile, or may cost too much.
    `list_attributes`: the gate that a new expression is held to."""
    program = _program(expression, list_attributes)
    if isinstance(program, str):
        return program
    return "too complex, exceeds cost limit" if program.evaluate is None else None


def names_read_by(expression: str) -> frozenset[str] | None:
    """The names (ids, without domain) the expression reads; None where it may read everything."""
    program = _program(expression)
    return frozenset() if isinstance(program, str) else program.names


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """`evaluate` is None where the expression is too complex to be evaluated. `number` tells it from all
    others: results go by it, which does not keep it alive."""

    evaluate: Evaluation | None
    names: frozenset[str] | None
    cost: int
    number: int = field(default_factory=count().__next__)


def _shown(expression: str) -> str:
    text = expression.strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


_programs: Final = SizedCache[tuple[str, bool], "_Program | str"](4 << 20)
"""By their text, of which each character takes up to 70 bytes in the library."""
_PROGRAM: Final = 256
_outcomes: Final = SizedCache[tuple[int, "_Values"], bool | str](16 << 20)
_CALL: Final = 32
"""Units of CEL that every evaluation costs besides."""
_OUTCOME: Final = 256
"""What every entry counts for besides its text."""


def _program(expression: str, list_attributes: bool = True) -> _Program | str:
    key = expression, list_attributes
    known = _programs.get(key)
    if known is None:
        spend_on_selector(4 * len(expression) + 8 * _CALL)
        known = _programs.keep(key, _compiled(*key), len(expression) + _PROGRAM)
    return known


def _compiled(expression: str, list_attributes: bool) -> _Program | str:
    if not expression.strip():
        return "the expression is empty"
    try:
        tree = parse(expression)
        cost = most_cost(tree)
        if cost is None:
            return _Program(None, names_read(tree), 0)
        evaluate, kind = compiled(translated(tree), list_attributes=list_attributes)
    except SyntaxRefused as refused:
        return str(refused)
    except (RuntimeError, ValueError, TypeError) as error:
        return first_line(error)
    if kind.lower() not in ("bool", "dyn"):
        return f"must evaluate to bool or the unknown type, not {kind.lower()}"
    return _Program(evaluate, names_read(tree), cost)


# --- values -------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """The hashable extract of a device that one program can see."""

    driver: str
    allow_multiple_allocations: bool
    attributes: tuple[tuple[str, str, str, Any], ...]
    capacity: tuple[tuple[str, str, Decimal], ...]
    unsupported: str


def _values_read(program: _Program, device: DeviceFacts) -> _Values:
    names = program.names
    attributes = []
    unsupported = ""
    for qualified, attribute in sorted(device.attributes.items()):
        domain, _, name = qualified.rpartition("/")
        if not attribute.kind:
            unsupported = unsupported or f"attribute {name}: unsupported attribute value"
        elif names is None or name in names:
            attributes.append((domain, name, attribute.kind, attribute.value))
    capacity = []
    for qualified, entry in sorted(device.capacity.items()):
        domain, _, name = qualified.rpartition("/")
        if names is None or name in names:
            capacity.append((domain, name, entry.value))
    return _Values(
        device.driver, device.allow_multiple_allocations, tuple(attributes), tuple(capacity), unsupported
    )


def _outcome(program: _Program, values: _Values) -> bool | str:
    """The answer, or the text of the run-time error, worked out once for the same values."""
    key = program.number, values
    known = _outcomes.get(key)
    if known is None:
        spend_on_selector(program.cost + _CALL)
        size = sum(len(str(part)) for entry in (*values.attributes, *values.capacity) for part in entry)
        known = _outcomes.keep(key, _evaluated(program, values), size + _OUTCOME)
    return known


def _evaluated(program: _Program, values: _Values) -> bool | str:
    """The answer, or the text of the run-time error."""
    if values.unsupported:
        return values.unsupported
    if program.evaluate is None:
        return "operation cancelled: actual cost limit exceeded"
    attributes: dict[str, dict[str, Any]] = {}
    for domain, name, kind, value in values.attributes:
        attributes.setdefault(domain, {})[name] = cel_value(kind, value)
    capacity: dict[str, dict[str, Any]] = {}
    for domain, name, amount in values.capacity:
        capacity.setdefault(domain, {})[name] = quantity_message(amount)
    try:
        result = program.evaluate(
            {
                "device.driver": values.driver,
                "device.allowMultipleAllocations": values.allow_multiple_allocations,
                "device.attributes": attributes,
                "device.capacity": capacity,
            }
        )
        kind, value = str(result.type().name()), result.value()
    except (RuntimeError, ValueError, TypeError) as error:
        return first_line(error)
    if isinstance(value, bool):
        return value
    if kind.upper() == "ERROR":
        return first_line(value)
    return f"CEL result of type {kind.lower()} could not be converted to bool"

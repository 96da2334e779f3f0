"""CEL device selectors, evaluated as Kubernetes evaluates them. The only module that knows `cel-expr-python`.

The library is the C++ implementation of CEL; Kubernetes uses the Go one with libraries of its own. What differs is
bridged here, and what cannot be bridged is refused: the rule is that an answer is Kubernetes' answer or a SelectorError.

1. `device.driver`, `device.attributes`, `device.capacity`, `device.allowMultipleAllocations` are declared as four
   variables with dots in their names, so any other field of `device` is an undeclared reference, as in Kubernetes.
2. An unknown *domain* is an empty map, an unknown *id* a run-time error. The library's maps have no default, so
   the tokens `device.attributes[X]` are rewritten to `device.attributes[?X].orValue({})` before compiling (`[?X]` becomes
   an optional that is always present). A domain that is reached through a `cel.bind` variable keeps the library's
   error: that is an error where Kubernetes has an empty map, never a wrong answer, since CEL's operators are monotone.
3. Quantities, versions, addresses, URLs and formats are messages of a private proto package; their methods are Python functions
   over exact values (functions.py). The library registers one implementation per kind of argument, so types share methods.
4. Comprehensions of two variables, sortBy and a few functions are rewritten into what the library has (macros.py).
5. Kubernetes stops an evaluation at a cost of 1,000,000. The library counts nothing; comprehensions nested deeper than
   `_MAX_NESTING`, each of which walks at most 48 values, are refused up front.

What is known to differ. Refused where Kubernetes answers: comparing whole numbers of two types by `<` outside of `dyn`, `asInteger`
of a quantity from 10^18 on, regular expressions that Python reads otherwise, and others as rare. Answered where Kubernetes has an
error: a version (address, URL) compared by `==` with a value of another type is unequal; and some expressions that Kubernetes
refuses for their types, since the literals and calls in them are not typed as finely here. The API server does not store those.

Programs are cached by expression; results by expression and exactly the values that the expression reads.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cel_expr_python import cel  # type: ignore[attr-defined, unused-ignore]
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from koordra.api.devices import Attribute, Capacity
from koordra.cel.functions import (
    FUNCTIONS,
    INCLUDES,
    METHODS,
    POOL,
    Overload,
    cel_value,
    quantity_message,
)
from koordra.cel.macros import refusal, rewritten
from koordra.cel.tokens import names_read, nesting, tokens_of, with_empty_domains
from koordra.errors import SelectorError

_MAX_EXPRESSION: Final = 10 * 1024
_MAX_NESTING: Final = 3


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
        raise SelectorError(
            f"CEL compile error in {expression.strip()!r}: {program}", remedy="correct the expression"
        )
    outcome = _outcome(program, _values_read(program, device))
    if isinstance(outcome, str):
        raise SelectorError(f"CEL runtime error in {expression.strip()!r}: {outcome}")
    return outcome


def compile_error(
    expression: str, *, consumable_capacity: bool = True, list_attributes: bool = True
) -> str | None:
    """Why the expression does not compile, None when it does. The flags are the gates a new expression is held to."""
    program = _program(expression, consumable_capacity, list_attributes)
    return program if isinstance(program, str) else None


def names_read_by(expression: str) -> frozenset[str] | None:
    """The names (ids, without domain) the expression reads; None where it may read everything."""
    program = _program(expression)
    return frozenset() if isinstance(program, str) else program.reads.names


class Reads(NamedTuple):
    """The names (ids, without domain) an expression reads; None where it may read everything."""

    names: frozenset[str] | None


class _Program(NamedTuple):
    expression: str
    run: Any
    reads: Reads


@lru_cache(maxsize=4096)
def _program(
    expression: str, consumable_capacity: bool = True, list_attributes: bool = True
) -> _Program | str:
    if not expression.strip():
        return "the expression is empty"
    if len(expression.encode()) > _MAX_EXPRESSION:
        return f"the expression is longer than {_MAX_EXPRESSION} bytes"
    tokens = tokens_of(expression)
    refused = refusal(tokens)
    if refused is not None:
        return refused
    if nesting(tokens) > _MAX_NESTING:
        # Reported as Kubernetes words it; it is a run-time limit there.
        return _Program(expression, None, Reads(None))
    try:
        run = _environment(consumable_capacity, list_attributes).compile(
            "".join(with_empty_domains(rewritten(tokens)))
        )
    except (RuntimeError, ValueError, TypeError) as error:
        return _first_line(error)
    kind = str(run.return_type().name())
    if kind not in ("BOOL", "bool", "DYN", "dyn"):
        return f"must evaluate to bool or the unknown type, not {kind.lower()}"
    return _Program(expression, run, Reads(names_read(tokens)))


# --- values ---------------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """The hashable extract of a device that one program can see."""

    driver: str
    allow_multiple_allocations: bool
    attributes: tuple[tuple[str, str, str, Any], ...]
    capacity: tuple[tuple[str, str, Decimal], ...]
    unsupported: str


def _values_read(program: _Program, device: DeviceFacts) -> _Values:
    names = program.reads.names
    attributes = []
    unsupported = ""
    for qualified in sorted(device.attributes):
        domain, _, name = qualified.rpartition("/")
        attribute = device.attributes[qualified]
        if not attribute.kind:
            unsupported = unsupported or f"attribute {name}: unsupported attribute value"
        elif names is None or name in names:
            attributes.append((domain, name, attribute.kind, attribute.value))
    capacity = []
    for qualified in sorted(device.capacity):
        domain, _, name = qualified.rpartition("/")
        if names is None or name in names:
            capacity.append((domain, name, device.capacity[qualified].value))
    return _Values(
        device.driver, device.allow_multiple_allocations, tuple(attributes), tuple(capacity), unsupported
    )


@lru_cache(maxsize=65536)
def _outcome(program: _Program, values: _Values) -> bool | str:
    """The answer, or the text of the run-time error."""
    if values.unsupported:
        return values.unsupported
    if program.run is None:
        return "actual cost limit exceeded (comprehensions are nested too deeply to be evaluated safely)"
    attributes: dict[str, dict[str, Any]] = {}
    for domain, name, kind, value in values.attributes:
        attributes.setdefault(domain, {})[name] = cel_value(kind, value)
    capacity: dict[str, dict[str, Any]] = {}
    for domain, name, amount in values.capacity:
        capacity.setdefault(domain, {})[name] = quantity_message(amount)
    try:
        result = program.run.eval(
            data={
                "device.driver": values.driver,
                "device.allowMultipleAllocations": values.allow_multiple_allocations,
                "device.attributes": attributes,
                "device.capacity": capacity,
            }
        )
        kind, value = str(result.type().name()), result.value()
    except (RuntimeError, ValueError, TypeError) as error:
        return _first_line(error)
    if isinstance(value, bool):
        return value
    if kind.upper() == "ERROR":
        return _first_line(value)
    return f"CEL result of type {kind.lower()} could not be converted to bool"


def _first_line(error: object) -> str:
    text = str(error).removeprefix("INVALID_ARGUMENT: ").removeprefix("NOT_FOUND: ").removeprefix("UNKNOWN: ")
    line = re.sub(r" \[[A-Z_]+\]$", "", text.splitlines()[0]) if text else "unknown error"
    line = re.sub(r'Key not found in map : "(.*)"', r"no such key: \1", line)
    return line.replace("No matching overloads found : <iter_range>", "expected iterable type")


# --- the environment --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _environment(consumable_capacity: bool, list_attributes: bool) -> Any:
    kind = cel.Type
    kinds = {
        "bool": kind.BOOL,
        "int": kind.INT,
        "double": kind.DOUBLE,
        "string": kind.STRING,
        "strings": kind.List(kind.STRING),
        "list": kind.LIST,
        "dyn": kind.DYN,
        "uint": kind.UINT,
        "bytes": kind.BYTES,
        "duration": kind.DURATION,
        "timestamp": kind.TIMESTAMP,
        "ints": kind.List(kind.INT),
        "map": kind.MAP,
        "parameters": kind.Map(kind.STRING, kind.List(kind.STRING)),
        "validated": kind.List(kind.List(kind.STRING)),
        "formats": kind.List(kind("kubernetes.NamedFormat")),
        "url": kind("kubernetes.URL"),
        "format": kind("kubernetes.NamedFormat"),
        "ip": kind("net.IP"),
        "cidr": kind("net.CIDR"),
        "quantity": kind("kubernetes.Quantity"),
        "semver": kind("kubernetes.Semver"),
    }
    numbers = itertools.count()

    def kind_of(name: str) -> Any:
        if name.startswith("list:"):
            return kind.List(kind_of(name.removeprefix("list:")))
        if name.startswith("map:"):
            key, _, value = name.removeprefix("map:").partition(":")
            return kind.Map(kinds[key], kind_of(value))
        return kinds[name]

    def overloads(name: str, given: Sequence[Overload], *, member: bool) -> list[Any]:
        return [
            cel.Overload(
                f"koordra_{name.replace('.', '_')}_{next(numbers)}",
                return_type=kind_of(result),
                parameters=[kind_of(argument) for argument in arguments],
                is_member=member,
                **({"impl": implementation} if implementation else {}),
            )
            for arguments, result, implementation in given
        ]

    methods = METHODS | ({"includes": INCLUDES} if list_attributes else {})
    functions = [
        cel.FunctionDecl(
            name,
            overloads(name, methods.get(name, ()), member=True)
            + overloads(name, FUNCTIONS.get(name, ()), member=False),
        )
        for name in methods | FUNCTIONS
    ]
    variables = {
        "device.driver": kind.STRING,
        "device.attributes": kind.Map(kind.STRING, kind.Map(kind.STRING, kind.DYN)),
        "device.capacity": kind.Map(kind.STRING, kind.Map(kind.STRING, kinds["quantity"])),
    }
    if consumable_capacity:
        variables["device.allowMultipleAllocations"] = kind.BOOL
    return cel.NewEnv(
        descriptor_pool=POOL,
        variables=variables,
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=functions,
    )

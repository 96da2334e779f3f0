"""The CEL library with Kubernetes' declarations for device selectors. The only module that knows
`cel-expr-python`.

`device.driver`, `device.attributes`, `device.capacity` and `device.allowMultipleAllocations` are four
variables with dots in their names, so any other field of `device` is an undeclared reference, as in
Kubernetes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel  # type: ignore[attr-defined, unused-ignore]

from koordra.cel.functions import FUNCTIONS, INCLUDES, METHODS, Overload
from koordra.cel.functions.lists import plain, returned
from koordra.cel.functions.values import POOL
from koordra.cel.translation import PART, Written

Evaluation = Callable[[Mapping[str, Any]], Any]
"""The variables -> a value of the library; raises RuntimeError, ValueError or TypeError."""

_RUNNING: Final[ContextVar[tuple[Mapping[str, Any], Sequence[Any]]]] = ContextVar("running")
"""The variables of the evaluation under way and its programs, for the parts that it asks for."""


def compiled(parts: Sequence[Written], *, list_attributes: bool) -> tuple[Evaluation, str]:
    """An expression and what its type is called, see `translated`. Raises RuntimeError, ValueError or
    TypeError."""
    programs = [_environment(list_attributes, written.free).compile(written.text) for written in parts]

    def evaluate(variables: Mapping[str, Any]) -> Any:
        before = _RUNNING.set((variables, programs))
        try:
            return programs[-1].eval(data=dict(variables))
        finally:
            _RUNNING.reset(before)

    return evaluate, str(programs[-1].return_type().name())


def _part(number: int, variables: Mapping[str, Any]) -> Any:
    """The value of a part of the expression under way."""
    given, programs = _RUNNING.get()
    own = dict(zip(variables, plain(variables.values()), strict=True))
    found = programs[number].eval(data={**given, **own})
    if str(found.type().name()).upper() == "ERROR":
        raise ValueError(str(found.value()))
    return returned(found.value())


_CODE: Final = re.compile(r"^(?:INVALID_ARGUMENT|NOT_FOUND|UNKNOWN|OUT_OF_RANGE|ALREADY_EXISTS): ")


def first_line(error: object) -> str:
    """The library's words as Kubernetes has them."""
    text = _CODE.sub("", str(error))
    line = re.sub(r" \[[A-Z_]+\]$", "", text.splitlines()[0]) if text else "unknown error"
    line = re.sub(r'Key not found in map : "(.*)"', r"no such key: \1", line)
    return line.replace("No matching overloads found : <iter_range>", "expected iterable type")


_LIBRARIES: Final = cel.NewEnvConfigFromYaml(
    "extensions: [{name: bindings}, {name: lists}, {name: optional}, {name: sets}, {name: strings},"
    " {name: two-var-comprehensions}]"
)
"""The extensions of the library that Kubernetes has too."""

_KINDS: Final[dict[str, Any]] = {
    "bool": cel.Type.BOOL,
    "int": cel.Type.INT,
    "uint": cel.Type.UINT,
    "double": cel.Type.DOUBLE,
    "string": cel.Type.STRING,
    "bytes": cel.Type.BYTES,
    "duration": cel.Type.DURATION,
    "timestamp": cel.Type.TIMESTAMP,
    "list": cel.Type.LIST,
    "map": cel.Type.MAP,
    "dyn": cel.Type.DYN,
    "url": cel.Type("kubernetes.URL"),
    "format": cel.Type("kubernetes.NamedFormat"),
    "ip": cel.Type("net.IP"),
    "cidr": cel.Type("net.CIDR"),
    "quantity": cel.Type("kubernetes.Quantity"),
    "semver": cel.Type("kubernetes.Semver"),
}


def _kind(name: str) -> Any:
    """`list:X` and `map:K:X` nest."""
    if name.startswith("list:"):
        return cel.Type.List(_kind(name.removeprefix("list:")))
    if name.startswith("map:"):
        key, _, value = name.removeprefix("map:").partition(":")
        return cel.Type.Map(_KINDS[key], _kind(value))
    return _KINDS[name]


@lru_cache(maxsize=16)
def _environment(list_attributes: bool, variables: frozenset[str]) -> Any:
    numbers = itertools.count()

    def overloads(name: str, given: Sequence[Overload], *, member: bool) -> list[Any]:
        return [
            cel.Overload(
                f"koordra_{name.replace('.', '_')}_{next(numbers)}",
                return_type=_kind(result),
                parameters=[_kind(argument) for argument in arguments],
                is_member=member,
                **({"impl": implementation} if implementation else {}),
            )
            for arguments, result, implementation in given
        ]

    methods = METHODS | ({"includes": INCLUDES} if list_attributes else {})
    functions = FUNCTIONS | {PART: ((("int", "map"), "dyn", _part),)}
    declared = {
        "device.driver": "string",
        "device.attributes": "map:string:map:string:dyn",
        "device.capacity": "map:string:map:string:quantity",
        "device.allowMultipleAllocations": "bool",
        **dict.fromkeys(variables, "dyn"),
    }
    return cel.NewEnv(
        descriptor_pool=POOL,
        variables={name: _kind(kind) for name, kind in declared.items()},
        config=_LIBRARIES,
        functions=[
            cel.FunctionDecl(
                name,
                overloads(name, methods.get(name, ()), member=True)
                + overloads(name, functions.get(name, ()), member=False),
            )
            for name in methods | functions
        ],
    )

"""CEL as admission policies and match conditions use it: `object`, `oldObject`, `request`, `params`,
`variables`, `authorizer`.

The library is the one that evaluates device selectors; here everything is dynamically typed JSON. What the
library cannot evaluate as Kubernetes would (its extension libraries: URLs, IP addresses, formats, quantities)
is an error, never an answer: the real server always has the last word on a policy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel  # type: ignore[attr-defined, unused-ignore]
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from koordra.errors import SelectorError

Check = Callable[[str, str, str, str], bool]
"""(group, resource, namespace, verb) -> whether the asking user may; without a namespace, everywhere."""

_NAMES: Final = ("object", "oldObject", "request", "params", "variables", "namespaceObject")


def evaluate(expression: str, values: Mapping[str, Any], *, check: Check) -> Any:
    """The value as plain JSON. Raises SelectorError where it does not compile or fails."""
    program = _program(expression)
    if isinstance(program, str):
        raise SelectorError(f"compilation failed: {program}")
    data = {name: values.get(name) for name in _NAMES}
    authorizer = {"group": "", "resource": "", "namespace": "", "verb": ""}
    before, _CHECK.value = getattr(_CHECK, "value", None), check
    try:
        result = program.eval(data={**data, "authorizer": authorizer})
        value = _plain(result)
    except (RuntimeError, ValueError, TypeError) as error:
        raise SelectorError(str(error).splitlines()[0] if str(error) else "unknown error") from error
    finally:
        _CHECK.value = before
    if str(result.type().name()).upper() == "ERROR":
        raise SelectorError(str(value).splitlines()[0])
    return value


@lru_cache(maxsize=512)
def _program(expression: str) -> Any:
    try:
        return _environment().compile(expression)
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error).splitlines()[0] if str(error) else "unknown error"


def _plain(value: Any) -> Any:
    """Plain JSON from a value of the library, whose lists and maps hold values again."""
    inner = value.value() if hasattr(value, "value") and callable(value.value) else value
    if isinstance(inner, list | tuple):
        return [_plain(item) for item in inner]
    if isinstance(inner, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in inner.items()}
    return inner


# The authorizer is a map that its methods fill in; `allowed` asks whoever evaluates in this thread.
_CHECK: Final = threading.local()


def _with(name: str) -> Callable[[Mapping[str, Any], str], dict[str, Any]]:
    return lambda authorizer, value: {**authorizer, name: value}


def _allowed(authorizer: Mapping[str, Any]) -> bool:
    check: Check = _CHECK.value
    return check(*(str(authorizer[name]) for name in ("group", "resource", "namespace", "verb")))


_METHODS: Final = {"group": "group", "resource": "resource", "namespace": "namespace", "check": "verb"}


@lru_cache(maxsize=1)
def _environment() -> Any:
    kind = cel.Type
    asked = kind.Map(kind.STRING, kind.DYN)
    functions = [
        cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"authorizer_{name}",
                    return_type=asked,
                    parameters=[asked, kind.STRING],
                    is_member=True,
                    impl=_with(field),
                )
            ],
        )
        for name, field in _METHODS.items()
    ]
    functions.append(
        cel.FunctionDecl(
            "allowed",
            [
                cel.Overload(
                    "authorizer_allowed",
                    return_type=kind.BOOL,
                    parameters=[asked],
                    is_member=True,
                    impl=_allowed,
                )
            ],
        )
    )
    return cel.NewEnv(
        variables={**dict.fromkeys(_NAMES, kind.DYN), "authorizer": asked},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=functions,
    )

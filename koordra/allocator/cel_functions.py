"""Quantities, semantic versions and the functions over them that Kubernetes adds to CEL.

Values of both kinds travel through the CEL library as messages of a private proto package; the one field holds the exact value
as text and cannot be named by an expression. Functions raise ValueError for what is a run-time error in Kubernetes.

Source: k8s.io/apiserver/pkg/cel/library (quantity, semver, regex, lists), cel-go's sets extension, and k8s.io/dynamic-resource-allocation/cel (includes).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from koordra.allocator.semver import Semver
from koordra.errors import InvalidInput
from koordra.quantity import parse

EXACT_FIELD: Final = "koordra_exact"
_MAX_INCLUDES: Final = 48


def _message_classes() -> tuple[Any, Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="koordra/cel.proto", package="kubernetes", syntax="proto3")
    for name in ("Quantity", "Semver"):
        message = file.message_type.add(name=name)
        message.field.add(
            name=EXACT_FIELD,
            number=1,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool.Add(file)
    find = pool.FindMessageTypeByName
    get = message_factory.GetMessageClass
    return pool, get(find("kubernetes.Quantity")), get(find("kubernetes.Semver"))


POOL, _Quantity, _Semver = _message_classes()


def quantity_message(amount: Decimal) -> Any:
    return _Quantity(koordra_exact=f"{amount.normalize():f}" if amount else "0")


def cel_value(kind: str, value: Any) -> Any:
    if kind == "version":
        return semver(value)
    if kind == "versions":
        return [semver(item) for item in value]
    return list(value) if isinstance(value, tuple) else value


def semver(text: str, normalize: bool = False) -> Any:
    return _Semver(koordra_exact=str(Semver.parse(text, normalize=normalize)))


def _exact(message: Any) -> Decimal | Semver:
    if isinstance(message, _Quantity):
        return Decimal(message.koordra_exact)
    if isinstance(message, _Semver):
        return Semver.parse(message.koordra_exact)
    raise ValueError(f"no such overload for {type(message).__name__}")


def compare(left: Any, right: Any) -> int:
    if type(left) is not type(right):
        raise ValueError("no such overload: cannot compare a quantity with a version")
    a: Any
    b: Any
    a, b = _exact(left), _exact(right)
    return int(a > b) - int(a < b)


def is_valid(read: Callable[[], object]) -> bool:
    try:
        read()
    except (InvalidInput, ValueError):
        return False
    return True


def find(text: str, pattern: str) -> str:
    found = _regex(pattern).search(text)
    return found.group() if found else ""


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match.group() for match in _regex(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    """RE2 syntax as far as Python's `re` means the same by it; look-around and back-references are not RE2."""
    if re.search(r"\(\?(?:[=!>(]|<[=!]|P[=>])|\\[1-9]|[*+?}]\+|\\[zZ]|\$", pattern):
        raise ValueError(f"regular expression {pattern!r} uses a form that cannot be evaluated as RE2 would")
    try:
        return re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ValueError(f"error parsing regexp: {error}") from error


def includes(value: Any, wanted: Any) -> bool:
    if not isinstance(value, list):
        return bool(type(value) is type(wanted) and value == wanted)
    if len(value) > _MAX_INCLUDES:
        raise ValueError("'includes' function cannot be applied to lists longer than 48 values")
    return any(type(item) is type(wanted) and item == wanted for item in _plain(value))


def _equal(left: Any, right: Any) -> bool:
    """CEL's equality of two elements: numbers by value, nothing else across types."""
    if isinstance(left, list | dict) or isinstance(right, list | dict):
        raise ValueError("elements that are lists or maps cannot be compared here")
    if isinstance(left, _Quantity | _Semver) and isinstance(right, _Quantity | _Semver):
        return type(left) is type(right) and compare(left, right) == 0
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _plain(items: Any) -> list[Any]:
    return [item.value() if hasattr(item, "plain_value") else item for item in items]


def _contains(items: Any, wanted: Any) -> bool:
    have = _plain(items)
    return all(any(_equal(one, other) for other in have) for one in _plain(wanted))


def _intersects(items: Any, others: Any) -> bool:
    have = _plain(items)
    return any(_equal(one, other) for one in _plain(others) for other in have)


def _of_one_kind(items: Any, kinds: tuple[type, ...]) -> list[Any]:
    plain = _plain(items)
    if plain and not any(all(type(item) is kind for item in plain) for kind in kinds):
        raise ValueError("no such overload: the elements are not all of one comparable type")
    return plain


def _extreme(name: str, choose: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def found(items: Any) -> Any:
        plain = _of_one_kind(items, (int, float, str, bool))
        if not plain:
            raise ValueError(f"{name} called on empty list")
        return choose(plain)

    return found


def _is_sorted(items: Any) -> bool:
    plain = _of_one_kind(items, (int, float, str, bool))
    return all(one <= other for one, other in itertools.pairwise(plain))


def _sum(items: Any) -> Any:
    total = sum(_of_one_kind(items, (int, float)))
    if isinstance(total, int) and not -(2**63) <= total < 2**63:
        raise ValueError("integer overflow")
    return total


def to_int(message: Any) -> int:
    value = Decimal(message.koordra_exact)
    if value != value.to_integral_value() or not -(2**63) <= value < 2**63:
        raise ValueError("cannot convert value to integer")
    return int(value)


def _part(number: int) -> Callable[[Any], int]:
    return lambda message: int(Semver.parse(str(message.koordra_exact)).numbers[number])


def _add(left: Any, right: Any, sign: int = 1) -> Any:
    other = Decimal(right) if isinstance(right, int) else Decimal(right.koordra_exact)
    return quantity_message(Decimal(left.koordra_exact) + sign * other)


def _subtract(left: Any, right: Any) -> Any:
    return _add(left, right, sign=-1)


Overload = tuple[tuple[str, ...], str, Callable[..., Any] | None]
"""Kinds of the arguments, kind of the result, implementation."""

_Q, _S = "quantity", "semver"

# The library registers one implementation per kind of value, and both message types are of one kind: the first overload of
# a method brings the implementation for both, the second (None) only informs the type checker.
METHODS: Final[dict[str, tuple[Overload, ...]]] = {
    "isGreaterThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) > 0), ((_S, _S), "bool", None)),
    "isLessThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) < 0), ((_S, _S), "bool", None)),
    "compareTo": (((_Q, _Q), "int", compare), ((_S, _S), "int", None)),
    "sign": (((_Q,), "int", lambda q: compare(q, quantity_message(Decimal(0)))),),
    "isInteger": (((_Q,), "bool", lambda q: is_valid(lambda: to_int(q))),),
    "asInteger": (((_Q,), "int", to_int),),
    "asApproximateFloat": (((_Q,), "double", lambda q: float(q.koordra_exact)),),
    "add": (((_Q, _Q), _Q, _add), ((_Q, "int"), _Q, _add)),
    "sub": (((_Q, _Q), _Q, _subtract), ((_Q, "int"), _Q, _subtract)),
    "major": (((_S,), "int", _part(0)),),
    "minor": (((_S,), "int", _part(1)),),
    "patch": (((_S,), "int", _part(2)),),
    "find": ((("string", "string"), "string", find),),
    "findAll": (
        (("string", "string"), "strings", find_all),
        (("string", "string", "int"), "strings", find_all),
    ),
    "isSorted": ((("list",), "bool", _is_sorted),),
    "sum": ((("list",), "dyn", _sum),),
    "min": ((("list",), "dyn", _extreme("min", min)),),
    "max": ((("list",), "dyn", _extreme("max", max)),),
}

FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "quantity": ((("string",), _Q, lambda text: quantity_message(parse(text))),),
    "isQuantity": ((("string",), "bool", lambda text: is_valid(lambda: parse(text))),),
    "semver": ((("string",), _S, semver), (("string", "bool"), _S, semver)),
    "sets.contains": ((("list", "list"), "bool", _contains),),
    "sets.equivalent": ((("list", "list"), "bool", lambda a, b: _contains(a, b) and _contains(b, a)),),
    "sets.intersects": ((("list", "list"), "bool", _intersects),),
    "isSemver": (
        (("string",), "bool", lambda text: is_valid(lambda: semver(text))),
        (("string", "bool"), "bool", lambda text, loose: is_valid(lambda: semver(text, loose))),
    ),
}

# Implementations are found by kind and there is no wildcard: every pairing of kinds is registered.
_SCALARS: Final = ("bool", "int", "string", _S)
INCLUDES: Final[tuple[Overload, ...]] = tuple(
    ((left, right), "bool", includes) for left in (*_SCALARS, "list") for right in _SCALARS
)

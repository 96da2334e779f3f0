"""How large values of a selector can be, and what calls of functions and methods cost: the bounds that costs
are made of.

Source: cel-go's checker/cost.go and ext/, Kubernetes' pkg/cel/library/cost.go. What no rule here names costs
1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from koordra.cel.functions import FUNCTIONS, METHODS, RENAMED
from koordra.cel.syntax import Node

LIMIT: Final = 1_000_000
"""resource.k8s.io/v1 types.go, CELSelectorExpressionMaxCost."""
LIST, MAP, MESSAGE = 10, 30, 40
READ, PATTERN = 0.1, 0.25
_CEILING: Final = 2**63


class Value(NamedTuple):
    """Bounds of a value: how long it is at least and at most, all that is in it, and the same of its keys and
    items."""

    type: str
    low: int
    high: int
    weight: int
    key: Value | None = None
    item: Value | None = None


_NOTHING: Final = Value("", 0, 0, 0)


class Estimate(NamedTuple):
    cost: int
    value: Value


# Limits of ResourceSlices: resource.k8s.io/v1, types.go.
_ATTRIBUTE: Final = Value("dyn", 0, 64, 48 * 64)
_DOMAIN, _ID = Value("string", 0, 63, 63), Value("string", 0, 32, 32)
_QUANTITY: Final = Value("quantity", 1, 1, 1)
DEVICE: Final = {
    "driver": _DOMAIN,
    "allowMultipleAllocations": Value("bool", 1, 1, 1),
    "attributes": Value(
        "map:string:map:string:dyn",
        0,
        32,
        8192,
        _DOMAIN,
        Value("map:string:dyn", 0, 32, 8192, _ID, _ATTRIBUTE),
    ),
    "capacity": Value(
        "map:string:map:string:quantity",
        0,
        32,
        8192,
        _DOMAIN,
        Value("map:string:quantity", 0, 32, 8192, _ID, _QUANTITY),
    ),
}
SCALARS: Final = frozenset({"bool", "int", "uint", "double", "null", "type", "duration", "timestamp"})
TEXTS: Final = frozenset({"string", "bytes"})
OPTIONAL: Final = "optional"
MESSAGES: Final = frozenset({"quantity", "semver", "ip", "cidr", "url", "format"})


def scalar(kind: str = "dyn") -> Value:
    return Value(kind, 1, 1, 1)


def item_of(value: Value) -> Value:
    """An element of a list, a value of a map."""
    if value.item is not None:
        return value.item
    kind = value.type.split(":", 1)[1] if value.type.startswith("list:") else "dyn"
    return _inside(value, value.type.split(":", 2)[2] if value.type.startswith("map:") else kind)


def key_of(value: Value) -> Value:
    """What a comprehension of one variable walks over: keys of a map, elements of a list."""
    if value.type.startswith("map:"):
        return value.key or _inside(value, value.type.split(":", 2)[1])
    return item_of(value)


def _inside(value: Value, kind: str) -> Value:
    return scalar(kind) if kind in SCALARS else Value(kind, 0, value.weight, value.weight)


def union(values: Sequence[Value]) -> Value | None:
    """One value for all; of one alone also its parts."""
    if not values or all(value is values[0] for value in values):
        return values[0] if values else None
    kinds = {value.type for value in values}
    return Value(
        kinds.pop() if len(kinds) == 1 else OPTIONAL if OPTIONAL in kinds else "dyn",
        min(value.low for value in values),
        max(value.high for value in values),
        max(value.weight for value in values),
    )


def read(size: int, factor: float = READ) -> int:
    return math.ceil(min(size, _CEILING) * factor)


NAMESPACED: Final = frozenset(
    {name for name in FUNCTIONS if "." in name}
    | {"sets.contains", "sets.equivalent", "sets.intersects", "lists.range"}
    | {"strings.quote", "optional.of", "optional.none", "optional.ofNonZeroValue"}
)
"""Functions whose names look like a method of a variable."""


def called(name: str, cost: int, values: Sequence[Value], nodes: Sequence[Node]) -> Estimate:
    """A function or a method, whose receiver is the first of the values. A call without the arguments of its
    rule does not compile."""
    given = (*values, *[_NOTHING] * 3)
    own = _COSTS[name](*given) if name in _COSTS else 1
    first, weight = given[0], sum(value.weight for value in values)
    kind = _result(name, first.type)
    if kind in SCALARS or kind in MESSAGES:
        return Estimate(cost + own, scalar(kind))
    if name in _SAME:
        return Estimate(cost + own, first._replace(low=0))
    if name == "lists.range":
        literal = nodes and nodes[0].of == "int" and nodes[0].text.lstrip("-").isdigit()
        count = max(int(nodes[0].text), 0) if literal else LIMIT
        return Estimate(cost + LIST + 1 + count, Value("list:int", 0, count, count, None, scalar("int")))
    size = _SIZES[name](*given) if name in _SIZES else 64 + weight
    item = Value("string", 0, first.high, first.weight) if kind == "list:string" else None
    return Estimate(cost + own, Value(kind, 0, size, max(size, 1), None, item))


def _result(name: str, first: str) -> str:
    """The type of a result, as far as it follows from the first argument."""
    if name in _RESULTS:
        return _RESULTS[name]
    declared = METHODS.get(RENAMED.get(name, name), ()) + FUNCTIONS.get(name, ())
    kinds = {result for arguments, result, _ in declared if arguments[:1] == (first,)}
    kinds = kinds or {result for _, result, _ in declared}
    return kinds.pop() if len(kinds) == 1 else "dyn"


def _over_items(found: Value, *_: Value) -> int:
    """Comparing each element, or reading a string once."""
    if found.type in TEXTS:
        return read(found.high)
    item = item_of(found)
    return found.high * (1 + (read(item.high) if item.type in TEXTS else 0))


def _pairs(factor: float) -> Callable[..., int]:
    """Comparing elements with each other."""
    return lambda found, *_: LIST + 1 + math.ceil(factor * found.high * found.high)


def _sets(factor: int) -> Callable[..., int]:
    return lambda left, right, *_: (
        1 + factor * max(left.high * right.high, read(min(left.weight, right.weight)))
    )


def _replaced(text: Value, old: Value, new: Value, *_: Value) -> int:
    if old.low == 0:
        return (text.high + 1) * new.high + text.high
    return text.high if new.high <= old.low else math.ceil(text.high / old.low) * new.high


def _joined(items: Value, separator: Value, *_: Value) -> int:
    return items.high * (item_of(items).high + separator.high)


_RESULTS: Final = {
    **dict.fromkeys(("contains", "startsWith", "endsWith", "matches", "hasValue", "bool"), "bool"),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), "bool"),
    **dict.fromkeys(("size", "int", "getFullYear", "getMonth", "getDate", "getHours"), "int"),
    **dict.fromkeys(("getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getMinutes", "getSeconds"), "int"),
    **dict.fromkeys(
        ("string", "charAt", "lowerAscii", "upperAscii", "substring", "trim", "replace", "join"), "string"
    ),
    **dict.fromkeys(("format", "strings.quote"), "string"),
    **{name: name for name in ("uint", "double", "bytes", "duration", "timestamp", "type")},
    "getMilliseconds": "int",
    "split": "list:string",
    **dict.fromkeys(("first", "last", "or", "validate", "format.named"), OPTIONAL),
    **dict.fromkeys(("optional.of", "optional.none", "optional.ofNonZeroValue"), OPTIONAL),
}
_COSTS: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(
        (
            "url",
            "quantity",
            "isQuantity",
            "semver",
            "isSemver",
            "cidr",
            "isIP",
            "isCIDR",
            "lowerAscii",
            "upperAscii",
            "substring",
            "trim",
            "string",
            "bytes",
            "strings.quote",
            "format",
        ),
        lambda text, *_: max(1, read(text.high)),
    ),
    **dict.fromkeys(("ip.isCanonical", "replace", "split"), lambda text, *_: read(text.high, 2 * READ)),
    "join": lambda *values: read(_joined(*values)),
    "ip": lambda value, *_: 1 if value.type == "cidr" else read(value.high),
    **dict.fromkeys(("startsWith", "endsWith"), lambda _text, part, *_: read(part.high)),
    "contains": lambda text, part, *_: read(text.high) * read(part.high),
    **dict.fromkeys(
        ("matches", "find", "findAll"),
        lambda text, pattern, *_: read(text.high + 1) * read(pattern.high, PATTERN),
    ),
    "validate": lambda _format, text, *_: read(read(text.high), 128 * PATTERN),
    "containsIP": lambda _network, other, *_: 4 + (read(other.high) if other.type == "string" else 0),
    "containsCIDR": lambda _network, other, *_: 7 + (read(other.high) if other.type == "string" else 0),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_items),
    "includes": lambda _items, wanted, *_: 48 * max(1, read(wanted.weight)),
    **dict.fromkeys(("slice", "reverse"), lambda items, *_: LIST + 1 + items.high),
    "flatten": lambda items, *_: LIST + 1 + items.weight,
    "distinct": _pairs(2),
    "sort": _pairs(2 + READ),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _sets(1)),
    "sets.equivalent": _sets(2),
}
_SIZES: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(
        ("lowerAscii", "upperAscii", "substring", "trim", "find", "split"), lambda text, *_: text.high
    ),
    "findAll": lambda text, *_: text.high + 1,
    "charAt": lambda *_: 1,
    "replace": _replaced,
    "join": _joined,
    "strings.quote": lambda text, *_: 2 * text.high + 2,
}
_SAME: Final = frozenset({"slice", "reverse", "sort", "distinct", "url"})
"""What is returned is no longer and no heavier than what was given."""

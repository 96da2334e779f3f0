"""How large values of a selector can be: the bounds that costs are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

LIMIT: Final = 1_000_000
LIST, MAP, MESSAGE = 10, 30, 40
READ, PATTERN = 0.1, 0.25
_CEILING: Final = 2**63


class Value(NamedTuple):
    """Bounds of a value: how long it is at least and at most, all that is in it, and the same of its keys and items."""

    type: str
    low: int
    high: int
    weight: int
    key: Value | None = None
    item: Value | None = None


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
    if value.type.startswith("map:"):
        kind = value.type.split(":", 2)[2]
    return scalar(kind) if kind in SCALARS else Value(kind, 0, value.weight, value.weight)


def key_of(value: Value) -> Value:
    """What a comprehension of one variable walks over: keys of a map, elements of a list."""
    if value.type.startswith("map:"):
        kind = value.type.split(":", 2)[1]
        return value.key or (scalar(kind) if kind in SCALARS else Value(kind, 0, value.weight, value.weight))
    return item_of(value)


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

"""What evaluating a selector can cost at most, in the units of the API server's estimate.

Kubernetes refuses a selector whose estimate is above 1,000,000 and stops an evaluation there; the library counts nothing, so the
estimate stands for both. Units and rules are cel-go's (checker/cost.go, ext/lists.go, ext/sets.go) and Kubernetes'
(k8s.io/apiserver/pkg/cel/library/cost.go, k8s.io/dynamic-resource-allocation/cel): 1 for a name, a field and most calls, 10 for a
list, 30 for a map, a tenth for each character that is read, every element of a comprehension's range times its body.

Two things differ. A size that Kubernetes takes for unknown, and the selector for too complex, is here what the value can hold at
most: nothing is refused for it that the API server stores. And a value has a weight, all that is in it: values that share parts
grow with every `cel.bind` while their sizes do not. Comparisons are charged by weight, and no value may be heavier than the limit.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from koordra.cel.functions import FUNCTIONS, METHODS, RENAMED
from koordra.cel.macros import is_bind, variables_of
from koordra.cel.syntax import Node, Steps, SyntaxRefused, walk

LIMIT: Final = 1_000_000
_LIST, _MAP, _MESSAGE = 10, 30, 40
_READ, _PATTERN = 0.1, 0.25
_CEILING: Final = 2**63
_ESCAPE: Final = re.compile(r"\\(?:[xX]..|u.{4}|U.{8}|[0-3][0-7]{2}|.)", re.DOTALL)


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
_DEVICE: Final = {
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
_SCALARS: Final = frozenset({"bool", "int", "uint", "double", "null", "type", "duration", "timestamp"})
_TEXTS: Final = frozenset({"string", "bytes"})
OPTIONAL: Final = "optional"
_MESSAGES: Final = frozenset({"quantity", "semver", "ip", "cidr", "url", "format"})
NAMESPACED: Final = frozenset(
    {name for name in FUNCTIONS if "." in name}
    | {"strings.quote", "optional.of", "optional.none", "optional.ofNonZeroValue"}
)
"""Functions whose names look like a method of a variable."""


def is_too_complex(expression: Node) -> bool:
    """Whether an evaluation may cost more than LIMIT, or make a value heavier than it."""
    coster = _Coster()
    return walk(coster.cost(expression)).cost > LIMIT or coster.heaviest > LIMIT


def scalar(kind: str = "dyn") -> Value:
    return Value(kind, 1, 1, 1)


def item_of(value: Value) -> Value:
    """An element of a list, a value of a map."""
    if value.item is not None:
        return value.item
    kind = value.type.split(":", 1)[1] if value.type.startswith("list:") else "dyn"
    if value.type.startswith("map:"):
        kind = value.type.split(":", 2)[2]
    return scalar(kind) if kind in _SCALARS else Value(kind, 0, value.weight, value.weight)


def key_of(value: Value) -> Value:
    """What a comprehension of one variable walks over: keys of a map, elements of a list."""
    if value.type.startswith("map:"):
        kind = value.type.split(":", 2)[1]
        return value.key or (scalar(kind) if kind in _SCALARS else Value(kind, 0, value.weight, value.weight))
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


def _asked(value: Value, *, optional: bool) -> Value:
    return value._replace(type=OPTIONAL) if optional else value


def _refuse_optional(values: Iterable[Value]) -> None:
    """The library crashes when it hands a list or map with an optional value in it to a function."""
    if any(value.type == OPTIONAL for value in values):
        raise SyntaxRefused("optional values in a list or map cannot be evaluated")


def _read(size: int, factor: float = _READ) -> int:
    return math.ceil(min(size, _CEILING) * factor)


class _Coster:
    def __init__(self) -> None:
        self.heaviest = 0
        self._variables: defaultdict[str, list[Value]] = defaultdict(list)

    def cost(self, node: Node) -> Steps[Estimate]:
        found: Estimate = yield getattr(self, f"_{node.kind}")(node)
        value = found.value
        self.heaviest = max(self.heaviest, value.weight)
        return found

    def _each(self, nodes: Sequence[Node]) -> Steps[list[Estimate]]:
        found: list[Estimate] = []
        for node in nodes:
            found += [(yield self.cost(node))]
        return found

    def _all(self, nodes: Sequence[Node]) -> Steps[tuple[int, list[Value]]]:
        """The costs together and each value."""
        found: list[Estimate] = yield self._each(nodes)
        return sum(each.cost for each in found), [each.value for each in found]

    def _within(self, variables: dict[str, Value], nodes: Sequence[Node]) -> Steps[list[Estimate]]:
        for name, value in variables.items():
            self._variables[name].append(value)
        found: list[Estimate] = yield self._each(nodes)
        for name in variables:
            self._variables[name].pop()
        return found

    def _name(self, node: Node) -> Steps[Estimate]:
        yield from ()
        bound = self._variables[node.text]
        return Estimate(1, bound[-1] if bound else scalar("device" if node.text == "device" else "dyn"))

    def _literal(self, node: Node) -> Steps[Estimate]:
        yield from ()
        if node.of not in _TEXTS:
            return Estimate(0, scalar(node.of))
        quotes = 3 if node.text[-3:] in ("'''", '"""') and len(node.text) > 5 else 1
        text = node.text.lstrip("bBrR")[quotes:-quotes]
        size = len(text.encode() if node.of == "bytes" else _ESCAPE.sub("x", text))
        return Estimate(0, Value(node.of, size, size, size))

    def _select(self, node: Node) -> Steps[Estimate]:
        cost, value = yield self.cost(node.parts[0])
        if value.type == "device":
            return Estimate(cost + 1, _DEVICE.get(node.text, scalar()))
        found = _asked(item_of(value), optional=bool(node.optional) or value.type == OPTIONAL)
        return Estimate(cost + (value.type.startswith("map:") or bool(node.optional)), found)

    def _index(self, node: Node) -> Steps[Estimate]:
        cost, (value, _index) = yield self._all(node.parts)
        return Estimate(
            cost + 1, _asked(item_of(value), optional=bool(node.optional) or value.type == OPTIONAL)
        )

    def _list(self, node: Node) -> Steps[Estimate]:
        cost, values = yield self._all(node.parts)
        _refuse_optional(value for n, value in enumerate(values) if n not in node.optional)
        item = union(values)
        size = len(values)
        weight = 1 + sum(value.weight for value in values)
        return Estimate(
            cost + _LIST,
            Value(f"list:{item.type if item else 'dyn'}", size, size, weight, scalar("int"), item),
        )

    def _map(self, node: Node) -> Steps[Estimate]:
        cost, values = yield self._all(node.parts)
        _refuse_optional(value for n, value in enumerate(values) if n - 1 not in node.optional)
        key, item = union(values[::2]), union(values[1::2])
        kind = f"map:{key.type}:{item.type}" if key and item and ":" not in key.type else "map:dyn:dyn"
        weight = 1 + sum(value.weight for value in values)
        return Estimate(cost + _MAP, Value(kind, len(values) // 2, len(values) // 2, weight, key, item))

    def _message(self, node: Node) -> Steps[Estimate]:
        cost, values = yield self._all(node.parts)
        return Estimate(cost + _MESSAGE, Value("dyn", 1, 1, 1 + sum(value.weight for value in values)))

    def _ternary(self, node: Node) -> Steps[Estimate]:
        condition, then, other = yield self._each(node.parts)
        value = union((then.value, other.value))
        assert value is not None
        return Estimate(condition.cost + max(then.cost, other.cost), value)

    def _logical(self, node: Node) -> Steps[Estimate]:
        cost, _values = yield self._all(node.parts)
        return Estimate(cost, scalar("bool"))

    def _unary(self, node: Node) -> Steps[Estimate]:
        cost, (value,) = yield self._all(node.parts)
        return Estimate(cost + 1, value)

    def _relation(self, node: Node) -> Steps[Estimate]:
        cost, (left, right) = yield self._all(node.parts)
        if node.text == "in":
            nested = left.type not in _SCALARS | _TEXTS
            own = 1 if right.type.startswith("map:") else max(right.high, _read(right.weight * nested))
        elif {left.type, right.type} & _SCALARS or left.type in _MESSAGES:
            own = 1
        else:
            own = _read(max(min(left.high, right.high), min(left.weight, right.weight)))
        return Estimate(cost + own, scalar("bool"))

    def _calc(self, node: Node) -> Steps[Estimate]:
        cost, (left, right) = yield self._all(node.parts)
        kind = left.type if left.type != "dyn" else right.type
        if node.text != "+" or kind in _SCALARS:
            return Estimate(cost + 1, scalar(kind))
        low, high, weight = left.low + right.low, left.high + right.high, left.weight + right.weight
        item = union([each for each in (left.item, right.item) if each])
        return Estimate(
            cost + max(1, _read(max(high, weight))), Value(kind, low, high, weight, scalar("int"), item)
        )

    def _call(self, node: Node) -> Steps[Estimate]:
        if node.text == "has" and len(node.parts) == 1 and node.parts[0].kind == "select":
            operand: Estimate = yield self.cost(node.parts[0].parts[0])
            return Estimate(operand.cost, scalar("bool"))
        cost, values = yield self._all(node.parts)
        if node.text == "dyn" and values:
            return Estimate(cost + 1, values[0])
        return _called(node.text, cost, values, node.parts)

    def _method(self, node: Node) -> Steps[Estimate]:
        receiver, arguments = node.parts[0], node.parts[1:]
        name = f"{receiver.text}.{node.text}" if receiver.kind == "name" else ""
        if is_bind(node):
            given: Estimate = yield self.cost(arguments[1])
            (found,) = yield self._within({arguments[0].text: given.value}, arguments[2:])
            return Estimate(_LIST + given.cost + found.cost, found.value)
        if name in NAMESPACED and not self._variables[receiver.text]:
            cost, values = yield self._all(arguments)
            return _called(name, cost, values, arguments)
        variables = variables_of(node)
        if variables:
            looped: Estimate = yield self._comprehension(node.text, variables, node.parts)
            return looped
        cost, values = yield self._all(node.parts)
        return _called(node.text, cost, values, node.parts)

    def _comprehension(self, name: str, variables: tuple[str, ...], parts: Sequence[Node]) -> Steps[Estimate]:
        cost, ranged = yield self.cost(parts[0])
        key = key_of(ranged) if len(variables) == 1 or ranged.type.startswith("map:") else scalar("int")
        if name.startswith("opt"):
            key = ranged
        bound = dict(zip(variables, (key, item_of(ranged)), strict=False))
        bodies: list[Estimate] = yield self._within(bound, parts[1 + len(variables) :])
        once, each = _LOOPS[name]
        body = bodies[-1].value
        count = min(ranged.high, ranged.weight)
        total = cost + once + count * (each + sum(found.cost for found in bodies))
        if name.startswith("opt"):
            # The expansion has the receiver twice: is there a value, and which.
            return Estimate(2 * cost + once + bodies[0].cost, _asked(body, optional=True))
        _refuse_optional(found.value for found in bodies)
        if each < 5 and not name.startswith("transform"):
            return Estimate(total, scalar("bool"))
        if name == "sortBy":
            return Estimate(total + math.ceil((2 + _READ) * count * count), ranged)
        if name == "filter":
            return Estimate(total, Value(f"list:{key.type}", 0, count, ranged.weight, None, key))
        weight = 1 + count * body.weight
        if name.startswith("transformMap"):
            return Estimate(total, Value("map:dyn:dyn", 0, count, weight))
        return Estimate(total, Value(f"list:{body.type}", 0, count, weight, None, body))


_LOOPS: Final = {
    "all": (1, 3),
    "exists": (1, 4),
    "exists_one": (2, 2),
    "existsOne": (2, 2),
    "map": (11, 12),
    "filter": (11, 13),
    "transformList": (11, 12),
    "transformMap": (31, 3),
    "transformMapEntry": (31, 2),
    "sortBy": (34, 12),
    "optMap": (14, 0),
    "optFlatMap": (13, 0),
}
"""What the expansion of a macro costs once and for each element, without its arguments: cel-go's parser/macro.go, ext/."""


# --- calls ------------------------------------------------------------------------------------------------------------


def _called(name: str, cost: int, values: Sequence[Value], nodes: Sequence[Node]) -> Estimate:
    """A function or a method, whose receiver is the first of the values."""
    own = _COSTS[name](*values) if name in _COSTS and len(values) >= _LEAST.get(name, 1) else 1
    weight = sum(value.weight for value in values)
    kind = _result(name, values[0].type if values else "")
    if kind in _SCALARS or kind in _MESSAGES:
        return Estimate(cost + own, scalar(kind))
    first = values[0] if values else scalar()
    if name in _SAME:
        return Estimate(cost + own, first._replace(low=0))
    if name == "lists.range":
        literal = nodes and nodes[0].of == "int" and nodes[0].text.lstrip("-").isdigit()
        count = int(nodes[0].text) if literal else LIMIT
        return Estimate(
            cost + _LIST + 1 + max(count, 0),
            Value("list:int", 0, max(count, 0), max(count, 0), None, scalar("int")),
        )
    size = _SIZES[name](*values) if name in _SIZES and len(values) >= _LEAST.get(name, 1) else 64 + weight
    item = (
        scalar("string")._replace(low=0, high=first.high, weight=first.weight)
        if kind == "list:string"
        else None
    )
    return Estimate(cost + own, Value(kind, 0, size, max(size, 1), None, item))


def _result(name: str, first: str) -> str:
    """The type of a result, as far as the first argument tells."""
    if name in _RESULTS:
        return _RESULTS[name]
    declared = METHODS.get(RENAMED.get(name, name), ()) + FUNCTIONS.get(name, ())
    kinds = {result for arguments, result, _ in declared if arguments[:1] == (first,)} or {
        each[1] for each in declared
    }
    return kinds.pop() if len(kinds) == 1 else "dyn"


def _over_items(found: Value, *_: Value) -> int:
    """Comparing each element, or reading a string once."""
    if found.type in _TEXTS:
        return _read(found.high)
    item = item_of(found)
    return found.high * (1 + (_read(item.high) if item.type in _TEXTS else 0))


def _pairs(factor: float) -> Callable[..., int]:
    """Comparing elements with each other."""
    return lambda found, *_: _LIST + 1 + math.ceil(factor * found.high * found.high)


def _sets(factor: int) -> Callable[..., int]:
    return lambda left, right, *_: (
        1 + factor * max(left.high * right.high, _read(min(left.weight, right.weight)))
    )


def _replaced(text: Value, old: Value, new: Value, *_: Value) -> int:
    if old.low == 0:
        return (text.high + 1) * new.high + text.high
    return text.high if new.high <= old.low else math.ceil(text.high / old.low) * new.high


def _joined(items: Value, *separator: Value) -> int:
    return items.high * item_of(items).high + (separator[0].high if separator else 0) * items.high


_RESULTS: Final = {
    **dict.fromkeys(("contains", "startsWith", "endsWith", "matches", "hasValue", "bool"), "bool"),
    **dict.fromkeys(
        ("size", "int", "indexOf", "lastIndexOf", "getFullYear", "getMonth", "getDate", "getHours"), "int"
    ),
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
        lambda text, *_: max(1, _read(text.high)),
    ),
    **dict.fromkeys(("ip.isCanonical", "replace", "split"), lambda text, *_: _read(text.high, 2 * _READ)),
    "join": lambda *values: _read(_joined(*values)),
    "ip": lambda value: 1 if value.type == "cidr" else _read(value.high),
    **dict.fromkeys(("startsWith", "endsWith"), lambda _text, part: _read(part.high)),
    "contains": lambda text, part: _read(text.high) * _read(part.high),
    **dict.fromkeys(
        ("matches", "find", "findAll"),
        lambda text, pattern, *_: _read(text.high + 1) * _read(pattern.high, _PATTERN),
    ),
    "validate": lambda _format, text: _read(_read(text.high), 128 * _PATTERN),
    "containsIP": lambda _network, other: 4 + (_read(other.high) if other.type == "string" else 0),
    "containsCIDR": lambda _network, other: 7 + (_read(other.high) if other.type == "string" else 0),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_items),
    "includes": lambda _items, wanted: 48 * max(1, _read(wanted.weight)),
    **dict.fromkeys(("slice", "reverse"), lambda items, *_: _LIST + 1 + items.high),
    "flatten": lambda items, *_: _LIST + 1 + items.weight,
    "distinct": _pairs(2),
    "sort": _pairs(2 + _READ),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _sets(1)),
    "sets.equivalent": _sets(2),
}
_LEAST: Final = {
    **dict.fromkeys(("startsWith", "endsWith", "contains", "matches", "find", "findAll", "validate"), 2),
    **dict.fromkeys(("containsIP", "containsCIDR", "includes"), 2),
    **dict.fromkeys(("sets.contains", "sets.intersects", "sets.equivalent"), 2),
    "replace": 3,
}
"""How many values a rule reads, where it is more than one; a call with fewer does not compile."""
_SIZES: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(
        ("lowerAscii", "upperAscii", "substring", "trim", "find", "split"), lambda text, *_: text.high
    ),
    "findAll": lambda text, *_: text.high + 1,
    "charAt": lambda *_: 1,
    "replace": _replaced,
    "join": _joined,
    "strings.quote": lambda text: 2 * text.high + 2,
}
_SAME: Final = frozenset({"slice", "reverse", "sort", "distinct", "url"})
"""What is returned is no longer and no heavier than what was given."""

"""What evaluating a selector can cost at most, in the units of the API server's estimate.

Kubernetes refuses a selector whose estimate is above 1,000,000 and stops an evaluation there; the library
counts nothing, so the estimate stands for both. Units and rules are cel-go's (checker/cost.go, ext/lists.go,
ext/sets.go) and Kubernetes' (k8s.io/apiserver/pkg/cel/library/cost.go,
k8s.io/dynamic-resource-allocation/cel): 1 for a name, a field and most calls, 10 for a list, 30 for a map, a
tenth for each character that is read, every element of a comprehension's range times its body.

Three things differ. A size that Kubernetes takes for unknown, and the selector for too complex, is here what
the value can hold at most: nothing is refused for it that the API server stores. And a value has a weight,
all that is in it: values that share parts grow with every `cel.bind` while their sizes do not. Comparisons
are charged by weight, and no value may be heavier than the limit. And a comprehension that makes a list of
more than 64 elements is charged for what the library copies: 2,800 elements are the end.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from koordra.cel.call_cost import (
    DEVICE,
    LIMIT,
    LIST,
    MAP,
    MESSAGE,
    MESSAGES,
    NAMESPACED,
    OPTIONAL,
    READ,
    SCALARS,
    TEXTS,
    Estimate,
    Value,
    called,
    item_of,
    key_of,
    read,
    scalar,
    union,
)
from koordra.cel.syntax import Node, Steps, SyntaxRefused, is_bind, variables_of, walk

_ESCAPE: Final = re.compile(r"\\(?:[xX]..|u.{4}|U.{8}|[0-3][0-7]{2}|.)", re.DOTALL)


def most_cost(expression: Node) -> int | None:
    """What an evaluation costs at most; None where that may be more than LIMIT, or a value heavier than
    it."""
    coster = _Coster()
    cost: int = walk(coster.cost(expression)).cost
    return None if cost > LIMIT or coster.heaviest > LIMIT else cost


def _part(value: Value, node: Node) -> Value:
    """What a field or an index gives."""
    item = item_of(value)
    return item._replace(type=OPTIONAL) if node.optional or value.type == OPTIONAL else item


def _weight(values: Iterable[Value]) -> int:
    """Of what holds these."""
    return 1 + sum(value.weight for value in values)


def _refuse_optional(values: Iterable[Value]) -> None:
    """The library crashes when it hands a list or map with an optional value in it to a function."""
    if any(value.type == OPTIONAL for value in values):
        raise SyntaxRefused("optional values in a list or map cannot be evaluated")


class _Coster:
    def __init__(self) -> None:
        self.heaviest = 0
        self._variables: defaultdict[str, list[Value]] = defaultdict(list)

    def cost(self, node: Node) -> Steps[Estimate]:
        if node.kind in ("call", "method"):
            found: Estimate = yield (self._call if node.kind == "call" else self._method)(node)
        else:
            parts: list[Estimate] = yield self._each(node.parts)
            found = self._own(node, sum(part.cost for part in parts), [part.value for part in parts])
            if node.kind == "ternary":
                # Only one of the two is evaluated.
                found = found._replace(cost=found.cost - min(part.cost for part in parts[1:]))
        self.heaviest = max(self.heaviest, found.value.weight)
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

    def _own(self, node: Node, cost: int, values: Sequence[Value]) -> Estimate:
        """Of a node with parts of these values, which cost so much together."""
        match node.kind:
            case "name":
                bound = self._variables[node.text]
                return Estimate(
                    1, bound[-1] if bound else scalar("device" if node.text == "device" else "dyn")
                )
            case "literal":
                return Estimate(0, _text(node) if node.of in TEXTS else scalar(node.of))
            case "select" if values[0].type == "device":
                return Estimate(cost + 1, DEVICE.get(node.text, scalar()))
            case "select":
                optional = values[0].type.startswith("map:") or bool(node.optional)
                return Estimate(cost + optional, _part(values[0], node))
            case "index":
                return Estimate(cost + 1, _part(values[0], node))
            case "list":
                return Estimate(cost + LIST, _list(node, values))
            case "map":
                return Estimate(cost + MAP, _map(node, values))
            case "message":
                return Estimate(cost + MESSAGE, Value("dyn", 1, 1, _weight(values)))
            case "ternary":
                return Estimate(cost, union(values[1:]) or scalar())
            case "logical":
                return Estimate(cost, scalar("bool"))
            case "unary":
                return Estimate(cost + 1, values[0])
            case "relation":
                return Estimate(cost + _compared(node.text, *values), scalar("bool"))
        own, value = _calculated(node.text, *values)
        return Estimate(cost + own, value)

    def _call(self, node: Node) -> Steps[Estimate]:
        if node.text == "has" and len(node.parts) == 1 and node.parts[0].kind == "select":
            operand: Estimate = yield self.cost(node.parts[0].parts[0])
            return Estimate(operand.cost, scalar("bool"))
        cost, values = yield self._all(node.parts)
        if node.text == "dyn" and values:
            return Estimate(cost + 1, values[0])
        return called(node.text, cost, values, node.parts)

    def _method(self, node: Node) -> Steps[Estimate]:
        receiver, arguments = node.parts[0], node.parts[1:]
        name = f"{receiver.text}.{node.text}" if receiver.kind == "name" else ""
        if is_bind(node):
            given: Estimate = yield self.cost(arguments[1])
            (found,) = yield self._within({arguments[0].text: given.value}, arguments[2:])
            return Estimate(LIST + given.cost + found.cost, found.value)
        if name in NAMESPACED and not self._variables[receiver.text]:
            cost, values = yield self._all(arguments)
            return called(name, cost, values, arguments)
        variables = variables_of(node)
        if variables:
            looped: Estimate = yield self._comprehension(node.text, variables, node.parts)
            return looped
        cost, values = yield self._all(node.parts)
        return called(node.text, cost, values, node.parts)

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
            return Estimate(2 * cost + once + bodies[0].cost, body._replace(type=OPTIONAL))
        _refuse_optional(found.value for found in bodies)
        if each < 5 and not name.startswith("transform"):
            return Estimate(total, scalar("bool"))
        total += _copies(count)
        if name == "sortBy":
            return Estimate(total + math.ceil((2 + READ) * count * count), ranged)
        if name == "filter":
            return Estimate(total, Value(f"list:{key.type}", 0, count, ranged.weight, None, key))
        weight = 1 + count * body.weight
        if name.startswith("transformMap"):
            return Estimate(total, Value("map:dyn:dyn", 0, count, weight))
        return Estimate(total, Value(f"list:{body.type}", 0, count, weight, None, body))


def _copies(count: int) -> int:
    """What making a list in a comprehension costs besides: the library copies all of it with every element,
    which Kubernetes does not. Nothing up to the sizes that devices have."""
    return count * count // 8 if count > 64 else 0


def _text(node: Node) -> Value:
    quotes = 3 if node.text[-3:] in ("'''", '"""') and len(node.text) > 5 else 1
    text = node.text.lstrip("bBrR")[quotes:-quotes]
    size = len(text.encode() if node.of == "bytes" else _ESCAPE.sub("x", text))
    return Value(node.of, size, size, size)


def _list(node: Node, values: Sequence[Value]) -> Value:
    _refuse_optional(value for n, value in enumerate(values) if n not in node.optional)
    item, size = union(values), len(values)
    kind = f"list:{item.type if item else 'dyn'}"
    return Value(kind, size, size, _weight(values), scalar("int"), item)


def _map(node: Node, values: Sequence[Value]) -> Value:
    _refuse_optional(value for n, value in enumerate(values) if n - 1 not in node.optional)
    key, item = union(values[::2]), union(values[1::2])
    kind = f"map:{key.type}:{item.type}" if key and item and ":" not in key.type else "map:dyn:dyn"
    size = len(values) // 2
    return Value(kind, size, size, _weight(values), key, item)


def _compared(operator: str, left: Value, right: Value) -> int:
    if operator == "in":
        nested = left.type not in SCALARS | TEXTS
        return 1 if right.type.startswith("map:") else max(right.high, read(right.weight * nested))
    if {left.type, right.type} & SCALARS or left.type in MESSAGES:
        return 1
    return read(max(min(left.high, right.high), min(left.weight, right.weight)))


def _calculated(operator: str, left: Value, right: Value) -> Estimate:
    kind = left.type if left.type != "dyn" else right.type
    if operator != "+" or kind in SCALARS:
        return Estimate(1, scalar(kind))
    low, high, weight = left.low + right.low, left.high + right.high, left.weight + right.weight
    item = union([each for each in (left.item, right.item) if each])
    return Estimate(max(1, read(max(high, weight))), Value(kind, low, high, weight, scalar("int"), item))


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
"""What the expansion of a macro costs once and for each element, without its arguments: cel-go's
parser/macro.go, ext/."""

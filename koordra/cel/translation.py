"""Expressions for the library: what Kubernetes' CEL has and the library has not, written with what it has.

    X.transformMap(k, v, F, E)    X.transformList(k, v, F, {k: E}).koordraMerged()
                                                                     F may be left out
    X.transformMapEntry(k, v, E)  X.transformList(k, v, E).koordraMerged()
    X.optMap(x, E)                cel.bind(r, X, r.optMap(x, E))     also optFlatMap: their expansion writes
                                                                     X twice
    X.validate(S)                 X.validate(S)[?0]                  functions here cannot give optionals, but
                                                                     lists
    format.named(S)               format.named(S)[?0]
    X.format(L), X.indexOf(S), X.lastIndexOf(S), X.reverse(), X.flatten(),
    lists.range(N)                                                   functions of koordra's under names of
                                                                     their own
    X.split(S)                                                       likewise: an empty text has no parts
    string(X), where ip, cidr, duration or timestamp occurs          likewise, which knows these
    int(X), uint(X), double(X), timestamp(X)                         int(koordraInt(X)): refuses texts that
                                                                     Go does not read
    X.matches(P)                                                     X.matches(koordraPattern(P)), likewise
    device.attributes[D]          device.attributes[?D].orValue({})  an unknown domain is an empty map

Each part of a tree is written once, so what is written is as long as what was read, but for a factor.

The library parses 32 levels, the API server 250. A part that is deeper than `_DEPTH` becomes an expression of
its own, and where it stood `koordraPart(n, {"x": x})` asks for its value, with the variables that it reads.

Names that begin with `koordra` are koordra's own: an expression that has one is refused, and so is what the
library takes and Kubernetes does not: literals of several types in one list or map, and types that Kubernetes
does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from koordra.cel.functions import READ, RENAMED
from koordra.cel.functions.values import EXACT_FIELD
from koordra.cel.syntax import Node, Steps, SyntaxRefused, is_bind, variables_of, walk

OWN: Final = "koordra"
PART: Final = "koordraPart"
_DEPTH: Final = 22
_LEVELS: Final = {"||": 1, "&&": 2, "relation": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_UNARY, _PRIMARY = 6, 7
_OWN_TEXT: Final = frozenset({"ip", "cidr", "duration", "timestamp"})
_OPTIONAL: Final = frozenset({"optional", "first", "last", "validate", "named"})


class Written(NamedTuple):
    """A written part: how strongly it binds, how many levels it has, which variables it reads that are bound
    outside of it."""

    text: str
    level: int = _PRIMARY
    depth: int = 1
    free: frozenset[str] = frozenset()


def translated(expression: Node) -> tuple[Written, ...]:
    """The expression and the parts it asks for, which come first. Raises SyntaxRefused for what Kubernetes
    does not take."""
    writer = _Writer(own_text=any(node.text in _OWN_TEXT and not node.of for node in _nodes(expression)))
    last = walk(writer.write(expression))
    # One environment for all parts: so no name may be a variable in one and something else in another.
    variables = frozenset[str]().union(*(part.free for part in writer.parts))
    for name in sorted(variables & writer.unbound):
        raise SyntaxRefused(f"undeclared reference to '{name}'")
    if writer.parts and any(node.optional or node.text in _OPTIONAL for node in _nodes(expression)):
        raise SyntaxRefused(
            f"optional values cannot be evaluated in an expression of more than {_DEPTH} levels"
        )
    return (*(part._replace(free=variables) for part in writer.parts), last)


def names_read(expression: Node) -> frozenset[str] | None:
    """The names (ids, without domain) that are read where all look-ups are
    `device.attributes["domain"].name`; None otherwise."""
    names = set()
    left = [expression]
    while left:
        node = left.pop()
        if node.kind in ("select", "index") and _is_plain_domain(node.parts[0]):
            name = node.text if node.kind == "select" else _plain_text(node.parts[1])
            if name is None:
                return None
            names.add(name)
        elif _is_view(node):
            return None
        else:
            left += node.parts
    return frozenset(names)


def _is_name(node: Node, name: str) -> bool:
    return node.kind == "name" and node.text == name


def _is_view(node: Node) -> bool:
    """`device.attributes` or `device.capacity`"""
    named = node.kind == "select" and node.text in ("attributes", "capacity") and not node.optional
    return named and _is_name(node.parts[0], "device")


def _is_plain_domain(node: Node) -> bool:
    """`device.attributes["domain"]`"""
    plain = node.kind == "index" and not node.optional and _is_view(node.parts[0])
    return plain and _plain_text(node.parts[1]) is not None


def _plain_text(node: Node) -> str | None:
    """The value of a string literal in simple quotes and without escapes."""
    plain = node.of == "string" and node.text[0] in "'\"" and "\\" not in node.text
    return node.text.strip("'\"") if plain else None


def _nodes(expression: Node) -> Iterator[Node]:
    left = [expression]
    while left:
        yield (node := left.pop())
        left += node.parts


class _Writer:
    def __init__(self, *, own_text: bool) -> None:
        self.parts: list[Written] = []
        self.unbound: set[str] = set()
        self._own_text = own_text
        self._scope: Counter[str] = Counter()
        self._bound = 0

    def write(self, node: Node, *, mixed: bool = False) -> Steps[Written]:
        """`mixed`: lists and maps inside may hold literals of several types, as `format`'s arguments do."""
        _refuse_names(node)
        if not mixed:
            _refuse_mixed(node)
        mixed = mixed or (node.kind == "method" and node.text == "format")
        variables = (node.parts[1].text,) if is_bind(node) else variables_of(node)
        outside = 3 if is_bind(node) else 1 + len(variables)
        parts: list[Written] = []
        for place, part in enumerate(node.parts[:outside]):
            if 1 <= place <= len(variables):
                _refuse_names(part)
                parts.append(Written(part.text))
            else:
                parts += [(yield self.write(part, mixed=mixed))]
        self._scope.update(variables)
        for part in node.parts[outside:]:
            parts += [(yield self.write(part, mixed=mixed))]
        self._scope.subtract(variables)
        return self._shallow(self._written(node, parts))

    def _shallow(self, written: Written) -> Written:
        if written.depth <= _DEPTH:
            return written
        self.parts.append(written)
        variables = ",".join(f'"{name}":{name}' for name in sorted(written.free))
        return Written(f"{PART}({len(self.parts) - 1},{{{variables}}})", depth=3, free=written.free)

    def _written(self, node: Node, parts: list[Written]) -> Written:
        match node.kind:
            case "name":
                if self._scope[node.text]:
                    return _variable(node.text)
                self.unbound.add(node.text)
                return Written(node.text)
            case "literal":
                return Written(node.text, level=_UNARY if node.text.startswith("-") else _PRIMARY)
            case "list":
                return _around("[", [_marked(node, n, part.text) for n, part in enumerate(parts)], "]", parts)
            case "map":
                entries = [
                    f"{_marked(node, n, parts[n].text)}:{parts[n + 1].text}" for n in range(0, len(parts), 2)
                ]
                return _around("{", entries, "}", parts)
            case "message":
                entries = [f"{field}:{part.text}" for field, part in zip(node.fields, parts, strict=True)]
                return _around(f"{node.text}{{", entries, "}", parts)
            case "call":
                return self._call(node, parts)
            case "select" | "index" if _is_view(node.parts[0]):
                key = parts[1] if node.kind == "index" else Written(f'"{node.text}"')
                found = _method(_index(parts[0], key, mark="?"), "orValue", Written("{}"))
                return _method(Written("optional"), "of", found) if node.optional else found
            case "select":
                return _postfix(parts[0], f".{'?' * bool(node.optional)}{node.text}")
            case "index":
                return _index(*parts, mark="?" * bool(node.optional))
            case "method":
                return self._method(node, parts)
            case "ternary":
                condition, then, other = (_at_least(part, 1 - n // 2) for n, part in enumerate(parts))
                return _operator(0, (condition, "?", then, ":", other))
            case "unary":
                return _operator(_UNARY, (node.text, _at_least(parts[0], _PRIMARY)))
            case "logical":
                level = _LEVELS[node.text]
                words = [word for part in parts for word in (node.text, _at_least(part, level + 1))]
                return _operator(level, words[1:])
        level = _LEVELS["relation" if node.kind == "relation" else node.text]
        return _operator(
            level, (_at_least(parts[0], level), f" {node.text} ", _at_least(parts[1], level + 1))
        )

    def _call(self, node: Node, parts: list[Written]) -> Written:
        name = node.text
        if name in READ and len(parts) == 1 and node.parts[0].of not in ("int", "uint", "double"):
            parts = [_call(READ[name], *parts)]
        elif name == "matches" and len(parts) == 2:
            parts = [parts[0], _pattern(node.parts[1], parts[1])]
        return _call("koordraString" if name == "string" and self._own_text else name, *parts)

    def _method(self, node: Node, parts: list[Written]) -> Written:
        receiver, *arguments = parts
        name = node.text
        if name == "matches" and len(arguments) == 1:
            arguments = [_pattern(node.parts[1], arguments[0])]
        variables = variables_of(node)
        if is_bind(node):
            return _bind(node.parts[1].text, parts[2], parts[3])
        if name in ("optMap", "optFlatMap") and variables:
            self._bound += 1
            bound = _variable(f"{OWN}R{self._bound}")
            return _bind(bound.text, receiver, _macro(bound, name, variables, arguments))
        if name == "transformMap" and variables:
            arguments[-1] = _around("{", [f"{variables[0]}:{arguments[-1].text}"], "}", arguments[-1:])
        if name in ("transformMap", "transformMapEntry") and variables:
            return _method(_macro(receiver, "transformList", variables, arguments), "koordraMerged")
        if variables:
            if name in ("exists_one", "existsOne"):
                name = "exists_one" if len(variables) == 1 else "existsOne"
            return _macro(receiver, name, variables, arguments)
        if name == "range" and receiver.text == "lists":
            return _call("koordraRange", *arguments)
        found = _method(receiver, RENAMED.get(name, name), *arguments)
        if name == "validate" or (name == "named" and _is_name(node.parts[0], "format")):
            return _index(found, Written("0"), mark="?")
        return found


def _pattern(node: Node, written: Written) -> Written:
    """Looked at where it may hold what only the library takes."""
    return written if node.of and "C" not in node.text else _call("koordraPattern", written)


# --- composing ----------------------------------------------------------------------------------------------


def _of(text: str, parts: Sequence[Written], *, level: int = _PRIMARY) -> Written:
    depth = 1 + max((part.depth for part in parts), default=0)
    return Written(text, level, depth, frozenset().union(*(part.free for part in parts)))


def _variable(name: str) -> Written:
    return Written(name, free=frozenset((name,)))


def _marked(node: Node, place: int, text: str) -> str:
    return f"?{text}" if place in node.optional else text


def _around(opened: str, items: Sequence[str], closed: str, parts: Sequence[Written]) -> Written:
    return _of(f"{opened}{','.join(items)}{closed}", parts)


def _at_least(part: Written, level: int) -> Written:
    """In parentheses where it binds less."""
    return part if part.level >= level else _around("(", [part.text], ")", [part])


def _operator(level: int, words: Sequence[Written | str]) -> Written:
    text = "".join(word if isinstance(word, str) else word.text for word in words)
    return _of(text, [word for word in words if isinstance(word, Written)], level=level)


def _call(name: str, *arguments: Written) -> Written:
    return _around(f"{name}(", [argument.text for argument in arguments], ")", arguments)


def _postfix(operand: Written, ending: str, *inside: Written) -> Written:
    operand = _at_least(operand, _PRIMARY)
    return _of(f"{operand.text}{ending}", [operand, *inside])


def _index(operand: Written, key: Written, *, mark: str = "") -> Written:
    return _postfix(operand, f"[{mark}{key.text}]", key)


def _method(receiver: Written, name: str, *arguments: Written) -> Written:
    return _postfix(receiver, f".{name}({','.join(argument.text for argument in arguments)})", *arguments)


def _macro(receiver: Written, name: str, variables: Iterable[str], arguments: Sequence[Written]) -> Written:
    """A macro; its first arguments are the variables that the others see."""
    found = _method(receiver, name, *arguments)
    free = frozenset().union(*(each.free for each in arguments)) - {*variables}
    return found._replace(free=receiver.free | free)


def _bind(name: str, value: Written, body: Written) -> Written:
    found = _method(Written("cel"), "bind", Written(name), value, body)
    return found._replace(free=value.free | (body.free - {name}))


# --- what Kubernetes does not take --------------------------------------------------------------------------


def _refuse_names(node: Node) -> None:
    if (
        (node.kind in ("name", "call", "method") and node.text.startswith(OWN))
        or (node.kind == "select" and node.text == EXACT_FIELD)
        or (node.kind == "message" and node.text.rpartition(".")[2] in ("IP", "CIDR"))
    ):
        raise SyntaxRefused(f"undeclared reference to '{node.text}'")
    if node.kind == "select" and _is_name(node.parts[0], "kubernetes"):
        raise SyntaxRefused("undeclared reference to 'kubernetes'")


def _refuse_mixed(node: Node) -> None:
    """Kubernetes wants one type in the elements of a literal; here only those that are literals themselves
    are compared."""
    columns = {"list": (node.parts,), "map": (node.parts[::2], node.parts[1::2])}.get(node.kind, ())
    for column in columns:
        kinds = list(dict.fromkeys(node.of for node in column if node.of))
        if len(kinds) > 1:
            raise SyntaxRefused(f"expected type '{kinds[0]}' but found '{kinds[1]}'")

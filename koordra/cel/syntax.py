"""CEL expressions as trees: one pass over the text, within the limits of the API server's parser.

The grammar is cel-go's (parser/gen/CEL.g4). A rule of it is a generator that yields the rules inside it, and
`walk` drives them with a stack of its own: the steps are in proportion to the length of an expression,
whatever its depth, and none is recursive.

Limits: 10 KiB (resource.k8s.io, CELSelectorExpressionMaxLength); 250 of each recursive rule inside one
another, and 250 nodes above one another (cel-go, parser.MaxRecursionDepth). What is refused is refused in the
words of the API server.

Literals keep their spelling, since the library reads them again. Parentheses are gone; `||` and `&&` have all
operands in one node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

MAX_LENGTH: Final = 10 * 1024
MAX_DEPTH: Final = 250

_TOKEN: Final = re.compile(
    r"(?P<space>[\t \r\n\f]+|//[^\n]*)"
    r"|(?P<text>[bB]?(?:[rR](?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n\r]*'|\"[^\"\n\r]*\")"
    r"|'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n\r])*'|\"(?:\\.|[^\"\\\n\r])*\"))"
    r"|(?P<double>(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<uint>[uU])?"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])",
    re.DOTALL,
)
_PRECEDENCE: Final[dict[str, dict[str, int]]] = {
    "relation": dict.fromkeys(("<", "<=", ">=", ">", "==", "!=", "in"), 1),
    "calc": {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2},
}
_WORDS: Final = {"true": "bool", "false": "bool", "null": "null"}
_LITERALS: Final = frozenset({"int", "uint", "double", "string", "bytes"})


class SyntaxRefused(ValueError):
    """The expression is no CEL, or is beyond the limits of the API server's parser."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A part of an expression; identity is equality.

    kind      name, literal, select, index, list, map (keys and values in turn), message, call, method
              (receiver first), and for operators: ternary, logical, relation, calc, unary
    text      the name, the spelling of the literal, the field, the function, the operator
    of        the type of a literal: bool, int, uint, double, string, bytes, null; `list(...)` where the first
              element has one
    optional  which parts are marked with `?`: elements, keys, the index (1), the field (1)
    fields    the fields of a message
    height    counted nodes above one another, see MAX_DEPTH
    """

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    of: str = ""
    optional: frozenset[int] = frozenset()
    fields: tuple[str, ...] = ()
    height: int = 0


_COUNTED: Final = frozenset({"ternary", "relation", "calc", "select", "method", "index"})
_Result = TypeVar("_Result")
Steps = Generator["Steps[Any]", Any, _Result]
"""A walk that yields the walks of what is inside, and is sent what they return."""


def walk(steps: Steps[_Result]) -> _Result:
    """What a walk returns; the stack is a list."""
    stack: list[Steps[Any]] = [steps]
    returned: Any = None
    while stack:
        try:
            inner = stack[-1].send(returned)
        except StopIteration as done:
            stack.pop()
            returned = done.value
        else:
            stack.append(inner)
            returned = None
    found: _Result = returned
    return found


def parse(expression: str) -> Node:
    """The tree. Raises SyntaxRefused."""
    if len(expression.encode()) > MAX_LENGTH:
        raise SyntaxRefused(f"Too long: may not be more than {MAX_LENGTH} bytes")
    parser = _Parser(expression, _tokens(expression))
    found = walk(parser.expr())
    parser.expect("")
    return found


def _syntax_error(expression: str, at: int, why: str) -> SyntaxRefused:
    line, column = expression.count("\n", 0, at) + 1, at - expression.rfind("\n", 0, at)
    return SyntaxRefused(f"ERROR: <input>:{line}:{column}: Syntax error: {why}")


def _tokens(expression: str) -> list[tuple[str, str, int]]:
    """Kinds, spellings and where they are; the last one is empty."""
    found: list[tuple[str, str, int]] = []
    at = 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        text = token.group() if token else ""
        # An empty string before another quote is the beginning of a long string without an end.
        endless = text[-2:] in ("''", '""') and expression.startswith(text[-1:], at + len(text))
        if token is None or endless:
            raise _syntax_error(expression, at, f"token recognition error at: {expression[at : at + 20]!r}")
        if token.lastgroup != "space":
            found.append((token.lastgroup or "", text, at))
        at += len(text)
    return [*found, ("end", "", at)]


class _Parser:
    def __init__(self, expression: str, tokens: list[tuple[str, str, int]]) -> None:
        self._expression = expression
        self._tokens = tokens
        self._at = 0
        self._depth: Counter[str] = Counter()

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1][:2]

    def _mismatch(self, place: int, wanted: str = "") -> SyntaxRefused:
        _kind, text, at = self._tokens[place]
        expected = f" expecting {wanted}" if wanted else ""
        return _syntax_error(self._expression, at, f"mismatched input {text or '<EOF>'!r}{expected}")

    def _accept(self, text: str) -> bool:
        taken = self._text == text
        self._at += taken
        return taken

    def expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._mismatch(self._at, repr(text or "<EOF>"))

    def _enter(self, rule: str) -> None:
        self._depth[rule] += 1
        if self._depth[rule] > MAX_DEPTH:
            raise SyntaxRefused(f"expression recursion limit exceeded: {MAX_DEPTH}")

    def _word(self) -> str:
        kind, text = self._take()
        if kind != "word" or text in _WORDS or text == "in":
            raise self._mismatch(self._at - 1, "IDENTIFIER")
        return text

    def expr(self) -> Steps[Node]:
        self._enter("expr")
        found: Node = yield self._logical(("||", "&&"))
        if self._accept("?"):
            then = yield self._logical(("||", "&&"))
            self.expect(":")
            found = _node("ternary", "?:", (found, then, (yield self.expr())))
        self._depth["expr"] -= 1
        return found

    def _logical(self, operators: tuple[str, ...]) -> Steps[Node]:
        if not operators:
            only: Node = yield self._operation("relation", 1)
            return only
        terms: list[Node] = [(yield self._logical(operators[1:]))]
        while self._accept(operators[0]):
            terms.append((yield self._logical(operators[1:])))
        return terms[0] if len(terms) == 1 else _node("logical", operators[0], tuple(terms))

    def _operation(self, rule: str, least: int) -> Steps[Node]:
        """Operators of one rule, from the precedence `least` on; each is a context of the rule around those
        before it."""
        entered = 1
        self._enter(rule)
        found: Node = yield self._operation("calc", 1) if rule == "relation" else self._unary()
        while (precedence := _PRECEDENCE[rule].get(self._text, 0)) >= least:
            entered += 1
            self._enter(rule)
            found = _node(rule, self._take()[1], (found, (yield self._operation(rule, precedence + 1))))
        self._depth[rule] -= entered
        return found

    def _unary(self) -> Steps[Node]:
        operator, count = self._text, 0
        signed = operator == "-" and self._tokens[self._at + 1][0] in ("int", "uint", "double")
        while operator in ("!", "-") and not signed and self._accept(operator):
            count += 1
        found: Node = yield self._member()
        return _node("unary", operator, (found,)) if count % 2 else found

    def _member(self) -> Steps[Node]:
        entered = 1
        self._enter("member")
        found: Node = yield self._primary()
        while self._text in (".", "[") or (self._text == "{" and path(found)):
            entered += 1
            self._enter("member")
            if self._accept("."):
                optional = self._accept("?")
                name = self._word()
                if not optional and self._accept("("):
                    found = _node("method", name, (found, *(yield self._items(")"))[0]))
                else:
                    found = _node("select", name, (found,), optional)
            elif self._accept("["):
                optional = self._accept("?")
                found = _node("index", "[]", (found, (yield self.expr())), optional)
                self.expect("]")
            else:
                self._accept("{")
                found = yield self._message(path(found))
        self._depth["member"] -= entered
        return found

    def _primary(self) -> Steps[Node]:
        kind, text = self._take()
        if text == "-":
            kind, text = self._tokens[self._at][0], f"-{self._take()[1]}"
        if kind == "text":
            kind = "bytes" if text[0] in "bB" else "string"
        if kind in _LITERALS or text in _WORDS:
            return Node("literal", text, of=_WORDS.get(text, kind))
        if text == "(":
            found: Node = yield self.expr()
            self.expect(")")
            return found
        if text == "[":
            items, marked = yield self._items("]", optional=True)
            of = f"list({items[0].of})" if items and 0 < len(items[0].of) < 64 else ""
            return replace(_node("list", "[]", tuple(items), marked=marked), of=of)
        if text == "{":
            items, marked = yield self._items("}", optional=True, pairs=True)
            return _node("map", "{}", tuple(items), marked=marked)
        name = f".{self._word()}" if text == "." else text
        if text != "." and (kind != "word" or text == "in"):
            raise self._mismatch(self._at - 1)
        if self._accept("("):
            return _node("call", name, tuple((yield self._items(")"))[0]))
        return Node("name", name)

    def _items(
        self, end: str, *, optional: bool = False, pairs: bool = False
    ) -> Steps[tuple[list[Node], set[int]]]:
        """What stands between commas up to `end`; arguments have neither marks nor a last comma."""
        items: list[Node] = []
        marked: set[int] = set()
        while not self._accept(end):
            if items:
                self.expect(",")
                if optional and self._accept(end):
                    break
            if optional and self._accept("?"):
                marked.add(len(items))
            items.append((yield self.expr()))
            if pairs:
                self.expect(":")
                items.append((yield self.expr()))
        return items, marked

    def _message(self, name: str) -> Steps[Node]:
        fields: list[str] = []
        values: list[Node] = []
        while not self._accept("}"):
            if fields:
                self.expect(",")
            fields.append(self._word())
            self.expect(":")
            values.append((yield self.expr()))
        return Node("message", name, tuple(values), fields=tuple(fields))


def _node(
    kind: str, text: str, parts: tuple[Node, ...], optional: bool = False, *, marked: set[int] | None = None
) -> Node:
    height = max((part.height for part in parts), default=0) + (kind in _COUNTED)
    if height > MAX_DEPTH:
        raise SyntaxRefused("max recursion depth exceeded")
    return Node(kind, text, parts, optional=frozenset(marked or ({1} if optional else ())), height=height)


def path(node: Node) -> str:
    """The dotted name that a node is; empty where it is something else."""
    names: list[str] = []
    while node.kind == "select" and not node.optional:
        names.append(node.text)
        node = node.parts[0]
    return ".".join((node.text, *reversed(names))) if node.kind == "name" else ""


_TESTS: Final = ("all", "exists", "exists_one", "existsOne")
_VARIABLES: Final = {
    **{(name, 2): 1 for name in (*_TESTS, "map", "filter", "sortBy", "optMap", "optFlatMap")},
    ("map", 3): 1,
    **{(name, 3): 2 for name in _TESTS},
    **{(name, n): 2 for name in ("transformList", "transformMap", "transformMapEntry") for n in (3, 4)},
}


def variables_of(node: Node) -> tuple[str, ...]:
    """The variables that a method binds in its further arguments; none where it is no macro."""
    if node.kind != "method":
        return ()
    names = node.parts[1 : 1 + _VARIABLES.get((node.text, len(node.parts) - 1), 0)]
    texts = tuple(name.text for name in names if name.kind == "name" and not name.text.startswith("."))
    return texts if len(set(texts)) == len(names) else ()


def is_bind(node: Node) -> bool:
    """`cel.bind(name, value, expression)`"""
    return (node.kind, node.text, len(node.parts)) == ("method", "bind", 4) and (
        node.parts[0].kind,
        node.parts[0].text,
    ) == ("name", "cel")

"""The errors: numbers by one, comparisons and their bounds, negations, and/or, sums, statements left out,
None returned.

A mutant is a change of a syntax tree in place. Words for people (strings, messages of errors, log lines),
types, defaults and decorators are left alone: what they say is judged elsewhere, or nowhere.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""What may stand for a comparison: first the same with its bound moved, where it has one."""

ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
NO_NUMBERS: Final = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict)
LOGGERS: Final = ("log", "_log", "logger")
NO_VALUES: Final = {"annotation", "returns", "decorator_list", "args", "target", "targets", "type_params"}


@dataclass(slots=True)
class Mutant:
    """One change. `where`: the function or the constant it is in; `lines`: a test that runs one of them may
    notice.

    `tree` is its module's, shared with other mutants until `applied` puts `value` into `holder`; so only one
    of a tree is applied, in a process of its own.
    """

    area: str
    module: str
    where: str
    what: str
    lines: range
    tree: ast.Module = field(repr=False)
    constant: str | None = None
    holder: Any = field(default=None, repr=False)
    key: str | int = ""
    value: Any = field(default=None, repr=False)
    moves_a_bound: bool = False
    number: int = 0

    @property
    def name(self) -> str:
        """The same from run to run, wherever the function stands."""
        again = f" #{self.number + 1}" if self.number else ""
        return f"{self.area}: {self.where}: {self.what}{again}"

    def rank(self, seed: int) -> str:
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()

    def applied(self) -> ast.Module:
        if isinstance(self.holder, list):
            self.holder[int(self.key)] = self.value
        elif self.holder is not None:
            setattr(self.holder, str(self.key), self.value)
        return self.tree


def mutants(area: str, module: str, tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of a module, none applied."""
    for where, statement, constant in definitions(tree.body):
        changes = _expressions(statement, "value") if constant else _statements(statement.body)
        for node, text, value, holder, key in changes:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            ast.fix_missing_locations(ast.copy_location(value, node))
            bound = (
                isinstance(node, ast.Compare)
                and isinstance(value, ast.Compare)
                and any(
                    type(new) is COMPARISONS[type(old)][0] and len(COMPARISONS[type(old)]) > 1
                    for old, new in zip(node.ops, value.ops, strict=True)
                    if type(old) is not type(new)
                )
            )
            yield Mutant(area, module, where, text, lines, tree, constant, holder, key, value, bound)


def definitions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Any, str | None]]:
    """Functions, and the module's constants: qualified name, statement, and for a constant its name."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from definitions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef):
            yield f"{prefix}{statement.name}", statement, None
        elif (
            isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None and not prefix
        ):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name):
                yield target.id, statement, target.id


Change = tuple[Any, str, Any, Any, str | int]
"""The node that changes, in words, what comes in its place, and the place: holder and key."""


def _statements(body: list[ast.stmt]) -> Iterator[Change]:
    for index, node in enumerate(body):
        if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_log(node.value)):
            continue
        if _can_go(node):
            yield node, f"without `{_text(node)}`", ast.Pass(), body, index
        if isinstance(node, ast.Return) and node.value is not None and not _is(node.value, type(None)):
            yield node, f"`{_text(node)}` -> None", ast.Return(ast.Constant(None)), body, index
        if isinstance(node, ast.AugAssign):
            for other in _others(node, test=False):
                yield node, f"`{_text(node)}` -> `{_text(other)}`", other, body, index
        if isinstance(node, (ast.Raise, ast.Assert)):
            continue
        for name, value in ast.iter_fields(node):
            if name in {"body", "orelse", "finalbody"}:
                yield from _statements(value)
            elif name in {"handlers", "cases"}:
                for inner in value:
                    yield from _statements(inner.body)
            elif name not in NO_VALUES:
                yield from _expressions(node, name)


def _can_go(node: ast.stmt) -> bool:
    """An assignment to a plain name is not left out: whatever reads it would fail anyway."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return not isinstance(target, (ast.Name, ast.Tuple))
    return isinstance(node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))


def _expressions(holder: Any, key: str) -> Iterator[Change]:
    """The changes of the expressions in a field of a node, and below them."""
    value = getattr(holder, key)
    places = list(enumerate(value)) if isinstance(value, list) else [(key, value)]
    for place, node in places:
        if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
            continue
        for other in _others(node, test=key in {"test", "ifs"}):
            text = f"`{_text(node)}` -> `{_text(other)}`"
            yield node, text, other, value if isinstance(value, list) else holder, place
        for name, _ in ast.iter_fields(node):
            if name not in NO_VALUES - {"args"} and not (name == "args" and isinstance(node, ast.Lambda)):
                yield from _expressions(node, name)


def _others(node: Any, *, test: bool) -> Iterator[Any]:
    """What may stand wrongly in the place of an expression (or of an augmented assignment)."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield _with(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield copy.copy(node.operand)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        if not any(isinstance(side, NO_NUMBERS) or _is(side, str) for side in sides):
            yield _with(node, op=ARITHMETIC[type(node.op)]())
    if test and isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BoolOp)):
        yield ast.UnaryOp(ast.Not(), copy.copy(node))


def _with(node: Any, **fields: Any) -> Any:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _is(node: ast.expr, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)


def _is_log(node: ast.expr) -> bool:
    of = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id in LOGGERS


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:60]}...{hashlib.sha256(text.encode()).hexdigest()[:6]}"

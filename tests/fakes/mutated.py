"""A module of the product with one small error, for the time of a block."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType


@contextmanager
def mutated(module: ModuleType, text: str, replaced: str) -> Iterator[None]:
    """`text`, which stands in the module exactly once, is `replaced` in the function or method that it stands
    in. Whoever has imported the function has it with the error. LookupError where the text has changed."""
    source = inspect.getsource(module)
    if source.count(text) != 1:
        raise LookupError(f"{module.__name__}: {text!r} stands there {source.count(text)} times")
    path = _function_at(source, source[: source.index(text)].count("\n") + 1)
    function = _found(module, path)
    whole = compile(source.replace(text, replaced), module.__file__ or "", "exec", dont_inherit=True)
    code, before = _code_at(whole, path), function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def _function_at(source: str, line: int) -> list[str]:
    """Names of the class and the function around a line."""
    found: list[str] = []
    body: list[ast.stmt] = ast.parse(source).body
    while True:
        inner = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
            and node.lineno <= line <= (node.end_lineno or 0)
        ]
        if not inner:
            return found
        found.append(inner[0].name)
        if isinstance(inner[0], ast.FunctionDef):
            return found
        body = inner[0].body


def _found(module: ModuleType, path: list[str]) -> FunctionType:
    holder: object = module
    for name in path[:-1]:
        holder = getattr(holder, name)
    function = inspect.getattr_static(holder, path[-1])
    function = getattr(function, "__func__", getattr(function, "__wrapped__", function))
    assert isinstance(function, FunctionType), path
    return function


def _code_at(code: CodeType, path: list[str]) -> CodeType:
    for name in path:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    return code

"""What stands below names in source: the one description of a constant or a field, which the pages quote."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def documented(owner: ModuleType | type) -> dict[str, str]:
    """Names of a module or class that have a docstring below them, in the source's order."""
    body = _bodies(inspect.getsourcefile(owner) or "")[
        "" if isinstance(owner, ModuleType) else owner.__name__
    ]
    found = {}
    for named, text in itertools.pairwise(body):
        match named, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = sentence(words)
    return found


@cache
def _bodies(path: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(Path(path).read_text())
    classes = {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {"": tree.body, **classes}


def sentence(words: str) -> str:
    """On one line, with a capital letter, without a full stop, fit for a cell of a table."""
    text = re.sub(r"\s+", " ", words).strip().replace("|", "\\|")
    text = re.sub(
        r"\bdocs/([a-z/-]+\.md)", r"[\1](../\1)", text if text.endswith("...") else text.removesuffix(".")
    )
    return text if text[:1] in "`" else text[:1].upper() + text[1:]


def first_sentence(owner: Any) -> str:
    """Of a docstring."""
    return sentence(re.split(r"(?<=\.)\s", inspect.getdoc(owner) or "", maxsplit=1)[0])


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

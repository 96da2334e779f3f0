"""CEL expressions as lexemes: what they read, how deep they nest, and the rewriting of domain look-ups.

A lexer is enough for these three questions; the grammar is the library's business. Strings in all four quotings and comments are
recognised, so that nothing inside them is taken for code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_MACROS: Final = frozenset(
    {"all", "exists", "exists_one", "existsOne", "map", "filter", "transformList", "transformMap"}
)

_TOKEN: Final = re.compile(
    r"(?P<string>[rRbB]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))"
    r"|(?P<comment>//[^\n]*)|(?P<space>\s+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)|(?P<other>.)",
    re.DOTALL,
)


def tokens_of(expression: str) -> tuple[str, ...]:
    """Lexemes without blanks and comments; a blank stays where two words would grow together."""
    found: list[str] = []
    for match in _TOKEN.finditer(expression):
        if match.lastgroup in ("space", "comment"):
            if found and found[-1] != " ":
                found.append(" ")
            continue
        found.append(match.group())
    # A blank matters only between words and numbers ("a in b").
    kept = []
    for index, token in enumerate(found):
        if token == " ":
            before, after = (
                found[index - 1] if index else "",
                found[index + 1] if index + 1 < len(found) else "",
            )
            if not (
                before
                and after
                and (before[-1].isalnum() or before[-1] == "_")
                and (after[0].isalnum() or after[0] in "_'\"")
            ):
                continue
        kept.append(token)
    return tuple(kept)


def _domain_lookups(tokens: tuple[str, ...]) -> list[int]:
    """Positions just after `device.attributes` and `device.capacity`."""
    return [
        index + 3
        for index in range(len(tokens) - 2)
        if tokens[index] == "device"
        and tokens[index + 1] == "."
        and tokens[index + 2] in ("attributes", "capacity")
        and (index == 0 or tokens[index - 1] != ".")
    ]


def closing(tokens: Sequence[str], opening: int) -> int:
    """Where the bracket at `opening` is closed; -1 where it is not."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index] in ("[", "(", "{"):
            depth += 1
        elif tokens[index] in ("]", ")", "}"):
            depth -= 1
            if depth == 0:
                return index
    return -1


def with_empty_domains(tokens: tuple[str, ...]) -> list[str]:
    """Rewrites look-ups of a domain so that an unknown one is an empty map; see the module's second point."""
    out = list(tokens)
    for position in reversed(_domain_lookups(tokens)):
        view = tuple(out)
        if position < len(view) and view[position] == "[":
            end = closing(view, position)
            if end < 0:
                continue
            optional = view[position + 1] == "?"
            inner = [*out[position + 2 : end]] if optional else [*out[position + 1 : end]]
            lookup = [
                *out[position - 3 : position],
                "[",
                "?",
                *inner,
                "]",
                ".",
                "orValue",
                "(",
                "{",
                "}",
                ")",
            ]
            out[position - 3 : end + 1] = ["optional", ".", "of", "(", *lookup, ")"] if optional else lookup
        elif position + 1 < len(view) and view[position] == "." and view[position + 1] != "?":
            called = position + 2 < len(view) and view[position + 2] == "("
            if not called:
                name = view[position + 1]
                out[position : position + 2] = [
                    "[",
                    "?",
                    f'"{name}"',
                    "]",
                    ".",
                    "orValue",
                    "(",
                    "{",
                    "}",
                    ")",
                ]
    return out


def names_read(tokens: tuple[str, ...]) -> frozenset[str] | None:
    """Ids read after `device.attributes["domain"]`, where all look-ups are that plain; None otherwise."""
    names = set()
    for position in _domain_lookups(tokens):
        plain = len(tokens) > position + 4 and tokens[position] == "[" and tokens[position + 2] == "]"
        if not plain or tokens[position + 1][0] not in "\"'":
            return None
        if tokens[position + 3] == "." and tokens[position + 4][0].isalpha():
            if position + 5 < len(tokens) and tokens[position + 5] == "(":
                return None
            names.add(tokens[position + 4])
        elif (
            tokens[position + 3] == "["
            and tokens[position + 4][0] in "\"'"
            and "\\" not in tokens[position + 4]
        ):
            names.add(tokens[position + 4].strip("\"'"))
        else:
            return None
    return frozenset(names)


def nesting(tokens: tuple[str, ...]) -> int:
    """How deep comprehensions are nested."""
    stack: list[bool] = []
    deepest = 0
    for index, token in enumerate(tokens):
        if token == "(":
            stack.append(index > 1 and tokens[index - 1] in _MACROS and tokens[index - 2] == ".")
            deepest = max(deepest, sum(stack))
        elif token == ")" and stack:
            stack.pop()
    return deepest

"""Text in columns: tables of commands and of pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from koordra.inert import inert

GAP: Final = 2
LEAST: Final = 11
"""Letters of a word that are kept where words are shortened."""

Row = Sequence[Sequence[str]]
"""A cell is one line or several."""


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Rows as lines with columns of equal width, without blanks at line ends. A cell is one inert line."""
    table = [[inert(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table)
    return "".join(f"{(' ' * GAP).join(row).rstrip()}\n" for row in padded)


def table(rows: Sequence[Row], *, width: int | None = None, shortened: bool = False) -> str:
    """Rows under each other, the first of them the header. `width`: lines are wrapped at blanks to stay
    within it; `shortened`: and words lose their middle where that is not enough. None: as wide as it is."""
    inside = [[[inert(line) for line in cell] for cell in row] for row in rows]
    if width is not None:
        widths = _fitting(inside, width, shortened=shortened)
        inside = [
            [
                [part for line in cell for part in _wrapped(line, most, shortened=shortened)]
                for cell, most in zip(row, widths, strict=True)
            ]
            for row in inside
        ]
    return aligned([line for row in inside for line in zip_longest(*row, fillvalue="")])


def _fitting(rows: Sequence[Row], width: int, *, shortened: bool) -> list[int]:
    """Widths of the columns: as they are where there is room, else the widest give way first."""
    columns = list(zip(*rows, strict=True))
    widths = [max((len(line) for cell in column for line in cell), default=0) for column in columns]
    least = [
        max((len(word) for cell in column for line in cell for word in line.split()), default=0)
        for column in columns
    ]
    if shortened:
        least = [min(most, LEAST) for most in least]
    room = width - GAP * (len(widths) - 1)
    while sum(widths) > room:
        giving = [index for index, own in enumerate(widths) if own > least[index]]
        if not giving:
            break
        widths[max(giving, key=lambda index: widths[index])] -= 1
    return widths


def _wrapped(line: str, width: int, *, shortened: bool) -> list[str]:
    if len(line) <= width:
        return [line]
    words = [_short(word, width) if shortened else word for word in line.split()]
    return textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False)


def _short(word: str, width: int) -> str:
    """Its beginning and its end: names that are made share the one and differ in the other."""
    if len(word) <= width:
        return word
    end = (width - 1) // 2
    return f"{word[: width - 1 - end]}…{word[len(word) - end :]}"

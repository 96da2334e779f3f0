"""Text in columns: tables of commands and of pictures."""

from __future__ import annotations

from collections.abc import Sequence

from koordra.inert import inert


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Rows as lines with columns of equal width, without blanks at line ends. A cell is one inert line."""
    table = [[inert(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table)
    return "".join(f"{'  '.join(row).rstrip()}\n" for row in padded)

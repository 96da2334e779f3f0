"""Tables on a terminal: aligned columns, with rich where it is installed and the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain columns two blanks apart; a cell may hold several lines."""
    cells = [[str(cell).split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(header))]
    lines = []
    for row in cells:
        for number in range(max(len(cell) for cell in row)):
            parts = [
                (cell[number] if number < len(cell) else "").ljust(width)
                for cell, width in zip(row, widths, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the table to stdout."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for title in header:
                table.add_column(title, overflow="fold")
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            Console().print(table)
            return
    print(render(header, rows))

"""How commands print: tables of aligned columns (with rich where it is installed and the output is a
terminal), JSON, YAML.

YAML is read back by kubectl, every text as a text: kubectl takes more texts for numbers and truth values than
this YAML library does (`1e3`, `0o17`, `y`), so these are quoted; the same value twice is written twice, not
as an anchor and an alias.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

import yaml

from koordra.cli.options import say
from koordra.inert import inert, inert_lines
from koordra.topology.pictures.columns import aligned

Document = dict[str, Any]
"""A result as it is printed in JSON or YAML."""


Cell = str | Sequence[str]
"""One line, or several. What a text brings along is escaped, ends of lines too."""


def _lines(cell: Cell) -> Sequence[str]:
    return [cell] if isinstance(cell, str) else cell


def render_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Plain columns two blanks apart."""
    cells = (map(_lines, row) for row in (header, *rows))
    lines = [line for row in cells for line in zip_longest(*row, fillvalue="")]
    return aligned(lines).removesuffix("\n")


def show_table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, empty: str = "") -> None:
    """`empty` stands in place of a table without rows. No header: the rows alone, below those of before."""
    if empty and not rows:
        say(empty)
        return
    if header and sys.stdout.isatty():
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
                table.add_row(*(Text("\n".join(map(inert, _lines(cell)))) for cell in row))
            Console().print(table)
            return
    say(render_table(header, rows))


def show_rows(
    moments: Iterable[Sequence[Document]],
    *,
    name: str,
    output: str,
    header: Sequence[str],
    cells: Callable[[Document], Sequence[Cell]],
    empty: str,
) -> None:
    """What there is at the first moment, and of each later one (`--watch`) the rows that are new or have
    changed, as kubectl shows them: a table grows, documents follow one another. `name`: of the rows in a
    document."""
    before: Sequence[Document] | None = None
    for rows in moments:
        changed = rows if before is None else [row for row in rows if row not in before]
        if before is not None and not changed:
            continue
        if output in ("json", "yaml"):
            if before is not None and output == "yaml":
                say("---")
            show_document({name: changed}, output)
        elif before is None:
            show_table(header, [*map(cells, changed)], empty=empty)
        else:
            show_table((), [*map(cells, changed)])
        before = rows


_LOOKS_ELSE: Final = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?0[xXoObB][0-9a-fA-F_]+|[yYnN]"
)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: _Plain, data: str) -> Any:
    style = "'" if _LOOKS_ELSE.fullmatch(data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Plain.add_representer(str, _text)


def show_document(document: Any, form: str) -> None:
    say(as_text(document, form), nl=False)


def as_text(document: Any, form: str) -> str:
    """The document as `json` or `yaml`, with a newline at its end."""
    return yaml_text(document) if form == "yaml" else json.dumps(document, indent=2) + "\n"


def yaml_text(document: Any) -> str:
    """One document, fields in the order they have; kubectl reads escapes back as what they stand for."""
    text = str(yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True))
    if inert_lines(text) == text:
        return text
    return str(yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=False))

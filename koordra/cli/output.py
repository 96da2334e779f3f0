"""How commands print: tables of aligned columns, JSON, YAML.

YAML is read back by kubectl, every text as a text: kubectl takes more texts for numbers and truth values than
this YAML library does (`1e3`, `0o17`, `y`), so these are quoted; the same value twice is written twice, not
as an anchor and an alias.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import yaml

from koordra.cli.options import NARROW, say
from koordra.inert import inert_lines
from koordra.topology.pictures.columns import table

Document = dict[str, Any]
"""A result as it is printed in JSON or YAML."""


Cell = str | Sequence[str]
"""One line, or several. What a text brings along is escaped, ends of lines too."""


def _lines(cell: Cell) -> Sequence[str]:
    return [cell] if isinstance(cell, str) else cell


def columns() -> int:
    """The width that tables keep to."""
    return shutil.get_terminal_size((NARROW, 24)).columns if sys.stdout.isatty() else NARROW


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    width: int | None = None,
    shortened: bool = False,
) -> str:
    """Plain columns two blanks apart, wrapped to a width where one is given (pictures/columns)."""
    cells = [[*map(_lines, row)] for row in ([header, *rows] if header else rows)]
    return table(cells, width=width, shortened=shortened).removesuffix("\n")


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    empty: str = "",
    wide: bool | None = None,
) -> None:
    """In the width of the terminal, or 80 columns. `empty` stands in place of a table without rows. No
    header: the rows alone, below those of before.

    `wide`: what `-o wide` says of a command that has it: then words are as long as they are, and else they
    are shortened where there is no room; a command without it keeps its words whole.
    """
    if empty and not rows:
        say(empty)
        return
    say(render_table(header, rows, width=None if wide else columns(), shortened=wide is False))


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
            show_table(header, [*map(cells, changed)], empty=empty, wide=output == "wide")
        else:
            show_table((), [*map(cells, changed)], wide=output == "wide")
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

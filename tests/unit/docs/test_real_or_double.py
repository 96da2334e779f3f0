"""Every table of the docs that compares, or claims how koordra behaves, says of each row what that rests on:
*real* (which part, which version), *double*, or *read*."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in path.parts),
]
MARK = re.compile(r"\*(?:real|doubles?|read)\*")
OF_ALL = re.compile(r"(?i:all rows)\b")
NOT_RUN = re.compile(r"\| not run:[^|]*\|$|\| [-p] \| \|$")
"""Nobody tries it, or koordra does not have it, or not all of it, as is said below such a table."""
PEER = re.compile(r"HAMi|Koordinator|Kueue|Volcano|NVIDIA|nvidia-ctk|dranet|Alnair|classic|^stack$")
OF_BEHAVIOUR = re.compile(
    r"what (?:happens|becomes|keeps|is done|it does|a card)|^tried|tried on$|shown|rests on|^outcome$|^test$|versions meet"
    r"|^`mps`$|kind of node|^distribution$|who asks"
)
ABOVE_ALL = "All rows of this page"


@dataclass(frozen=True)
class Table:
    page: Path
    head: tuple[str, ...]
    rows: tuple[str, ...]
    beside: str
    """The paragraphs above and below."""

    @property
    def claims(self) -> bool:
        return any(PEER.search(cell) or OF_BEHAVIOUR.search(cell.lower()) for cell in self.head)

    @property
    def unmarked(self) -> list[str]:
        """Rows that do not say it, where nobody says it of all of them."""
        if OF_ALL.search(self.beside) and MARK.search(self.beside[OF_ALL.search(self.beside).start() :]):  # type: ignore[union-attr]
            return []
        return [row for row in self.rows if not MARK.search(row) and not NOT_RUN.search(row)]


def tables(page: Path) -> Iterator[Table]:
    text = page.read_text()
    above_all = text.partition(ABOVE_ALL)[1:]
    blocks = [block.strip("\n") for block in re.split(r"\n\s*\n", text)]
    for at, block in enumerate(blocks):
        lines = [line.strip() for line in block.splitlines()]
        if len(lines) < 2 or not re.fullmatch(r"\|[\s:|-]+\|", lines[1]):
            continue
        head = tuple(cell.strip() for cell in lines[0].strip("|").split("|"))
        beside = "\n\n".join(["".join(above_all), blocks[at - 1], *blocks[at + 1 : at + 2]])
        yield Table(page, head, tuple(lines[2:]), beside)


CLAIMS = [table for page in PAGES for table in tables(page) if table.claims]


@pytest.mark.parametrize(
    "table", CLAIMS, ids=lambda table: f"{table.page.relative_to(ROOT)}:{'-'.join(table.head)[:40]}"
)
def test_each_row_says_what_it_rests_on(table: Table) -> None:
    assert not table.unmarked, (
        f"{table.page.name}: mark them, or write 'All rows: *real* ...' beside the table"
    )


def test_the_tables_are_found() -> None:
    """Those that the project's promise names; a page that loses its table, or words its head anew, is looked
    at."""
    named = {
        "isolation-backends.md",
        "drivers.md",
        "mig.md",
        "upgrade.md",
        "container-contract.md",
        "rdma.md",
    }
    named |= {"keys.md", "nvidia-dra.md", "node-by-node.md", "gangs-peers.md", "attacks.md", "README.md"}
    assert named <= {table.page.name for table in CLAIMS}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("| a | tried |\n|---|---|\n| x | *real* 1.36 |\n| y | yes |", 1),
        ("All rows: *double*.\n\n| a | tried |\n|---|---|\n| x | yes |", 0),
        ("*double* is a double. All rows are fine.\n\n| a | tried |\n|---|---|\n| x | yes |", 1),
        ("| a | tried |\n|---|---|\n| x | not run: nobody can |", 0),
    ],
)
def test_a_row_without_a_mark_is_seen(tmp_path: Path, text: str, left: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    (table,) = tables(page)
    assert table.claims
    assert len(table.unmarked) == left

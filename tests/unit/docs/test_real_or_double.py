"""Every table of the docs that compares, or claims how koordra behaves, says what that rests on: *real*
(which part, which version), *double*, or *read*. Where a column is koordra's, each of its cells says so; in
other tables each row. The others' columns rest on one thing together, which is said beside the table."""

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
NOT_RUN = re.compile(r"\| not run:[^|]*\|$")
"""Nobody tries it."""
NO_CLAIM = re.compile(r"|-|- \(.*\)|p")
"""Of koordra's cells: it does not have it, or not all of it, as is said below such a table."""
OWN = re.compile(r"koordra|here")
OTHERS = re.compile(r"best of the others")
NAMED = re.compile(r"\*real\*[:,]? ([^;|*]*[a-z`][^;|*]*)")
"""The part that was real."""
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
    """The paragraph above, and what is above all tables of the page."""

    @property
    def claims(self) -> bool:
        return self.compares or any(
            PEER.search(cell) or OF_BEHAVIOUR.search(cell.lower()) for cell in self.head
        )

    @property
    def own(self) -> list[int]:
        """The columns that are koordra's, beside others'."""
        return [at for at, cell in enumerate(self.head) if OWN.fullmatch(cell)]

    @property
    def compares(self) -> bool:
        return bool(self.own) and any(PEER.search(cell) or OTHERS.search(cell) for cell in self.head)

    @property
    def of_all(self) -> str:
        """What is said of all rows."""
        found = OF_ALL.search(self.beside)
        return self.beside[found.start() :] if found else ""

    @property
    def unmarked(self) -> list[str]:
        """Cells of koordra's, or rows, that do not say it, where nobody says it of all of them."""
        if MARK.search(self.of_all):
            return []
        if self.compares:
            cells = [cells_of(row)[at] for row in self.rows for at in self.own]
            return [cell for cell in cells if not MARK.search(cell) and not NO_CLAIM.fullmatch(cell)]
        return [row for row in self.rows if not MARK.search(row) and not NOT_RUN.search(row)]

    @property
    def unnamed(self) -> list[str]:
        """What is said to be real without a part, or without a version in the cell or beside the table."""
        said = [cell for row in (self.of_all, *self.rows) for cell in cells_of(row) if "*real*" in cell]
        versions = any(re.search(r"\d", text) for text in re.findall(r"\*real\*([^|]*)", self.beside))
        return [
            cell
            for cell in said
            if len(NAMED.findall(cell)) < cell.count("*real*")
            or not (versions or re.search(r"\d", cell.partition("*real*")[2]))
        ]


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|")]


def tables(page: Path) -> Iterator[Table]:
    text = page.read_text()
    above_all = text.partition(ABOVE_ALL)[1:]
    blocks = [block.strip("\n") for block in re.split(r"\n\s*\n", text)]
    for at, block in enumerate(blocks):
        lines = [line.strip() for line in block.splitlines()]
        if len(lines) < 2 or not re.fullmatch(r"\|[\s:|-]+\|", lines[1]):
            continue
        head = tuple(cells_of(lines[0]))
        beside = "\n\n".join(["".join(above_all), blocks[at - 1] if at else ""])
        yield Table(page, head, tuple(lines[2:]), beside)


CLAIMS = [table for page in PAGES for table in tables(page) if table.claims]


@pytest.mark.parametrize(
    "table", CLAIMS, ids=lambda table: f"{table.page.relative_to(ROOT)}:{'-'.join(table.head)[:40]}"
)
def test_each_claim_says_what_it_rests_on(table: Table) -> None:
    assert not table.unmarked, (
        f"{table.page.name}: mark them, or write 'All rows: *real* ...' beside the table"
    )


@pytest.mark.parametrize(
    "table",
    [table for table in CLAIMS if table.compares],
    ids=lambda table: f"{table.page.relative_to(ROOT)}:{'-'.join(table.head)[:40]}",
)
def test_a_comparison_says_what_was_real_and_what_was_read(table: Table) -> None:
    assert not table.unnamed, "name the part, and its version there or above the table"
    whole = table.page.read_text()
    assert any(OTHERS.search(cell) for cell in table.head) or re.search(r"\*read\*", whole), "the others'"


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
    compared = ["README.md", "README.md", "container-contract.md", "gangs-peers.md", "nvidia-dra.md"]
    compared += ["profiles.md", "training-jobs.md"]
    assert compared == sorted(table.page.name for table in CLAIMS if table.compares)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("| a | tried |\n|---|---|\n| x | *real* 1.36 |\n| y | yes |", 1),
        ("All rows: *double*.\n\n| a | tried |\n|---|---|\n| x | yes |", 0),
        ("*double* is a double. All rows are fine.\n\n| a | tried |\n|---|---|\n| x | yes |", 1),
        ("| a | tried |\n|---|---|\n| x | not run: nobody can |", 0),
        ("| a | HAMi | koordra | |\n|---|---|---|---|\n| x | *read* y | y | *double* |\n| z | y | - | |", 1),
        ("| a | HAMi | koordra |\n|---|---|---|\n| x | y | y: *double* |\n| z | y | p |", 0),
        ("All rows: *read*.\n\n| a | HAMi | koordra |\n|---|---|---|\n| x | y | y |", 0),
    ],
)
def test_a_claim_without_a_mark_is_seen(tmp_path: Path, text: str, left: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    (table,) = tables(page)
    assert table.claims
    assert len(table.unmarked) == left


@pytest.mark.parametrize(
    ("cell", "left"),
    [("*real*", 1), ("*real* 1.36", 1), ("*real* kubelet", 1), ("*real* kubelet 1.36; *double* cards", 0)],
)
def test_a_mark_without_part_or_version_is_seen(tmp_path: Path, cell: str, left: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"*read*.\n\n| a | HAMi | koordra |\n|---|---|---|\n| x | y | {cell} |")
    (table,) = tables(page)
    assert len(table.unnamed) == left

"""Size of koordra's own Python, package by package, and its growth since the table in
benchmarks/results/house.md.

    scripts/size.py            print both
    scripts/size.py --write    make the table's last two columns what is there now

Statements are nodes of `ast.stmt`. Tokens are those of `tokenize` that Python reads: no comments, line ends,
indentation. Counted is koordra/ without generated code; tests, benchmarks and the cluster double
(devcluster/) are not.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "koordra"
TABLE = ROOT / "benchmarks" / "results" / "house.md"
TOTAL = "**all**"
LONGEST_FILE = 350
LARGEST_PACKAGE = 15
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
}


class Size(NamedTuple):
    statements: int
    tokens: int


def size_of(source: bytes) -> Size:
    return Size(
        sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source))),
        sum(token.type not in LAYOUT for token in tokenize.tokenize(io.BytesIO(source).readline)),
    )


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "_proto" not in path.parts]


def sizes() -> dict[str, Size]:
    """By package of koordra; modules directly below koordra count as one, `koordra`. The sum stands last."""
    found: dict[str, Size] = {}
    for path in sources():
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "koordra"
        here, file = found.get(package, Size(0, 0)), size_of(path.read_bytes())
        found[package] = Size(here.statements + file.statements, here.tokens + file.tokens)
    rows = dict(sorted(found.items()))
    rows[TOTAL] = Size(
        sum(one.statements for one in found.values()), sum(one.tokens for one in found.values())
    )
    return rows


def table() -> dict[str, tuple[Size, Size]]:
    """Package -> size at the start, size when the table was written."""
    rows = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and cells[1].replace(",", "").isdigit():
            numbers = [int(cell.replace(",", "")) for cell in cells[1:]]
            rows[cells[0]] = Size(*numbers[:2]), Size(*numbers[2:])
    return rows


def write(now: dict[str, Size]) -> None:
    """Rewrite the rows in place; packages that are new or gone have zeros on one side."""
    known, nothing = table(), (Size(0, 0), Size(0, 0))
    names = [name for name in sorted({*known, *now}) if name != TOTAL] + [TOTAL]
    rows = [
        "| {} | {:,} | {:,} | {:,} | {:,} |".format(
            name, *known.get(name, nothing)[0], *now.get(name, Size(0, 0))
        )
        for name in names
    ]
    lines = TABLE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|---")) + 1
    last = next(
        (number for number in range(first, len(lines)) if not lines[number].startswith("|")), len(lines)
    )
    TABLE.write_text("\n".join([*lines[:first], *rows, *lines[last:], ""]))


def show(now: dict[str, Size]) -> None:
    known = table()
    for name in [name for name in sorted({*known, *now}) if name != TOTAL] + [TOTAL]:
        here, then = now.get(name, Size(0, 0)), known.get(name, (Size(0, 0),) * 2)[1]
        print(
            f"size: {name.strip('*'):16}{here.statements:>7,} statements {here.statements - then.statements:+6,}"
            f" {here.tokens:>9,} tokens {here.tokens - then.tokens:+8,}"
        )
    long = [path for path in sources() if path.read_bytes().count(b"\n") > LONGEST_FILE]
    files = Counter(path.parent for path in sources())
    wide = [f"{path.relative_to(ROOT)} {count}" for path, count in files.items() if count > LARGEST_PACKAGE]
    print(f"size: {len(long)} files of more than {LONGEST_FILE} lines: {_listed(long)}")
    print(f"size: {len(wide)} packages of more than {LARGEST_PACKAGE} files: {', '.join(wide) or 'none'}")


def _listed(paths: list[Path]) -> str:
    return ", ".join(str(path.relative_to(ROOT)) for path in paths) or "none"


if __name__ == "__main__":
    measured = sizes()
    if sys.argv[1:] == ["--write"]:
        write(measured)
    else:
        show(measured)

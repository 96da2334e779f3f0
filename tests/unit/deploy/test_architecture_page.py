"""docs/architecture.md names packages and modules that are there, and every package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py)?)`")
TOPS = [*sorted((ROOT / "koordra").glob("*/")), ROOT / "koordra", ROOT]


def _exists(name: str) -> bool:
    return any((top / name).exists() or (top / f"{name}.py").exists() for top in TOPS)


def test_what_the_page_names_is_there() -> None:
    named = set(NAMED.findall(PAGE.read_text()))
    assert len(named) > 15
    missing = sorted(name for name in named if not _exists(name))
    assert not missing


def test_the_page_names_every_package() -> None:
    text = PAGE.read_text()
    packages = [path.parent.name for path in sorted((ROOT / "koordra").glob("*/__init__.py"))]
    unnamed = [name for name in packages if not name.startswith("_") and f"`{name}" not in text]
    assert not unnamed

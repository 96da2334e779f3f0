"""The site has every page, and so has its index; that anchors are there `make docs` says. Links to elsewhere
are not followed, but have a form that could be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from scripts import site

ROOT = Path(__file__).resolve().parents[3]
DOCS = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))


def navigated() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            found.append(entry)
        for inner in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
            walk(inner)

    walk(yaml.safe_load(text))
    return found


def test_every_page_is_navigated_once_and_there() -> None:
    pages = navigated()
    assert len(pages) == len(set(pages))
    assert {str(path) for path in DOCS if path.parts[1] != "runbooks"} <= set(pages)
    assert not [page for page in pages if not (ROOT / page).exists()]


def test_the_index_links_every_page() -> None:
    """Folders with an index of their own have it for their pages."""
    folders = [path.parent for path in DOCS if path.name == "README.md"]
    for path in DOCS:
        if path.name != "README.md":
            folder = path.parent if path.parent in folders else Path("docs")
            index = (ROOT / folder / "README.md").read_text()
            assert str(path.relative_to(folder)) in index, path


def test_links_to_folders_and_files_come_along(tmp_path: Path) -> None:
    for name, text in {
        "README.md": "[a](docs) [b](docs/x.md#y) [c](deploy/f.yaml) [d](https://example.org/docs)",
        "docs/README.md": "",
        "docs/x.md": "",
        "deploy/f.yaml": "a: 1",
    }.items():
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_text(text)
    pages = site.collect(tmp_path / "from", tmp_path / "into")
    assert [str(page) for page in pages] == ["README.md", "docs/README.md", "docs/x.md"]
    assert (tmp_path / "into/README.md").read_text() == (
        "[a](docs/README.md) [b](docs/x.md#y) [c](deploy/f.yaml) [d](https://example.org/docs)"
    )
    assert (tmp_path / "into/deploy/f.yaml").read_text() == "a: 1"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(ROOT / path for path in DOCS)], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [target for target, _ in site.LINK.findall(text)]
    assert not [target for target in links if not (page.parent / target).exists()]


AWAY = re.compile(r"\]\(([a-z]+:[^)\s]*)\)|<([a-z]+:[^>\s]*)>")
WHOLE = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~%+@:-]+)*/?(#[\w.-]+)?")


def test_links_away_are_whole() -> None:
    pages = {path for pattern in site.PAGES for path in ROOT.glob(pattern)}
    told = {found[1] or found[2] for page in pages for found in AWAY.finditer(_prose(page))}
    assert told
    assert not sorted(link for link in told if not WHOLE.fullmatch(link))


def _prose(page: Path) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)

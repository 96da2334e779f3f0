"""build/site-source: the pages of the repository as they lie beside each other, for mkdocs. Links to folders
become links to their README.md; files that pages link to come along."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
INTO: Final = ROOT / "build" / "site-source"
PAGES: Final = (
    "*.md",
    "docs/**/*.md",
    "deploy/examples/**/*.md",
    "benchmarks/results/*.md",
    "tests/machines/*.md",
    "koordra/nri/README.md",
    "native/README.md",
    "devcluster/README.md",
)
LINK: Final = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def collect(root: Path = ROOT, into: Path = INTO) -> list[Path]:
    """The pages, relative to the root, copied below `into`."""
    shutil.rmtree(into, ignore_errors=True)
    pages = sorted({path.relative_to(root) for pattern in PAGES for path in root.glob(pattern)})
    for page in pages:
        text = LINK.sub(partial(_link, page=page, root=root, into=into), (root / page).read_text())
        (into / page).parent.mkdir(parents=True, exist_ok=True)
        (into / page).write_text(text)
    return pages


def _link(link: re.Match[str], *, page: Path, root: Path, into: Path) -> str:
    target, anchor = link[1], link[2] or ""
    place = (root / page.parent / target).resolve()
    if place.is_dir():
        if (place / "README.md").exists():
            return f"]({target.rstrip('/')}/README.md{anchor})"
        return f"]({target})"  # which mkdocs refuses
    if place.is_file() and place.suffix != ".md":
        copy = into / place.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, copy)
    return link[0]


if __name__ == "__main__":
    print(f"{INTO.relative_to(ROOT)}: {len(collect())} pages")

"""The code of docs/extending.md, and of the page that it links."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"


def worked_example(heading: str, language: str, *, page: Path = PAGE) -> str:
    """The one block of a section."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return block

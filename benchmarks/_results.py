"""Results as JSON for programs and Markdown for people, in `benchmarks/results/`, with the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._machine import machine

FOLDER = Path(__file__).parent / "results"


def data() -> Path | None:
    """The folder of traces: KOORDRA_DATA, or shared/data beside the checkout."""
    folder = Path(os.environ.get("KOORDRA_DATA") or Path(__file__).parents[2] / "shared" / "data")
    return folder if (folder / "openb").is_dir() else None


def load() -> str:
    """How busy the machine was: times of a busy machine are not comparable."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def write(name: str, found: dict[str, Any], text: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    document = {"machine": machine(), "load": load(), **found}
    _replace(FOLDER / f"{name}.json", json.dumps(document, indent=1) + "\n")
    head = f"Measured on {machine()}; {load()}.\n\n"
    title, _, rest = text.partition("\n")
    _replace(FOLDER / f"{name}.md", f"{title}\n\n{head}{rest.strip()}\n")


def _replace(file: Path, text: str) -> None:
    """At once: who is stopped meanwhile keeps what hours of runs have found."""
    made = file.with_name(f".{file.name}")
    made.write_text(text)
    made.replace(file)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)

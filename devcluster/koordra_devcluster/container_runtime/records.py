"""The runtime's records on disk, a file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koordra.errors import NodeError

Record = dict[str, Any]


def load(directory: Path) -> dict[str, Record]:
    """By id."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {}
    for path in directory.glob("*.json"):
        record = json.loads(path.read_text())
        found[record["id"]] = record
    return found


def write(directory: Path, record: Record) -> None:
    """In one step."""
    path = directory / f"{record['id']}.json"
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(record, separators=(",", ":")))
        temporary.replace(path)
    except OSError as error:
        raise NodeError(f"{path}: the runtime's record cannot be written: {error.strerror}") from error

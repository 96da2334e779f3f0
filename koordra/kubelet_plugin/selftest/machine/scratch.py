"""A folder of the self test's own, where files can be written and programs run: what lies in it is loaded and
executed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from koordra.errors import NodeError


def usual_places() -> tuple[Path, ...]:
    """The last two are in memory, where nothing else can be written (a read-only root)."""
    own = (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.environ.get("HOME"), Path.cwd())
    return tuple(Path(place) for place in (*own, "/run", "/dev/shm") if place)


@contextmanager
def scratch(places: Sequence[Path]) -> Iterator[Path]:
    """In the first place where that can be, and removed in the end. Raises NodeError where there is none."""
    refused = []
    for place in places:
        try:
            if os.statvfs(place).f_flag & os.ST_NOEXEC:
                refused.append(f"{place} is mounted noexec")
                continue
            made = tempfile.TemporaryDirectory(prefix="koordra-", dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            refused.append(f"{place}: {error.strerror}")
            continue
        with made as folder:
            Path(folder).chmod(0o755)  # as on a node, where containers of other users pass it
            yield Path(folder)
        return
    raise NodeError(f"no folder to work in ({', '.join(refused)}); name one with TMPDIR")

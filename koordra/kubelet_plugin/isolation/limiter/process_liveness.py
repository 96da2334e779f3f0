"""Who lives of a claim's processes: the kernel's locks on files of its region. native/limiter/slot_lock.c has the story.

    <folder>/alive.0 .. alive.31   the owner of slot n has a lock for reading on byte n of file n % 32, as long as it lives
    <folder>/refused               a process that could not be limited has one on byte 0, as long as it lives
    <folder>/usage                 in a region of version 1 the owner's lock is here, for writing

The files are empty and only ours to write. A lock is asked for, never taken, so nobody has to wait for the node.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ALIVE_FILES: Final = 32
ALIVE: Final = tuple(f"alive.{number}" for number in range(ALIVE_FILES))
REFUSED: Final = "refused"

_LOCK: Final = struct.Struct("=hh4xqqi4x")
_OFD_GETLK: Final = 36


def make_files(folder: Path) -> None:
    """The empty files; those that are there stay. Raises OSError."""
    for name in (*ALIVE, REFUSED):
        os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        (folder / name).chmod(0o644)  # whatever the umask


def owned(folder: Path, slots: Iterable[int], *, version: int) -> frozenset[int]:
    """Those of the slots that have a living owner. Raises OSError."""
    by_file: dict[str, list[int]] = {}
    for slot in slots:
        by_file.setdefault("usage" if version == 1 else ALIVE[slot % ALIVE_FILES], []).append(slot)
    found: set[int] = set()
    for name, there in by_file.items():
        with (folder / name).open("rb", buffering=0) as file:
            found |= {slot for slot in there if _locked(file.fileno(), slot)}
    return frozenset(found)


def somebody_refused(folder: Path) -> bool | None:
    """Whether a process lives that was refused; None where that cannot be told, as in version 1."""
    try:
        with (folder / REFUSED).open("rb", buffering=0) as file:
            return _locked(file.fileno(), 0)
    except OSError:
        return None


def _locked(file: int, byte: int) -> bool:
    """Whether anybody has a lock on the byte. Asked as for writing, as that meets every other; it needs no right to write."""
    lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind = _LOCK.unpack(fcntl.fcntl(file, _OFD_GETLK, lock))[0]
    return bool(kind != fcntl.F_UNLCK)

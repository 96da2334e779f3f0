"""The layout of a claim's region: native/limiter/region.h, in Python. A test compares the two, field by field.

What is named here as the policy's or the usage's is the offset of a field in that file; DEVICE and SLOT begin an entry.

Which of a claim's processes live, the kernel's locks on files of its region say (native/limiter/slot_lock.c):

    <folder>/alive.0 .. alive.31   the owner of slot n has a lock for reading on byte n of file n % 32, as long as it lives
    <folder>/refused               a process that could not be limited has one on byte 0, as long as it lives
    <folder>/usage                 in a region of version 1 the owner's lock is here, for writing

The files are empty and only the node may write them. A lock is queried, never taken, so no process has to wait for the node.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordra.errors import PrepareError

VERSION: Final = 2
OLDEST: Final = 1
"""Regions of these versions are read; one that is made is of the newest."""
POLICY_MAGIC: Final = int.from_bytes(b"KORPOLY1", "little")
USAGE_MAGIC: Final = int.from_bytes(b"KORRUSG1", "little")
UNLIMITED: Final = (1 << 64) - 1
PLAUSIBLE: Final = 1 << 46
"""No process has so much of one card. A larger figure is a lie of the tenant's; it counts as nothing, here and in the limiter."""
DEVICES_MAX: Final = 16
SLOTS_MAX: Final = 1024
KINDS: Final = ("plain", "managed", "array", "vmm", "pool", "graph", "import", "context")

STRICT: Final = 1
REGIONS_FOLDER: Final = "/run/koordra/limiter"
"""Of the container: its claims\' regions."""

POLICY: Final = struct.Struct("=QIIIIQ40sQ48x")
DEVICE: Final = struct.Struct("=16sQQQII16x")
USAGE: Final = struct.Struct("=QIIQQQQ8xQ")
SLOT: Final = struct.Struct(f"=QIIQQQII16s{DEVICES_MAX * len(KINDS)}Q")
ACCOUNT: Final = struct.Struct("=QQ")

POLICY_BYTES: Final = POLICY.size + DEVICES_MAX * DEVICE.size
DENIED: Final = USAGE.size
BITMAP: Final = DENIED + 8 * DEVICES_MAX
EXPORTS: Final = BITMAP + SLOTS_MAX // 8
ACCOUNTS: Final = EXPORTS + 16 * 256
SLOTS: Final = ACCOUNTS + DEVICES_MAX * SLOTS_MAX * ACCOUNT.size
USAGE_BYTES: Final = SLOTS + SLOTS_MAX * SLOT.size

LIMIT, UNSEEN, CONTEXT = 16, 24, 32
DEVICE_COUNT, SEQUENCE, OUTSIDE = 20, 24, 72
HOST_PID: Final = 40
ENFORCING: Final = 2

_UUID: Final = re.compile(r"(?:GPU-|MIG-)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


def uuid_bytes(uuid: str) -> bytes:
    """Raises PrepareError for what is not the UUID of a GPU or a MIG instance."""
    match = _UUID.fullmatch(uuid)
    if match is None:
        raise PrepareError(f"isolation limiter: {uuid!r} is not the UUID of a GPU or MIG instance")
    return bytes.fromhex(match[1].replace("-", ""))


def uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_spellings(uuid: str) -> tuple[str, ...]:
    """A region does not distinguish a GPU from a MIG instance; NVML does."""
    text = uuid_text(uuid_bytes(uuid))
    return text, "MIG-" + text.removeprefix("GPU-")


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
    """Whether a process lives that was refused; None where that is unknown, as in version 1."""
    try:
        with (folder / REFUSED).open("rb", buffering=0) as file:
            return _locked(file.fileno(), 0)
    except OSError:
        return None


def _locked(file: int, byte: int) -> bool:
    """Whether a process has a lock on the byte. Queried as a write lock, which conflicts with every other; it needs no right to write."""
    return bool(
        _LOCK.unpack(fcntl.fcntl(file, _OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)))[0]
        != fcntl.F_UNLCK
    )

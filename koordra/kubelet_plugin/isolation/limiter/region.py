"""The limiter's shared region of one claim: its layout, which is native/limiter/region.h in Python (a test
compares the two, field by field), and what the node writes into it.

    <folder>/policy   what the claim may use: written here, read by the tenant, changeable while programs run
    <folder>/usage    what its processes use: written by the tenant's processes, read by usage.py
    <folder>/alive.N, <folder>/refused   empty, and for the node alone to write; locks on them say who lives
                                         (usage.py)

What is named here as the policy's or the usage's is the offset of a field in that file; DEVICE and SLOT begin
an entry. Every field that the tenant reads while it runs is one aligned word of eight bytes, and is written
as one.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError, PrepareError

VERSION: Final = 3
HEAD: Final = struct.Struct("=QII")
"""Of both files: magic, version, size."""
POLICY_MAGIC: Final = int.from_bytes(b"KORPOLY1", "little")
USAGE_MAGIC: Final = int.from_bytes(b"KORRUSG1", "little")
UNLIMITED: Final = (1 << 64) - 1
PLAUSIBLE: Final = 1 << 46
"""No process has so much of one card. A larger figure is a lie of the tenant's; it counts as nothing, here
and in the limiter."""
DEVICES_MAX: Final = 16
SLOTS_MAX: Final = 1024
KINDS: Final = ("plain", "managed", "array", "vmm", "pool", "graph", "import", "context")

STRICT: Final = 1

POLICY: Final = struct.Struct("=QIIIIQ40sQ48x")
DEVICE: Final = struct.Struct("=16sQQQIIIIQQQII40x")
USAGE: Final = struct.Struct("=QIIQQQQ8xQ")
SLOT: Final = struct.Struct(f"=QIIQQQII16sQ{DEVICES_MAX * len(KINDS)}Q")
ACCOUNT: Final = struct.Struct("=QQ")

POLICY_BYTES: Final = POLICY.size + DEVICES_MAX * DEVICE.size
DENIED: Final = USAGE.size
BITMAP: Final = DENIED + 8 * DEVICES_MAX
EXPORTS: Final = BITMAP + SLOTS_MAX // 8
ACCOUNTS: Final = EXPORTS + 16 * 256
SLOTS: Final = ACCOUNTS + DEVICES_MAX * SLOTS_MAX * ACCOUNT.size
PACES: Final = SLOTS + SLOTS_MAX * SLOT.size
PACE: Final = struct.Struct("=QQQQQI4xQQ")
USAGE_BYTES: Final = PACES + DEVICES_MAX * PACE.size

LIMIT, UNSEEN, CONTEXT, CORES, RATE, LENT_UNTIL, DEVICE_TIME, SEEN_UNTIL, NEIGHBOURS = (
    16,
    24,
    32,
    40,
    48,
    56,
    64,
    72,
    80,
)
DEVICE_COUNT, SEQUENCE, OUTSIDE = 20, 24, 72
HOST_PID: Final = 40
ENFORCING: Final = 2
ACTIVE: Final = 56
"""Of PACE: when device time was last taken."""

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


LOWER: Final = 0xFFFFFFFF
"""Half of a word: where two figures share one."""
ALIVE_FILES: Final = 32
ALIVE: Final = tuple(f"alive.{number}" for number in range(ALIVE_FILES))
REFUSED: Final = "refused"

FILES: Final = (
    "policy",
    "usage",
    "policy.tmp",
    "usage.tmp",
    *ALIVE,
    REFUSED,
)
"""All that a region may consist of; the policy first: without it there is none."""


LAST: Final = 100
"""The priority of who has none."""


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of a GPU's device time that is enforced: `rate` in 1/100 %, 0: all of it. `elastic`: it may be
    lent what others leave idle, to those of the smallest `priority` first."""

    rate: int
    elastic: bool = False
    priority: int = LAST


def allow(
    folder: Path,
    *,
    claim: str,
    uuid: str,
    limit: int | None,
    cores: int = 0,
    time: TimeShare | None = None,
    context_bytes: int = 0,
    flags: int = 0,
) -> None:
    """Make the claim's region if it does not exist, and what it may use of the GPU. An allocation is written
    once, so of a GPU that is there already the limits stay as they are: it may have been resized (`change`).

    `limit` None: counted, not limited; `cores`: percent reserved; `time` None: its device time is not
    limited, which may become another with the node's settings; `context_bytes` 0: measured when a context is
    made.
    Raises PrepareError for a claim of too many GPUs, NodeError for a region of another version, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not (folder / "policy").exists():  # it comes last: what is there without it was never used
        for name in (*ALIVE, REFUSED):
            os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            (folder / name).chmod(0o644)  # whatever the umask
        _make(
            folder / "usage",
            USAGE_BYTES,
            USAGE.pack(USAGE_MAGIC, VERSION, USAGE_BYTES, 0, 0, 0, 0, 0),
            mode=0o666,
        )
        _make(
            folder / "policy",
            POLICY_BYTES,
            POLICY.pack(POLICY_MAGIC, VERSION, POLICY_BYTES, flags, 0, 0, claim.encode()[:39], 0),
            mode=0o644,
        )
    wanted = uuid_bytes(uuid)
    with _written(folder) as policy:
        count = struct.unpack_from("=I", policy, DEVICE_COUNT)[0]
        known = [bytes(policy[at : at + 16]) for at in map(device_at, range(count))]
        index = known.index(wanted) if wanted in known else count
        if index == DEVICES_MAX:
            raise PrepareError(f"isolation limiter: a claim can have {DEVICES_MAX} GPUs, this one has more")
        at = device_at(index)
        if index == count:
            policy[at : at + DEVICE.size] = DEVICE.pack(
                wanted, UNLIMITED if limit is None else limit, 0, context_bytes, *[0] * 9
            )
            _put_time(policy, at, cores, time)
            policy[DEVICE_COUNT : DEVICE_COUNT + 4] = struct.pack("=I", count + 1)
        else:
            put(policy, at + CONTEXT, context_bytes)
            if bool(word(policy, at + RATE) & LOWER) is not (time is not None):
                _put_time(policy, at, word(policy, at + CORES) & LOWER, time)
        put(policy, SEQUENCE, word(policy, SEQUENCE) + 1)


def change(
    folder: Path, uuid: str, *, limit: int | None, cores: int, time: TimeShare | None, again: bool = False
) -> int:
    """Set what the claim may use of the GPU from now on, as in `allow`; `again`: tell its processes in any
    case. The number of the last change, which who has seen it acknowledges: it goes up after the limits are
    written. Raises OSError, NodeError."""
    wanted = uuid_bytes(uuid)
    with _written(folder) as policy:
        for index in range(struct.unpack_from("=I", policy, DEVICE_COUNT)[0]):
            at = device_at(index)
            if policy[at : at + 16] != wanted:
                continue
            before = bytes(policy[at : at + DEVICE.size])
            put(policy, at + LIMIT, UNLIMITED if limit is None else limit)
            _put_time(policy, at, cores, time)
            if again or bytes(policy[at : at + DEVICE.size]) != before:
                put(policy, SEQUENCE, word(policy, SEQUENCE) + 1)
            return word(policy, SEQUENCE)
    raise NodeError(f"{folder}: the claim has no share of {uuid}")


def _put_time(policy: mmap.mmap, at: int, cores: int, time: TimeShare | None) -> None:
    """What is lent ends where the share is another one now."""
    time = time or TimeShare(0)
    elastic, rate = word(policy, at + NEIGHBOURS) >> 32, word(policy, at + RATE)
    put(policy, at + CORES, cores | time.priority << 32)
    if (rate & LOWER, elastic) != (time.rate, time.elastic):
        put(policy, at + RATE, time.rate)
        put(policy, at + NEIGHBOURS, word(policy, at + NEIGHBOURS) & LOWER | time.elastic << 32)


def write_unaccounted(folder: Path, uuid: str, unseen: int, *, context_bytes: int | None = None) -> None:
    """Set what the node sees in use of the GPU beyond the ledger, and what to reserve for a context. Raises
    OSError, NodeError."""
    wanted = uuid_bytes(uuid)
    with _written(folder) as policy:
        for index in range(struct.unpack_from("=I", policy, DEVICE_COUNT)[0]):
            at = device_at(index)
            if policy[at : at + 16] == wanted:
                put(policy, at + UNSEEN, min(unseen, PLAUSIBLE))
                if context_bytes is not None:
                    put(policy, at + CONTEXT, context_bytes)
                return
    raise NodeError(f"{folder}: the claim has no share of {uuid}")


def write_outside(folder: Path, count: int) -> None:
    """Set how many processes compute on the claim's cards without a slot. Raises OSError, NodeError."""
    with _written(folder) as policy:
        put(policy, OUTSIDE, count)


def write_host_pid(folder: Path, *, slot: int, generation: int, pid: int) -> bool:
    """Set the host's pid of a slot's owner; False if the slot has another owner by now, or the region another
    version. Raises OSError."""
    if not 0 <= slot < SLOTS_MAX:
        return False
    with (folder / "usage").open("r+b", buffering=0) as file:
        at = SLOTS + slot * SLOT.size
        if os.pread(file.fileno(), HEAD.size, 0) != HEAD.pack(USAGE_MAGIC, VERSION, USAGE_BYTES):
            return False
        current = os.pread(file.fileno(), 8, at)
        if len(current) < 8 or struct.unpack("=Q", current)[0] != generation:
            return False
        os.pwrite(file.fileno(), struct.pack("=I", pid), at + HOST_PID)
    return True


one_writer: Final = threading.Lock()
"""Figures that share a word are written by several loops."""


@contextmanager
def _written(folder: Path) -> Iterator[mmap.mmap]:
    """The policy, for one thread at a time. Raises OSError, and NodeError for one that another koordra made:
    containers keep the library and the layout that they started with."""
    with one_writer, (folder / "policy").open("r+b") as file:
        require(folder / "policy", file.read(HEAD.size), POLICY_MAGIC, POLICY_BYTES)
        with mmap.mmap(file.fileno(), POLICY_BYTES) as policy:
            yield policy


def require(path: Path, head: bytes, magic: int, size: int) -> None:
    """That the file begins as one of this version. Raises NodeError."""
    if head.ljust(HEAD.size, b"\0") == HEAD.pack(magic, VERSION, size):
        return
    raise NodeError(
        f"{path}: not a region of version {VERSION}; if another koordra made it, the claim's containers go on as they are, "
        "and further ones start once all of its pods have ended"
    )


def device_at(index: int) -> int:
    return POLICY.size + index * DEVICE.size


def word(policy: mmap.mmap, at: int) -> int:
    word: int = struct.unpack_from("=Q", policy, at)[0]
    return word


def put(policy: mmap.mmap, at: int, value: int) -> None:
    policy[at : at + 8] = struct.pack("=Q", value)


def _make(path: Path, size: int, header: bytes, *, mode: int) -> None:
    """A file of zeros with a header. Readable only once it is complete.

    It has all its blocks: a disk that fills up later must not kill a program that writes to its mapping.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, size)
    temporary.chmod(mode)
    temporary.rename(path)

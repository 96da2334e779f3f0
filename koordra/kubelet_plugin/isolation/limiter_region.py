"""The limiter's shared region of one claim, as the node writes and reads it. The layout is native/limiter/region.h's.

    <folder>/policy   what the claim may use: written here, read by the tenant, changeable while programs run
    <folder>/usage    what its processes use: written by the tenant's processes, read here

A tenant can write anything into `usage`, or cut it short; it is read as bytes, never mapped, and never believed for more than
this claim's own figures. Who is alive is asked of the kernel: a process holds the lock of its slot's byte as long as it lives.

Every field that the tenant reads while it runs is one aligned word of eight bytes, and is written as one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError, PrepareError

VERSION: Final = 1
POLICY_MAGIC: Final = int.from_bytes(b"KORPOLY1", "little")
USAGE_MAGIC: Final = int.from_bytes(b"KORRUSG1", "little")
UNLIMITED: Final = (1 << 64) - 1
PLAUSIBLE: Final = 1 << 46
"""No process has so much of one card. A larger figure is a lie of the tenant's; it counts as nothing, here and in the limiter."""
DEVICES_MAX: Final = 16
SLOTS_MAX: Final = 1024
KINDS: Final = ("plain", "managed", "array", "vmm", "pool", "graph", "import", "context")

STRICT: Final = 1
TRUST_IMPORTS: Final = 2

_POLICY: Final = struct.Struct("=QIIIIQ40sQ48x")
_DEVICE: Final = struct.Struct("=16sQQQII16x")
_USAGE: Final = struct.Struct("=QIIQQQQ16x")
_SLOT: Final = struct.Struct(f"=QIIQQQII16s{DEVICES_MAX * len(KINDS)}Q")
_ACCOUNT: Final = struct.Struct("=QQ")

POLICY_BYTES: Final = _POLICY.size + DEVICES_MAX * _DEVICE.size
_DENIED: Final = _USAGE.size
_BITMAP: Final = _DENIED + 8 * DEVICES_MAX
_EXPORTS: Final = _BITMAP + SLOTS_MAX // 8
_ACCOUNTS: Final = _EXPORTS + 16 * 256
_SLOTS: Final = _ACCOUNTS + DEVICES_MAX * SLOTS_MAX * _ACCOUNT.size
USAGE_BYTES: Final = _SLOTS + SLOTS_MAX * _SLOT.size

_LIMIT, _UNSEEN, _CONTEXT = 16, 24, 32
_DEVICE_COUNT, _SEQUENCE, _OUTSIDE = 20, 24, 72
_HOST_PID: Final = 40
_ENFORCING: Final = 2

_LOCK: Final = struct.Struct("=hh4xqqi4x")
_UUID: Final = re.compile(r"(?:GPU-|MIG-)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a claim may use of one GPU. `limit` None: counted, not limited; `context_bytes` 0: measured when one is made."""

    uuid: str
    limit: int | None
    cores: int = 0
    context_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process of the claim: `pid` in its own namespace, `host_pid` 0 where the node was not told."""

    slot: int
    generation: int
    pid: int
    pid_namespace: int
    host_pid: int
    name: str
    enforcing: bool
    driver_version: int
    held: tuple[int, ...]
    kinds: tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """`unseen` is what the node found in use beyond the ledger; it is part of `used`. `context_bytes`: kept for a context."""

    uuid: str
    limit: int | None
    used: int
    unseen: int
    denied: int
    context_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """What a claim uses now. `started` counts the processes that ever took a slot, `turned_away` those that could not;
    `outside`: processes that the node sees compute on the claim's cards without a slot; `ended`: those whose slot was not given
    back yet, so that the limiter still counts what they held."""

    claim: str
    devices: tuple[DeviceUse, ...]
    processes: tuple[ProcessUse, ...]
    started: int
    turned_away: int
    outside: int = 0
    ended: tuple[ProcessUse, ...] = ()

    @property
    def handshake(self) -> str:
        """`waiting`: no process used CUDA yet; `enforcing`: all that did are limited; `refused`: one was turned away;
        `bypassed`: one computes without the limiter."""
        if self.outside:
            return "bypassed"
        if self.turned_away:
            return "refused"
        return "enforcing" if self.started else "waiting"


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
    """A region does not tell a GPU from a MIG instance; NVML wants to know."""
    text = uuid_text(uuid_bytes(uuid))
    return text, "MIG-" + text.removeprefix("GPU-")


def allow(folder: Path, *, claim: str, allowance: Allowance, flags: int = 0) -> None:
    """Make the claim's region if it is not there, and let it use the GPU so much: at once, also for running programs.

    Raises PrepareError for a claim of too many GPUs, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    _make(
        folder / "usage", USAGE_BYTES, _USAGE.pack(USAGE_MAGIC, VERSION, USAGE_BYTES, 0, 0, 0, 0), mode=0o666
    )
    header = _POLICY.pack(POLICY_MAGIC, VERSION, POLICY_BYTES, flags, 0, 0, claim.encode()[:39], 0)
    _make(folder / "policy", POLICY_BYTES, header, mode=0o644)
    wanted = uuid_bytes(allowance.uuid)
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), POLICY_BYTES) as policy:
        count = struct.unpack_from("=I", policy, _DEVICE_COUNT)[0]
        known = [bytes(policy[at : at + 16]) for at in map(_device_at, range(count))]
        index = known.index(wanted) if wanted in known else count
        if index == DEVICES_MAX:
            raise PrepareError(f"isolation limiter: a claim can have {DEVICES_MAX} GPUs, this one has more")
        limit = UNLIMITED if allowance.limit is None else allowance.limit
        if index == count:
            at = _device_at(index)
            policy[at : at + _DEVICE.size] = _DEVICE.pack(
                wanted, limit, 0, allowance.context_bytes, allowance.cores, 0
            )
            policy[_DEVICE_COUNT : _DEVICE_COUNT + 4] = struct.pack("=I", count + 1)
        else:
            _put(policy, _device_at(index) + _LIMIT, limit)
            _put(policy, _device_at(index) + _CONTEXT, allowance.context_bytes)
        _put(policy, _SEQUENCE, struct.unpack_from("=Q", policy, _SEQUENCE)[0] + 1)


def tell_unseen(folder: Path, uuid: str, unseen: int, *, context_bytes: int | None = None) -> None:
    """What the node sees in use of the GPU beyond the ledger, and what to keep for a context: from now on. Raises OSError,
    NodeError."""
    wanted = uuid_bytes(uuid)
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), POLICY_BYTES) as policy:
        for index in range(struct.unpack_from("=I", policy, _DEVICE_COUNT)[0]):
            at = _device_at(index)
            if policy[at : at + 16] == wanted:
                _put(policy, at + _UNSEEN, min(unseen, PLAUSIBLE))
                if context_bytes is not None:
                    _put(policy, at + _CONTEXT, context_bytes)
                return
    raise NodeError(f"{folder}: the claim has no share of {uuid}")


def tell_outside(folder: Path, count: int) -> None:
    """How many processes compute on the claim's cards without a slot. Raises OSError."""
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), POLICY_BYTES) as policy:
        _put(policy, _OUTSIDE, count)


def tell_host_pid(folder: Path, *, slot: int, generation: int, pid: int) -> bool:
    """Write down the host's pid of a slot's owner; False where the slot has another owner by now. Raises OSError."""
    if not 0 <= slot < SLOTS_MAX:
        return False
    with (folder / "usage").open("r+b", buffering=0) as file:
        at = _SLOTS + slot * _SLOT.size
        current = os.pread(file.fileno(), 8, at)
        if len(current) < 8 or struct.unpack("=Q", current)[0] != generation:
            return False
        os.pwrite(file.fileno(), struct.pack("=I", pid), at + _HOST_PID)
    return True


def read(folder: Path) -> ClaimUse:
    """What the claim uses now. Raises NodeError where there is no region, or one of another version."""
    try:
        policy = (folder / "policy").read_bytes()
        with (folder / "usage").open("rb", buffering=0) as file:
            usage = os.pread(file.fileno(), USAGE_BYTES, 0)
            taken = {slot: _alive(file.fileno(), slot) for slot in range(SLOTS_MAX) if _bit(usage, slot)}
    except OSError as error:
        raise NodeError(f"{folder}: no region of a claim: {error}") from error
    _check(folder, policy, usage)
    count = min(struct.unpack_from("=I", policy, _DEVICE_COUNT)[0], DEVICES_MAX)
    processes = tuple(_process(usage, slot, count) for slot, alive in taken.items() if alive)
    return ClaimUse(
        claim=_POLICY.unpack_from(policy)[6].rstrip(b"\0").decode(errors="replace"),
        devices=tuple(_device(policy, usage, index, processes) for index in range(count)),
        processes=processes,
        started=_USAGE.unpack_from(usage)[4],
        turned_away=_USAGE.unpack_from(usage)[5],
        outside=_POLICY.unpack_from(policy)[7],
        ended=tuple(_process(usage, slot, count) for slot, alive in taken.items() if not alive),
    )


def _check(folder: Path, policy: bytes, usage: bytes) -> None:
    for name, data, magic, size in (
        ("policy", policy, POLICY_MAGIC, POLICY_BYTES),
        ("usage", usage, USAGE_MAGIC, USAGE_BYTES),
    ):
        if len(data) < size or struct.unpack_from("=QII", data) != (magic, VERSION, size):
            raise NodeError(f"{folder / name}: not a region of version {VERSION}")


def _device(policy: bytes, usage: bytes, index: int, processes: tuple[ProcessUse, ...]) -> DeviceUse:
    raw, limit, unseen, context_bytes, _, _ = _DEVICE.unpack_from(policy, _device_at(index))
    return DeviceUse(
        uuid=uuid_text(raw),
        limit=None if limit == UNLIMITED else limit,
        used=sum(process.held[index] for process in processes) + unseen,
        unseen=unseen,
        denied=struct.unpack_from("=Q", usage, _DENIED + 8 * index)[0],
        context_bytes=context_bytes,
    )


def _process(usage: bytes, slot: int, devices: int) -> ProcessUse:
    generation, state, pid, namespace, _, _, host_pid, driver, name, *kinds = _SLOT.unpack_from(
        usage, _SLOTS + slot * _SLOT.size
    )
    return ProcessUse(
        slot=slot,
        generation=generation,
        pid=pid,
        pid_namespace=namespace,
        host_pid=host_pid,
        name=name.partition(b"\0")[0].decode(errors="replace"),
        enforcing=state == _ENFORCING,
        driver_version=driver,
        held=tuple(
            _plausible(_ACCOUNT.unpack_from(usage, _ACCOUNTS + (index * SLOTS_MAX + slot) * _ACCOUNT.size)[1])
            for index in range(devices)
        ),
        kinds=tuple(
            tuple(zip(KINDS, kinds[index * len(KINDS) : (index + 1) * len(KINDS)], strict=True))
            for index in range(devices)
        ),
    )


def _plausible(figure: int) -> int:
    return figure if figure < PLAUSIBLE else 0


def _bit(usage: bytes, slot: int) -> bool:
    at = _BITMAP + slot // 8
    return at < len(usage) and bool(usage[at] >> slot % 8 & 1)


def _alive(file: int, slot: int) -> bool:
    """Whether somebody holds the lock of the slot's byte. It is asked for reading: the file is open for reading only."""
    lock = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, slot, 1, 0)
    kind = _LOCK.unpack(fcntl.fcntl(file, 36, lock))[0]  # F_OFD_GETLK
    return bool(kind != fcntl.F_UNLCK)


def _device_at(index: int) -> int:
    return _POLICY.size + index * _DEVICE.size


def _put(policy: mmap.mmap, at: int, value: int) -> None:
    policy[at : at + 8] = struct.pack("=Q", value)


def _make(path: Path, size: int, header: bytes, *, mode: int) -> None:
    """A file of zeros with a header; as it is where it is there. Readable only once it is complete.

    It has all its blocks: a disk that fills up later must not kill a program that writes to its mapping.
    """
    if path.exists():
        return
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, size)
    temporary.chmod(mode)
    temporary.rename(path)

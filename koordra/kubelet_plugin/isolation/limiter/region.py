"""The limiter's shared region of one claim, as the node writes and reads it. The layout is native/limiter/region.h's (layout.py).

    <folder>/policy   what the claim may use: written here, read by the tenant, changeable while programs run
    <folder>/usage    what its processes use: written by the tenant's processes, read here
    <folder>/alive.N, <folder>/refused   empty; locks on them say who lives (layout.py)

A tenant can write anything into `usage`, or cut it short; it is read as bytes, never mapped, and never believed for more than
this claim's own figures. Only its head and the slots that are taken are read: reading a claim costs microseconds.

A region of version 1, of a claim that an earlier plugin prepared, stays as it is and is read by its own rules.

Every field that the tenant reads while it runs is one aligned word of eight bytes, and is written as one.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.isolation.limiter import layout

REFUSED_SHOWN: Final = 60.0
"""Seconds for which a refusal is reported at least: a process that ends at once must be noticed too."""

FILES: Final = (
    "policy",
    "usage",
    "policy.tmp",
    "usage.tmp",
    *layout.ALIVE,
    layout.REFUSED,
)
"""All that a region may consist of; the policy first: without it there is none."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process of the claim: `pid` in its own namespace, `host_pid` 0 where it is not known."""

    slot: int
    generation: int
    pid: int
    pid_namespace: int
    host_pid: int
    name: str
    enforcing: bool
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
    back yet, so that the limiter still counts what they held; `refused`: one that could not take a slot is there now, or
    was a moment ago."""

    claim: str
    devices: tuple[DeviceUse, ...]
    processes: tuple[ProcessUse, ...]
    started: int
    turned_away: int
    outside: int = 0
    ended: tuple[ProcessUse, ...] = ()
    refused: bool = False

    @property
    def handshake(self) -> str:
        """`waiting`: no process used CUDA yet; `enforcing`: all that did are limited; `refused`: one was turned away
        and is still there; `bypassed`: one computes without the limiter."""
        if self.outside:
            return "bypassed"
        if self.refused:
            return "refused"
        return "enforcing" if self.started else "waiting"


def allow(
    folder: Path,
    *,
    claim: str,
    uuid: str,
    limit: int | None,
    cores: int = 0,
    context_bytes: int = 0,
    flags: int = 0,
) -> None:
    """Make the claim's region if it does not exist, and set what it may use of the GPU: at once, also for running programs.

    `limit` None: counted, not limited; `context_bytes` 0: measured when a context is made.
    Raises PrepareError for a claim of too many GPUs, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not (folder / "policy").exists():  # it comes last: what is there without it was never used
        layout.make_files(folder)
        _make(
            folder / "usage",
            layout.USAGE_BYTES,
            layout.USAGE.pack(layout.USAGE_MAGIC, layout.VERSION, layout.USAGE_BYTES, 0, 0, 0, 0, 0),
            mode=0o666,
        )
        _make(
            folder / "policy",
            layout.POLICY_BYTES,
            layout.POLICY.pack(
                layout.POLICY_MAGIC, layout.VERSION, layout.POLICY_BYTES, flags, 0, 0, claim.encode()[:39], 0
            ),
            mode=0o644,
        )
    wanted = layout.uuid_bytes(uuid)
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), layout.POLICY_BYTES) as policy:
        count = struct.unpack_from("=I", policy, layout.DEVICE_COUNT)[0]
        known = [bytes(policy[at : at + 16]) for at in map(_device_at, range(count))]
        index = known.index(wanted) if wanted in known else count
        if index == layout.DEVICES_MAX:
            raise PrepareError(
                f"isolation limiter: a claim can have {layout.DEVICES_MAX} GPUs, this one has more"
            )
        limit = layout.UNLIMITED if limit is None else limit
        if index == count:
            at = _device_at(index)
            policy[at : at + layout.DEVICE.size] = layout.DEVICE.pack(
                wanted, limit, 0, context_bytes, cores, 0
            )
            policy[layout.DEVICE_COUNT : layout.DEVICE_COUNT + 4] = struct.pack("=I", count + 1)
        else:
            _put(policy, _device_at(index) + layout.LIMIT, limit)
            _put(policy, _device_at(index) + layout.CONTEXT, context_bytes)
        _put(policy, layout.SEQUENCE, struct.unpack_from("=Q", policy, layout.SEQUENCE)[0] + 1)


def write_unaccounted(folder: Path, uuid: str, unseen: int, *, context_bytes: int | None = None) -> None:
    """Set what the node sees in use of the GPU beyond the ledger, and what to reserve for a context. Raises OSError, NodeError."""
    wanted = layout.uuid_bytes(uuid)
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), layout.POLICY_BYTES) as policy:
        for index in range(struct.unpack_from("=I", policy, layout.DEVICE_COUNT)[0]):
            at = _device_at(index)
            if policy[at : at + 16] == wanted:
                _put(policy, at + layout.UNSEEN, min(unseen, layout.PLAUSIBLE))
                if context_bytes is not None:
                    _put(policy, at + layout.CONTEXT, context_bytes)
                return
    raise NodeError(f"{folder}: the claim has no share of {uuid}")


def write_outside(folder: Path, count: int) -> None:
    """Set how many processes compute on the claim's cards without a slot. Raises OSError."""
    with (folder / "policy").open("r+b") as file, mmap.mmap(file.fileno(), layout.POLICY_BYTES) as policy:
        _put(policy, layout.OUTSIDE, count)


def write_host_pid(folder: Path, *, slot: int, generation: int, pid: int) -> bool:
    """Set the host's pid of a slot's owner; False if the slot has another owner by now. Raises OSError."""
    if not 0 <= slot < layout.SLOTS_MAX:
        return False
    with (folder / "usage").open("r+b", buffering=0) as file:
        at = layout.SLOTS + slot * layout.SLOT.size
        current = os.pread(file.fileno(), 8, at)
        if len(current) < 8 or struct.unpack("=Q", current)[0] != generation:
            return False
        os.pwrite(file.fileno(), struct.pack("=I", pid), at + layout.HOST_PID)
    return True


def read(folder: Path, *, now: float | None = None) -> ClaimUse:
    """What the claim uses now. Raises NodeError where there is no region, or one of another version."""
    try:
        policy = (folder / "policy").read_bytes()
        with (folder / "usage").open("rb", buffering=0) as file:
            usage = _Usage(file.fileno())
            version = _version(folder, policy, usage)
            taken = usage.taken()
            living = layout.owned(folder, taken, version=version)
            count = min(struct.unpack_from("=I", policy, layout.DEVICE_COUNT)[0], layout.DEVICES_MAX)
            slots = [usage.process(slot, count) for slot in taken]
    except (OSError, struct.error) as error:  # cut short while it is read
        raise NodeError(f"{folder}: no region of a claim: {error}") from error
    processes = tuple(each for each in slots if each.slot in living)
    header = layout.USAGE.unpack_from(usage.head)
    return ClaimUse(
        claim=layout.POLICY.unpack_from(policy)[6].rstrip(b"\0").decode(errors="replace"),
        devices=tuple(_device(policy, usage.head, index, processes) for index in range(count)),
        processes=processes,
        started=header[4],
        turned_away=header[5],
        outside=layout.POLICY.unpack_from(policy)[7],
        ended=tuple(each for each in slots if each.slot not in living),
        refused=_refused(folder, header[5], header[7], time.monotonic() if now is None else now),
    )


def _refused(folder: Path, turned_away: int, at: int, now: float) -> bool:
    alive = layout.somebody_refused(folder)
    if alive is None:
        return bool(turned_away)  # who was refused cannot be asked for
    return alive or (at > 0 and 0 <= now - at / 1e9 < REFUSED_SHOWN)


class _Usage:
    """The open file: its length, its first part, and what of the rest is asked for."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.head = os.pread(file, layout.ACCOUNTS, 0)
        # A tenant may cut it short between the two: then it is as long as what was read of it.
        self.length = os.fstat(file).st_size if len(self.head) == layout.ACCOUNTS else len(self.head)

    def taken(self) -> list[int]:
        bits = int.from_bytes(self.head[layout.BITMAP : layout.EXPORTS], "little")
        found = []
        while bits:
            found.append((bits & -bits).bit_length() - 1)
            bits &= bits - 1
        return found

    def process(self, slot: int, devices: int) -> ProcessUse:
        generation, state, pid, namespace, _, _, host_pid, _, name, *kinds = layout.SLOT.unpack(
            os.pread(self._file, layout.SLOT.size, layout.SLOTS + slot * layout.SLOT.size)
        )
        return ProcessUse(
            slot=slot,
            generation=generation,
            pid=pid,
            pid_namespace=namespace,
            host_pid=host_pid,
            name=name.partition(b"\0")[0].decode(errors="replace"),
            enforcing=state == layout.ENFORCING,
            held=tuple(self._held(index, slot) for index in range(devices)),
            kinds=tuple(
                tuple(
                    zip(
                        layout.KINDS,
                        kinds[index * len(layout.KINDS) : (index + 1) * len(layout.KINDS)],
                        strict=True,
                    )
                )
                for index in range(devices)
            ),
        )

    def _held(self, index: int, slot: int) -> int:
        at = layout.ACCOUNTS + (index * layout.SLOTS_MAX + slot) * layout.ACCOUNT.size
        held: int = layout.ACCOUNT.unpack(os.pread(self._file, layout.ACCOUNT.size, at))[1]
        return held if held < layout.PLAUSIBLE else 0


def _version(folder: Path, policy: bytes, usage: _Usage) -> int:
    version = struct.unpack_from("=QI", policy)[1] if len(policy) >= layout.POLICY_BYTES else 0
    for name, data, length, magic, size in (
        ("policy", policy, len(policy), layout.POLICY_MAGIC, layout.POLICY_BYTES),
        ("usage", usage.head, usage.length, layout.USAGE_MAGIC, layout.USAGE_BYTES),
    ):
        whole = layout.OLDEST <= version <= layout.VERSION and length >= size
        if not whole or struct.unpack_from("=QII", data) != (magic, version, size):
            raise NodeError(f"{folder / name}: not a region of version {layout.OLDEST} to {layout.VERSION}")
    return int(version)


def _device(policy: bytes, usage: bytes, index: int, processes: tuple[ProcessUse, ...]) -> DeviceUse:
    raw, limit, unseen, context_bytes, _, _ = layout.DEVICE.unpack_from(policy, _device_at(index))
    return DeviceUse(
        uuid=layout.uuid_text(raw),
        limit=None if limit == layout.UNLIMITED else limit,
        used=sum(process.held[index] for process in processes) + unseen,
        unseen=unseen,
        denied=struct.unpack_from("=Q", usage, layout.DENIED + 8 * index)[0],
        context_bytes=context_bytes,
    )


def _device_at(index: int) -> int:
    return layout.POLICY.size + index * layout.DEVICE.size


def _put(policy: mmap.mmap, at: int, value: int) -> None:
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

"""What a claim's processes use, as its limiter's region says (region.py).

A tenant can write anything into `usage`, or cut it short; it is read as bytes, never mapped, and never
believed for more than this claim's own figures. Only its head and the slots that are taken are read: reading
a claim costs microseconds.

Which of a claim's processes live, the kernel's locks on files of its region say (native/limiter/slot_lock.c):

    <folder>/alive.0 .. alive.31   the owner of slot n has a lock for reading on byte n of file n % 32, as
                                   long as it lives
    <folder>/refused               a process that could not be limited has one on byte 0, as long as it lives

The files are empty and only the node may write them. A lock is queried, never taken, so no process has to
wait for the node.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter.region import (
    ACCOUNT,
    ACCOUNTS,
    ALIVE,
    ALIVE_FILES,
    BITMAP,
    DENIED,
    DEVICE,
    DEVICE_COUNT,
    DEVICES_MAX,
    ENFORCING,
    EXPORTS,
    HEAD,
    KINDS,
    PACE,
    PACES,
    PLAUSIBLE,
    POLICY,
    POLICY_BYTES,
    POLICY_MAGIC,
    REFUSED,
    SLOT,
    SLOTS,
    SLOTS_MAX,
    UNLIMITED,
    USAGE,
    USAGE_BYTES,
    USAGE_MAGIC,
    device_at,
    require,
    uuid_text,
)

REFUSED_SHOWN: Final = 60.0
"""Seconds for which a refusal is reported at least: a process that ends at once must be noticed too."""

_LOCK: Final = struct.Struct("=hh4xqqi4x")
_OFD_GETLK: Final = 36


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process of the claim: `pid` in its own namespace, `host_pid` 0 where it is not known.
    `acknowledged`: the last change of limits that it has acted by; `pending`: bytes that it is about to
    take."""

    slot: int
    generation: int
    pid: int
    pid_namespace: int
    host_pid: int
    name: str
    enforcing: bool
    held: tuple[int, ...]
    kinds: tuple[Mapping[str, int], ...]
    acknowledged: int = 0
    pending: int = 0

    def has_taken(self, change: int) -> bool:
        """Whether it acts by the change: it says so, or it is in no call that could act by an older one,
        and reads the limits anew in its next."""
        return self.acknowledged >= change or not self.pending


@dataclass(frozen=True, slots=True)
class CardUse:
    """`unseen` is what the node found in use beyond the ledger; it is part of `used`. `context_bytes`: kept
    for a context. `rate`: device time in 1/100 %, 0: not limited; then `device_ns` is what its launches were
    charged, and `waited_ns` what they waited for, summed over threads, both by the claim's own count, and
    `seen_ns` what the driver saw of its kernels, since the node began to look."""

    uuid: str
    limit: int | None
    used: int
    unseen: int
    denied: int
    context_bytes: int = 0
    rate: int = 0
    device_ns: int = 0
    waited_ns: int = 0
    seen_ns: int = 0


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """What a claim uses now. `started` counts the processes that ever took a slot, `turned_away` those that
    could not; `outside`: processes that the node sees compute on the claim's cards without a slot; `ended`:
    those whose slot was not given back yet, so that the limiter still counts what they held; `refused`: one
    that could not take a slot is there now, or was a moment ago."""

    claim: str
    devices: tuple[CardUse, ...]
    processes: tuple[ProcessUse, ...]
    started: int
    turned_away: int
    outside: int = 0
    ended: tuple[ProcessUse, ...] = ()
    refused: bool = False
    damaged: bool = False
    change: int = 0

    @property
    def behind(self) -> tuple[ProcessUse, ...]:
        """Living processes that have not acknowledged the last change of limits, which is number `change`."""
        return tuple(each for each in self.processes if each.acknowledged < self.change)

    @property
    def handshake(self) -> str:
        """`waiting`: no process used CUDA yet; `enforcing`: all that did are limited; `refused`: one was
        turned away and is still there; `bypassed`: one computes without the limiter; `damaged`: nothing can
        be read of what the claim's processes wrote."""
        if self.damaged:
            return "damaged"
        if self.outside:
            return "bypassed"
        if self.refused:
            return "refused"
        return "enforcing" if self.started else "waiting"


def read(folder: Path, *, now: float | None = None) -> ClaimUse:
    """What the claim uses now. Raises NodeError where there is no region, or one of another version."""
    try:
        policy = _policy(folder)
        with (folder / "usage").open("rb", buffering=0) as file:
            usage = _Usage(file.fileno())
            _require(folder / "usage", usage.head, usage.length, USAGE_MAGIC, USAGE_BYTES)
            taken = usage.taken()
            living = owned(folder, taken)
            count = _count(policy)
            slots = [usage.process(slot, count) for slot in taken]
            paces = usage.paces(count)
            with (folder / REFUSED).open("rb", buffering=0) as file_of_refused:
                refused = _locked(file_of_refused.fileno(), 0)
    except (OSError, struct.error) as error:  # cut short while it is read
        raise NodeError(f"{folder}: no region of a claim: {error}") from error
    processes = tuple(each for each in slots if each.slot in living)
    header = USAGE.unpack_from(usage.head)
    now = time.monotonic() if now is None else now
    return ClaimUse(
        claim=_claim(policy),
        devices=tuple(
            _device(policy, usage.head, index, processes, pace=paces[index]) for index in range(count)
        ),
        processes=processes,
        started=header[4],
        turned_away=header[5],
        outside=POLICY.unpack_from(policy)[7],
        ended=tuple(each for each in slots if each.slot not in living),
        refused=refused or (header[7] > 0 and 0 <= now - header[7] / 1e9 < REFUSED_SHOWN),
        change=POLICY.unpack_from(policy)[5],
    )


def without_processes(folder: Path) -> ClaimUse:
    """What the node knows by itself of a claim whose processes have damaged their part. Raises NodeError
    where the node's part is not there."""
    try:
        policy = _policy(folder)
    except OSError as error:
        raise NodeError(f"{folder}: no region of a claim: {error}") from error
    nothing = bytes(ACCOUNTS)
    devices = tuple(_device(policy, nothing, index, ()) for index in range(_count(policy)))
    return ClaimUse(_claim(policy), devices, (), started=0, turned_away=0, damaged=True)


def read_policy(folder: Path) -> list[tuple[Any, ...]]:
    """The node's part of a region, a tuple of DEVICE for each GPU. Raises OSError, NodeError."""
    policy = _policy(folder)
    return [DEVICE.unpack_from(policy, device_at(index)) for index in range(_count(policy))]


def _policy(folder: Path) -> bytes:
    policy = (folder / "policy").read_bytes()
    _require(folder / "policy", policy, len(policy), POLICY_MAGIC, POLICY_BYTES)
    return policy


def _count(policy: bytes) -> int:
    count: int = struct.unpack_from("=I", policy, DEVICE_COUNT)[0]
    return min(count, DEVICES_MAX)


def _claim(policy: bytes) -> str:
    name: bytes = POLICY.unpack_from(policy)[6]
    return name.rstrip(b"\0").decode(errors="replace")


class _Usage:
    """The open file: its length, its first part, and what of the rest is asked for."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.head = os.pread(file, ACCOUNTS, 0)
        # A tenant may cut it short between the two: then it is as long as what was read of it.
        self.length = os.fstat(file).st_size if len(self.head) == ACCOUNTS else len(self.head)

    def taken(self) -> list[int]:
        bits = int.from_bytes(self.head[BITMAP:EXPORTS], "little")
        found = []
        while bits:
            found.append((bits & -bits).bit_length() - 1)
            bits &= bits - 1
        return found

    def process(self, slot: int, devices: int) -> ProcessUse:
        generation, state, pid, namespace, _, _, host_pid, _, name, seen, *kinds = SLOT.unpack(
            os.pread(self._file, SLOT.size, SLOTS + slot * SLOT.size)
        )
        accounts = [self._account(index, slot) for index in range(devices)]
        return ProcessUse(
            slot=slot,
            generation=generation,
            pid=pid,
            pid_namespace=namespace,
            host_pid=host_pid,
            name=name.partition(b"\0")[0].decode(errors="replace"),
            enforcing=state == ENFORCING,
            held=tuple(held for _, held in accounts),
            kinds=tuple(
                dict(
                    zip(
                        KINDS,
                        kinds[index * len(KINDS) : (index + 1) * len(KINDS)],
                        strict=True,
                    )
                )
                for index in range(devices)
            ),
            acknowledged=seen,
            pending=sum(pending for pending, _ in accounts),
        )

    def paces(self, devices: int) -> list[tuple[int, int]]:
        """Of each device: ns charged, ns waited."""
        found = os.pread(self._file, devices * PACE.size, PACES)
        if len(found) < devices * PACE.size:
            raise struct.error("cut short")
        return [(charged, waited) for _, charged, *_, waited, _ in PACE.iter_unpack(found)]

    def _account(self, index: int, slot: int) -> tuple[int, int]:
        """Bytes that are announced, and that are held: read in one piece, since what is granted is added to
        the second before it leaves the first."""
        at = ACCOUNTS + (index * SLOTS_MAX + slot) * ACCOUNT.size
        pending, held = ACCOUNT.unpack(os.pread(self._file, ACCOUNT.size, at))
        return (pending if pending < PLAUSIBLE else 0), (held if held < PLAUSIBLE else 0)


def _require(path: Path, data: bytes, length: int, magic: int, size: int) -> None:
    require(path, data[: HEAD.size] if length >= size else b"", magic, size)


def _device(
    policy: bytes,
    usage: bytes,
    index: int,
    processes: tuple[ProcessUse, ...],
    *,
    pace: tuple[int, int] = (0, 0),
) -> CardUse:
    raw, limit, unseen, context_bytes, _, _, rate, _, _, seen_ns, *_ = DEVICE.unpack_from(
        policy, device_at(index)
    )
    return CardUse(
        uuid=uuid_text(raw),
        limit=None if limit == UNLIMITED else limit,
        used=sum(process.held[index] for process in processes) + unseen,
        unseen=unseen,
        denied=struct.unpack_from("=Q", usage, DENIED + 8 * index)[0],
        context_bytes=context_bytes,
        rate=rate,
        device_ns=pace[0],
        waited_ns=pace[1],
        seen_ns=seen_ns,
    )


def owned(folder: Path, slots: Iterable[int]) -> frozenset[int]:
    """Those of the slots that have a living owner. Raises OSError."""
    by_file: dict[str, list[int]] = {}
    for slot in slots:
        by_file.setdefault(ALIVE[slot % ALIVE_FILES], []).append(slot)
    found: set[int] = set()
    for name, there in by_file.items():
        with (folder / name).open("rb", buffering=0) as file:
            found |= {slot for slot in there if _locked(file.fileno(), slot)}
    return frozenset(found)


def _locked(file: int, byte: int) -> bool:
    """Whether a process has a lock on the byte. Queried as a write lock, which conflicts with every other; it
    needs no right to write."""
    return bool(
        _LOCK.unpack(fcntl.fcntl(file, _OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)))[0]
        != fcntl.F_UNLCK
    )

"""Regions of a node's claims, kept open by who reads or writes them several times a second (seen_time.py,
device_time.py): a look costs no system call, but for what a claim's processes write."""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter.region import (
    ACTIVE,
    DEVICE,
    DEVICE_COUNT,
    DEVICE_TIME,
    DEVICES_MAX,
    HEAD,
    LENT_UNTIL,
    LOWER,
    NEIGHBOURS,
    PACE,
    PACES,
    POLICY_BYTES,
    POLICY_MAGIC,
    RATE,
    SEEN_UNTIL,
    device_at,
    one_writer,
    put,
    require,
    word,
)

LOOKED_UP: Final = 1.0
"""Seconds for which it is remembered which claims have a region."""


class OpenRegion:
    """Raises OSError where it is not there, NodeError for one of another version. `policy` is mapped; `usage`
    is read as bytes, since a tenant may cut it short."""

    def __init__(self, folder: Path) -> None:
        with (folder / "policy").open("r+b") as file:
            found = os.fstat(file.fileno())
            self._file = _identity(found)
            head = file.read(HEAD.size) if found.st_size >= POLICY_BYTES else b""
            require(folder / "policy", head, POLICY_MAGIC, POLICY_BYTES)
            usage = os.open(folder / "usage", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._policy = mmap.mmap(file.fileno(), POLICY_BYTES)
            except BaseException:
                os.close(usage)
                raise
            self._usage = usage
            self._close_usage = weakref.finalize(self, os.close, usage)  # mmap does so for the policy

    def devices(self) -> list[tuple[Any, ...]]:
        """A tuple of DEVICE for each GPU."""
        count = min(struct.unpack_from("=I", self._policy, DEVICE_COUNT)[0], DEVICES_MAX)
        return [DEVICE.unpack_from(self._policy, device_at(index)) for index in range(count)]

    def allowed(self, index: int) -> int:
        """Of the time of its GPU number `index`, in 1/100 %: its rate, or what it is lent now."""
        both = word(self._policy, device_at(index) + RATE)
        return max(both & LOWER, both >> 32)

    def active(self, index: int) -> int | None:
        """When the claim's processes last took device time of its GPU number `index`, or waited for it, in ns
        of CLOCK_MONOTONIC, by their own word; None where that cannot be read."""
        try:
            found = os.pread(self._usage, 8, PACES + index * PACE.size + ACTIVE)
        except OSError:
            return None
        return int(struct.unpack("=Q", found)[0]) if len(found) == 8 else None

    def write_seen_time(self, index: int, *, device_time: int, until: int) -> None:
        """Set how long the node has seen the claim's kernels on its GPU number `index`, in ns, and until
        when, in ns of a clock of its choice. `device_time` smaller than before says that it has begun
        anew."""
        at = device_at(index)
        put(self._policy, at + DEVICE_TIME, device_time)
        put(self._policy, at + SEEN_UNTIL, until)

    def write_lent(self, index: int, *, lent: int, until: int, neighbours: int) -> None:
        """Set what device time the claim may use of its GPU number `index` beyond its rate: `lent` in
        1/100 %, until that time of CLOCK_MONOTONIC in ns, 0: nothing; and how many other claims have a share
        of the GPU."""
        at = device_at(index)
        with one_writer:
            put(self._policy, at + LENT_UNTIL, until)
            put(self._policy, at + RATE, word(self._policy, at + RATE) & LOWER | lent << 32)
            put(self._policy, at + NEIGHBOURS, word(self._policy, at + NEIGHBOURS) >> 32 << 32 | neighbours)

    def is_of(self, folder: Path) -> bool:
        """Whether that is where the region is: it may be gone, and another made."""
        try:
            return _identity((folder / "policy").stat()) == self._file
        except OSError:
            return False

    def close(self) -> None:
        self._policy.close()
        self._close_usage()


class OpenRegions:
    """`claims` is the folder with one folder per claim. For one thread."""

    def __init__(self, claims: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims, self._clock = claims, clock
        self._looked_at = -LOOKED_UP
        self.by_claim: Mapping[str, OpenRegion] = {}

    def look_up(self) -> bool:
        """Whether it was looked, since that was LOOKED_UP ago."""
        now = self._clock()
        if now - self._looked_at < LOOKED_UP:
            return False
        self._looked_at = now
        found = dict[str, OpenRegion]()
        for folder in sorted(self._claims.iterdir()) if self._claims.is_dir() else ():
            known = self.by_claim.get(folder.name)
            try:
                there = known is not None and known.is_of(folder)
                found[folder.name] = known if known is not None and there else OpenRegion(folder)
            except (OSError, NodeError):  # it comes, goes, or is another koordra's
                continue
        before, self.by_claim = self.by_claim, found
        for claim, region in before.items():
            if found.get(claim) is not region:
                region.close()
        return True


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino

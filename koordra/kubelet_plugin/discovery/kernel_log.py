"""Xids from the kernel's log: what the driver reported while NVML was closed, or while the plugin was down.

NVML reports Xids only to who listens. The driver also writes each one to the kernel's log, which keeps it:

    4,1203,98134276,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    │ │    └ microseconds since boot
    │ └ sequence number, never reused within a boot
    └ facility * 8 + priority

(Documentation/ABI/testing/dev-kmsg: one read gives one record, then lines of ``KEY=value`` that begin with a
blank.) Any process that may open /dev/kmsg can write to it, but not as the kernel: its records get facility
1 where they ask for 0. So only records of facility 0 count.

**Once.** The place in the log (boot id, sequence number) behind the last Xid is kept on disk. A plugin that
starts reads the whole log of this boot, which is the gap, and passes over what was reported before. A driver
that was loaded anew has forgotten its errors, and so are those in the log before that line.

While NVML is open it reports the same Xids. ``FirstReports`` lets the first of the two reports of one Xid
through.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.events import DriverLoaded, Event, HardwareChanged, XidReported
from koordra.kubelet_plugin.discovery.nvml_query import normal_bus_id
from koordra.logs import get_logger
from koordra.node_state.disk import Disk

log = get_logger(__name__)

KMSG: Final = Path("/dev/kmsg")
FILE: Final = "kernel-log.json"
_MODE: Final = 0o600
_LONGEST: Final = 8192
_AT_ONCE: Final = 1 << 17
"""More records than any log holds: all that is there is read at once."""
_KERNEL: Final = 0

_RECORD: Final = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]*;([^\n]*)")
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)[^)]*\): (\d{1,5})\b",
    re.ASCII,
)
_LOADED: Final = "NVRM: loading NVIDIA UNIX"


@dataclass(frozen=True, slots=True)
class KernelRecord:
    sequence: int
    text: str


def kernel_record(data: bytes) -> KernelRecord | None:
    """One record as /dev/kmsg gives it; None for one that the kernel itself did not write."""
    found = _RECORD.match(data)
    if found is None or int(found[1]) >> 3 != _KERNEL:
        return None
    return KernelRecord(int(found[2]), found[4].decode("ascii", "replace"))


def xid_of(text: str) -> XidReported | None:
    """The Xid that a line of the driver reports. MIG writes the instance behind the address."""
    found = _XID.match(text)
    bus_id = normal_bus_id(found[1]) if found else None
    return XidReported(bus_id, int(found[2]), from_log=True) if found and bus_id else None


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The place in the log of one boot: records from `following` on are new."""

    boot_id: str
    following: int = 0


class LogCursorFile:
    """Where the cursor outlives the plugin. A cursor that cannot be read or written is none: an Xid is then
    reported twice rather than not at all."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / FILE
        self._disk = disk

    def load(self, boot_id: str) -> LogCursor:
        """The cursor of this boot; its beginning where the last one is of another."""
        try:
            found = json.loads(self._disk.read(self._path) or b"{}")
            if found["bootID"] == boot_id:
                return LogCursor(boot_id, int(found["following"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return LogCursor(boot_id)

    def save(self, cursor: LogCursor) -> None:
        data = {"bootID": cursor.boot_id, "following": cursor.following}
        try:
            self._disk.replace(self._path, json.dumps(data).encode() + b"\n", mode=_MODE)
        except OSError as error:
            log.warning("kernel_log_cursor_not_saved", path=str(self._path), error=str(error))


class KernelLog:
    """An event source: the Xids of this boot that were not reported yet, then those that come.

    ``read`` gives the next record of ``descriptor``, as ``os.read`` does.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        boot_id: str,
        cursor: LogCursorFile,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._descriptor = descriptor
        self._read = read
        self._file = cursor
        self._cursor = cursor.load(boot_id)

    @classmethod
    def opened(cls, path: Path, *, boot_id: str, cursor: LogCursorFile) -> KernelLog:
        """Raises OSError where the log cannot be read."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(descriptor, boot_id=boot_id, cursor=cursor)

    def fileno(self) -> int:
        return self._descriptor

    def take(self) -> Sequence[Event]:
        found: list[Event] = []
        following = self._cursor.following
        for _ in range(_AT_ONCE):
            try:
                data = self._read(self._descriptor, _LONGEST)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before it was read; the next read goes on
                    found.append(HardwareChanged("records of the kernel's log were lost"))
                elif error.errno != errno.EINVAL:  # a record that is too long is passed over
                    log.warning("kernel_log_failed", error=str(error))
                    self.close()
                    break
                continue
            record = kernel_record(data)
            if record is None or record.sequence < self._cursor.following:
                continue
            if record.text.startswith(_LOADED):
                found = [DriverLoaded()]
            elif (xid := xid_of(record.text)) is not None:
                found.append(xid)
                following = record.sequence + 1
        if following > self._cursor.following:
            self._cursor = LogCursor(self._cursor.boot_id, following)
            self._file.save(self._cursor)
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


TWINS_WITHIN: Final = 10.0
"""Seconds between the two reports of one Xid."""


class FirstReports:
    """Tells the first report of an Xid from its twin of the other source.

    Each report is matched with at most one earlier report of the other source, so that an error that comes
    again is reported again.
    """

    def __init__(self) -> None:
        self._unmatched: list[tuple[XidReported, float]] = []

    def is_first(self, report: XidReported, *, now: float) -> bool:
        self._unmatched = [each for each in self._unmatched if now - each[1] < TWINS_WITHIN]
        twin = XidReported(report.bus_id, report.number, from_log=not report.from_log)
        for index, (earlier, _) in enumerate(self._unmatched):
            if earlier == twin:
                del self._unmatched[index]
                return False
        self._unmatched.append((report, now))
        return True

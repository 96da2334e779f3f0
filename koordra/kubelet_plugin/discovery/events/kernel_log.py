"""Xids from the kernel's log: what the driver reported while NVML was closed, or while the plugin was down.

NVML reports Xids only to who listens. The driver also writes each one to the kernel's log, which keeps it:

    4,1203,98134276,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    │ │    └ microseconds since boot
    │ └ sequence number, never reused within a boot
    └ facility * 8 + priority

(Documentation/ABI/testing/dev-kmsg: one read gives one record, then lines of ``KEY=value`` that begin with a
blank.) Any process that may open /dev/kmsg can write to it, but not as the kernel: its records get facility
1 where they ask for 0. So only records of facility 0 count.

A plugin that starts reads the whole log of this boot, which is the gap, and passes over what the ledger has
already (gpu_faults.py). A driver that was loaded anew has forgotten its errors, and so are those in the log
before that line.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.events import DriverLoaded, Event, HardwareChanged, XidReported
from koordra.kubelet_plugin.discovery.nvml_query import normal_bus_id
from koordra.logs import get_logger

log = get_logger(__name__)

KMSG: Final = Path("/dev/kmsg")
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

    @property
    def event(self) -> DriverLoaded | XidReported | None:
        """What a line of the driver reports. MIG writes the instance behind the address."""
        if self.text.startswith(_LOADED):
            return DriverLoaded(self.sequence)
        found = _XID.match(self.text)
        bus_id = normal_bus_id(found[1]) if found else None
        return XidReported(bus_id, int(found[2]), self.sequence) if found and bus_id else None


def kernel_record(data: bytes) -> KernelRecord | None:
    """One record as /dev/kmsg gives it; None for one that the kernel itself did not write."""
    found = _RECORD.match(data)
    if found is None or int(found[1]) >> 3 != _KERNEL:
        return None
    return KernelRecord(int(found[2]), found[4].decode("ascii", "replace"))


class KernelLog:
    """An event source: what the records from ``following`` on report, those there are and those that come.

    ``read`` gives the next record of ``descriptor``, as ``os.read`` does.
    """

    def __init__(
        self, descriptor: int, *, following: int = 0, read: Callable[[int, int], bytes] = os.read
    ) -> None:
        self._descriptor = descriptor
        self._following = following
        self._read = read

    @classmethod
    def opened(cls, path: Path, *, following: int = 0) -> KernelLog:
        """Raises OSError where the log cannot be read."""
        return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), following=following)

    def fileno(self) -> int:
        return self._descriptor

    def take(self) -> Sequence[Event]:
        found: list[Event] = []
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
            event = record.event if record and record.sequence >= self._following else None
            if isinstance(event, DriverLoaded):
                found = [event]
            elif event is not None:
                found.append(event)
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

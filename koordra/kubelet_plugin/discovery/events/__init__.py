"""Events of a machine and their sources.

netlink      devices and network links that change
xid_events   Xids that NVML reports to who listens
kernel_log   Xids in the kernel's log, also those that nobody listened to

An event only says that the machine may have changed: the watcher then reads it, and the reading counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HardwareChanged:
    """Devices, drivers or functions came or went: read the machine again."""

    what: str


@dataclass(frozen=True, slots=True)
class DriverLoaded:
    """NVIDIA's driver was loaded, and has forgotten the errors of its cards. ``sequence``: of the record of
    the kernel's log that says so."""

    sequence: int


@dataclass(frozen=True, slots=True)
class PortsMayHaveChanged:
    """A network link changed somewhere: probe the ports, which is cheap."""


@dataclass(frozen=True, slots=True)
class XidReported:
    """The driver reported an error of a GPU; ``number`` is NVIDIA's, 79 is "fallen off the bus".
    ``sequence``: of its record in the kernel's log, None where NVML told it."""

    bus_id: str
    number: int
    sequence: int | None = None


Event = HardwareChanged | DriverLoaded | PortsMayHaveChanged | XidReported


class EventSource(Protocol):
    """A source of events that select can wait for."""

    def fileno(self) -> int:
        """Readable when there are events."""
        ...

    def take(self) -> Sequence[Event]:
        """The events since the last call; never waits, never raises."""
        ...

    def close(self) -> None: ...

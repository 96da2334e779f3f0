"""What a machine may announce, and who announces it.

An event never says what the machine is, only that it is worth looking: the watcher then reads, and what it reads counts.
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
class PortsMayHaveChanged:
    """A network link changed somewhere: look at the ports, which is cheap."""


@dataclass(frozen=True, slots=True)
class XidReported:
    """The driver reported an error of a GPU; ``number`` is NVIDIA's, 79 is "fallen off the bus"."""

    bus_id: str
    number: int


Event = HardwareChanged | PortsMayHaveChanged | XidReported


class EventSource(Protocol):
    """Something that can be waited for with select."""

    def fileno(self) -> int:
        """Readable when there is something to take."""
        ...

    def take(self) -> Sequence[Event]:
        """What was announced since the last call; never waits, never raises."""
        ...

    def close(self) -> None: ...

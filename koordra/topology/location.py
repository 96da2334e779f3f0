"""Where a device of a machine is: its PCI address, its path through the machine, its device node.

Addresses are written as sysfs writes them: ``dddd:bb:dd.f`` in lower case, five to eight digits of domain
only where the domain needs them. A device's ``path`` runs from the host bridge to the device:
``("pci0000:07", "0000:07:01.0", ..., "0000:0f:00.0")``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from koordra.api import names

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT_ID = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
LONGEST_STRING = 64  # bytes of an attribute in a ResourceSlice


def bus_order(address: str) -> tuple[int, ...]:
    """Sort key of a bus id, or of a card's address without the function: numerically, domain first."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))


@dataclass(frozen=True, slots=True, order=True)
class DeviceNode:
    """A device node: its path as a container sees it, the numbers the kernel knows it by, and "c" or "b".
    Mode and group of the host's node, where it was looked at, say who there may open it; they are no part of
    what the node is."""

    path: str
    major: int
    minor: int
    type: str = "c"
    mode: int | None = field(default=None, compare=False)
    gid: int = field(default=0, compare=False)

    @property
    def closed(self) -> bool:
        """Whether the host's node is one that not everybody may open."""
        return self.mode is not None and self.mode & 0o006 != 0o006

    @property
    def group(self) -> int | None:
        """The group that has to be joined to open the host's node, None where everybody may or only root."""
        return self.gid or None if self.closed else None

    @property
    def number(self) -> tuple[str, int, int]:
        """What identifies the device, wherever its node lies: the kernel goes by it alone."""
        return self.type, self.major, self.minor

    def __str__(self) -> str:
        return f"{self.path} ({self.type} {self.major}:{self.minor})"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a PCI function sits. ``switches`` are the upstream ports above it, topmost first; ``inferred``
    names what was inferred or laid over, not read: "numaNode", "pcieSwitch", "pcieRoot"."""

    bus_id: str
    path: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    numa: int | None = None
    socket: int | None = None
    inferred: frozenset[str] = frozenset()

    @property
    def root(self) -> str:
        """The host bridge, ``pci0000:07``."""
        return self.path[0]

    @property
    def switch(self) -> str | None:
        """The topmost switch."""
        return self.switches[0] if self.switches else None

    @property
    def card(self) -> str:
        """The address without its function: both ports of a dual-port card have the same."""
        return self.bus_id.rpartition(".")[0]

    def attributes(self) -> dict[str, str | int | None]:
        """The place as it is published; None for what is not known, and then not published. What was inferred
        is named, except rails, which always are."""
        return {
            names.ATTR_NUMA_NODE: self.numa,
            names.ATTR_SOCKET: self.socket,
            names.ATTR_PCIE_SWITCH: self.switch,
            names.ATTR_PCIE_PATH: self._switch_chain(),
            names.STANDARD_PCIE_ROOT: self.root,
            names.STANDARD_PCI_BUS_ID: self.bus_id,
            names.ATTR_INFERRED: ",".join(sorted(self.inferred)) or None,
        }

    def _switch_chain(self) -> str | None:
        """Where switches are nested. Of a chain that is too long its lower end, which identifies the place as
        well."""
        if len(self.switches) < 2:
            return None
        chain = "/".join(self.switches)
        while len(chain) > LONGEST_STRING:
            chain = chain.partition("/")[2]
        return chain

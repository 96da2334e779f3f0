"""Where everything of a machine goes in the picture.

Panels lie in each other as the machine does: sockets, NUMA nodes, host bridges. In a host bridge's panel
every topmost switch is a bar, with its NICs standing on it and its GPUs hanging from it; devices without a
switch share the bar of the host bridge itself. All bars of the machine lie on one line, and so do all GPUs
and all NICs: what hangs on one bar is near, and NVLink has the free space below all GPUs.

    +- socket -----------------+
    | +- NUMA --------------+  |
    | | +- host bridge --+  |  |
    | | | [NIC] [NIC]    |  |  |
    | | | ===switch===== |  |  |
    | | | [GPU] [GPU]    |  |  |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from koordra.topology.cpu_lists import number_ranges
from koordra.topology.location import bus_order
from koordra.topology.machine import Device, Gpu, Machine, Nic, in_bus_order

MARGIN: Final = 40.0
NIC_ROW: Final = 220.0
GPU_SIZE: Final = (122.0, 104.0)
NIC_SIZE: Final = (122.0, 90.0)
HALF_NIC: Final = 58.0
BAR: Final = 24.0
_GAP: Final = 6.0
_RISE: Final = 34.0
_PAD: Final = 10.0
_EMPTY: Final = 92.0
_BETWEEN_SOCKETS: Final = 44.0


@dataclass(slots=True, eq=False)
class Tile:
    """One device. ``x`` is the left edge; rows give the rest."""

    device: Device
    width: float
    x: float = 0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def half(self) -> bool:
        return self.width == HALF_NIC


@dataclass(slots=True)
class Bar:
    """A topmost switch (``switch`` is its upstream port) or, with None, the host bridge itself."""

    switch: str | None
    nics: list[Tile]
    gpus: list[Tile]
    x: float = 0

    @property
    def tiles(self) -> list[Tile]:
        return self.gpus + self.nics

    @property
    def width(self) -> float:
        return max(map(_row_width, (self.gpus, self.nics)))

    def bars(self) -> list[Bar]:
        return [self]

    def place(self, x: float) -> None:
        self.x = x
        for tiles in (self.gpus, self.nics):
            left = x + (self.width - _row_width(tiles)) / 2
            for tile in tiles:
                tile.x = left
                left += tile.width + _GAP


def _row_width(tiles: Sequence[Tile]) -> float:
    return sum(tile.width for tile in tiles) + _GAP * max(0, len(tiles) - 1)


@dataclass(slots=True)
class Panel:
    """A box around others. ``kind`` is socket, numa or root; ``inner`` are the panels in it, of a host bridge
    the bars. ``number`` is a socket's, None where it is not known."""

    kind: str
    label: str
    inner: Sequence[Panel | Bar] = ()
    number: int | None = None
    x: float = 0

    @property
    def width(self) -> float:
        return max(sum(one.width for one in self.inner) + _PAD * (len(self.inner) + 1), _EMPTY)

    def bars(self) -> list[Bar]:
        return [bar for one in self.inner for bar in one.bars()]

    def place(self, x: float) -> None:
        self.x = x
        for one in self.inner:
            one.place(x + _PAD)
            x += one.width + _PAD


@dataclass(frozen=True, slots=True)
class Plan:
    """The placed panels; ``width`` is the page's. ``bar_row`` and ``gpu_row`` are the heights at which bars
    and GPUs lie, from the top, and ``bottom`` is below all of them; a row without devices has no height."""

    sockets: Sequence[Panel]
    width: float
    bar_row: float
    gpu_row: float
    bottom: float

    def bars(self) -> list[Bar]:
        return [bar for socket in self.sockets for bar in socket.bars()]

    def gpus(self) -> list[Tile]:
        """GPU tiles in the machine's order."""
        tiles = (tile for bar in self.bars() for tile in bar.gpus)
        return sorted(tiles, key=lambda tile: in_bus_order(tile.device))


def plan(machine: Machine, *, least_width: float) -> Plan:
    """Place everything; the page is at least so wide, and the panels grow to fill it."""
    sockets = _sockets(machine)
    needed = sum(socket.width for socket in sockets) + _BETWEEN_SOCKETS * (len(sockets) - 1)
    x = max(MARGIN, (least_width - needed) / 2)
    for socket in sockets:
        socket.place(x)
        x += socket.width + _BETWEEN_SOCKETS
    bar_row = NIC_ROW + (NIC_SIZE[1] + _RISE) * bool(machine.nics)
    gpu_row = bar_row + BAR + _RISE * bool(machine.gpus)
    bottom = gpu_row + GPU_SIZE[1] * bool(machine.gpus) + 12
    return Plan(sockets, max(least_width, needed + 2 * MARGIN), bar_row, gpu_row, bottom)


def _sockets(machine: Machine) -> list[Panel]:
    """Sockets with all their NUMA nodes, also those without a device. All memory-only nodes are one panel;
    devices of no known node come last."""
    below: defaultdict[int | None, list[Device]] = defaultdict(list)
    devices: list[Device] = [*machine.gpus, *machine.nics]
    for device in sorted(devices, key=in_bus_order):
        below[device.location.numa].append(device)
    numa: defaultdict[int | None, list[Panel]] = defaultdict(list)
    memory = machine.memory_only()
    for node in machine.numa_nodes:
        if node not in memory:
            label = f"NUMA {node.id}" + (f"   CPUs {node.cpus}" if node.cpus else "")
            numa[node.socket].append(Panel("numa", label, _roots(below.pop(node.id, []))))
    sockets = [
        Panel("socket", "Socket unknown" if number is None else f"Socket {number}", panels, number)
        for number, panels in numa.items()
    ]
    if memory:
        label = f"NUMA {number_ranges(node.id for node in memory)}"
        sockets.append(Panel("socket", "Memory", [Panel("numa", label)]))
    if below:
        unplaced = Panel("numa", "NUMA node unknown", _roots(chain(*below.values())))
        sockets.append(Panel("socket", "Socket unknown", [unplaced]))
    return sockets


def _roots(devices: Iterable[Device]) -> list[Panel]:
    roots: defaultdict[str, list[Device]] = defaultdict(list)
    for device in devices:
        roots[device.location.root].append(device)
    return [
        Panel("root", root, _bars(roots[root]))
        for root in sorted(roots, key=lambda root: bus_order(root.removeprefix("pci")))
    ]


def _bars(devices: Iterable[Device]) -> list[Bar]:
    switches: defaultdict[str | None, list[Device]] = defaultdict(list)
    for device in devices:
        switches[device.location.switch].append(device)
    bars = []
    for switch, below in switches.items():
        gpus = [Tile(device, GPU_SIZE[0]) for device in below if isinstance(device, Gpu)]
        nics = [device for device in below if isinstance(device, Nic)]
        narrow = bool(gpus) and len(nics) > len(gpus) and len({nic.location.card for nic in nics}) < len(nics)
        width = HALF_NIC if narrow else NIC_SIZE[0]
        bars.append(Bar(switch, [Tile(nic, width) for nic in nics], gpus))
    return bars

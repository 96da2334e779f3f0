"""Where everything of a machine goes in the picture.

Panels lie in each other as the machine does: sockets, NUMA nodes, host bridges. In a host bridge's panel every topmost
switch is a bar, with its NICs standing on it and its GPUs hanging from it; devices without a switch share the bar of the
host bridge itself. All bars of the machine lie on one line, and so do all GPUs and all NICs: what hangs on one bar is
near, and NVLink has the free space below all GPUs.

    +- socket -----------------+
    | +- NUMA --------------+  |
    | | +- host bridge --+  |  |
    | | | [NIC] [NIC]    |  |  |
    | | | ===switch===== |  |  |
    | | | [GPU] [GPU]    |  |  |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.topology.machine import Device, Gpu, Machine, Nic, bus_order
from koordra.topology.pictures.text import number_ranges

MARGIN: Final = 40.0
PANEL_TOPS: Final = {"socket": 124.0, "numa": 160.0, "root": 192.0}
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


@dataclass(slots=True)
class Tile:
    """One device. ``x`` is the left edge; rows give the rest."""

    device: Device
    width: float
    x: float = 0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(slots=True)
class Bar:
    """A topmost switch (``switch`` is its upstream port) or, with None, the host bridge itself."""

    switch: str | None
    nics: list[Tile]
    gpus: list[Tile]
    x: float = 0
    width: float = 0


@dataclass(slots=True)
class Panel:
    """A box around others. ``kind`` is socket, numa or root."""

    kind: str
    label: str
    panels: list[Panel] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    x: float = 0
    width: float = 0
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The placed panels; ``width`` is the page's. ``bar_row`` and ``gpu_row`` are the heights at which bars and GPUs lie, from the
    top, and ``bottom`` is below all of them; a row without devices has no height."""

    sockets: Sequence[Panel]
    width: float
    bar_row: float
    gpu_row: float
    bottom: float

    def bars(self) -> list[Bar]:
        return [
            bar
            for socket in self.sockets
            for numa in socket.panels
            for root in numa.panels
            for bar in root.bars
        ]

    def gpus(self) -> list[Tile]:
        """GPU tiles in the machine's order."""
        tiles = [tile for bar in self.bars() for tile in bar.gpus]
        return sorted(tiles, key=lambda tile: bus_order(tile.device.location.bus_id))


def plan(machine: Machine, *, least_width: float) -> Plan:
    """Place everything; the page is at least so wide, and the panels grow to fill it."""
    sockets = _sockets(machine)
    for socket in sockets:
        _measure(socket)
    needed = sum(socket.width for socket in sockets) + _BETWEEN_SOCKETS * (len(sockets) - 1)
    x = max(MARGIN, (least_width - needed) / 2)
    for socket in sockets:
        _place(socket, x)
        x += socket.width + _BETWEEN_SOCKETS
    bar_row = NIC_ROW + (NIC_SIZE[1] + _RISE) * bool(machine.nics)
    gpu_row = bar_row + BAR + _RISE * bool(machine.gpus)
    bottom = gpu_row + GPU_SIZE[1] * bool(machine.gpus) + 12
    return Plan(sockets, max(least_width, needed + 2 * MARGIN), bar_row, gpu_row, bottom)


def _sockets(machine: Machine) -> list[Panel]:
    """Sockets with all their NUMA nodes, also those without a device. All memory-only nodes are one panel; devices of no
    known node come last."""
    devices: list[Device] = [*machine.gpus, *machine.nics]
    panels: dict[int | None, Panel] = {}
    memory = machine.memory_only()
    for node in machine.numa_nodes:
        if node in memory:
            continue
        label = "Socket unknown" if node.socket is None else f"Socket {node.socket}"
        socket = panels.setdefault(node.socket, Panel("socket", label, number=node.socket))
        here = _roots([device for device in devices if device.location.numa == node.id])
        cpus = f"   CPUs {node.cpus}" if node.cpus else ""
        socket.panels.append(Panel("numa", f"NUMA {node.id}{cpus}", here, number=node.id))
    if memory:
        label = f"NUMA {number_ranges(node.id for node in memory)}"
        panels[-2] = Panel("socket", "Memory", panels=[Panel("numa", label)])
    unplaced = [device for device in devices if machine.numa(device.location.numa) is None]
    if unplaced:
        unknown = Panel("numa", "NUMA node unknown", panels=_roots(unplaced))
        panels[-1] = Panel("socket", "Socket unknown", panels=[unknown])
    return list(panels.values())


def _roots(devices: Iterable[Device]) -> list[Panel]:
    roots: dict[str, list[Device]] = {}
    for device in devices:
        roots.setdefault(device.location.root, []).append(device)
    return [
        Panel("root", root, bars=_bars(roots[root]))
        for root in sorted(roots, key=lambda root: bus_order(root.removeprefix("pci")))
    ]


def _bars(devices: Sequence[Device]) -> list[Bar]:
    switches: dict[str | None, list[Device]] = {}
    for device in devices:
        above = device.location.switches
        switches.setdefault(above[0] if above else None, []).append(device)
    bars = []
    for switch, below in switches.items():
        gpus = [Tile(device, GPU_SIZE[0]) for device in below if isinstance(device, Gpu)]
        nics = [device for device in below if isinstance(device, Nic)]
        narrow = bool(gpus) and len(nics) > len(gpus) and len({nic.location.card for nic in nics}) < len(nics)
        width = HALF_NIC if narrow else NIC_SIZE[0]
        bars.append(Bar(switch, [Tile(nic, width) for nic in nics], gpus))
    return sorted(
        bars, key=lambda bar: min(bus_order(tile.device.location.bus_id) for tile in bar.gpus + bar.nics)
    )


def _row_width(tiles: Sequence[Tile]) -> float:
    return sum(tile.width for tile in tiles) + _GAP * max(0, len(tiles) - 1)


def _measure(panel: Panel) -> None:
    for inner in panel.panels:
        _measure(inner)
    for bar in panel.bars:
        bar.width = max(_row_width(bar.gpus), _row_width(bar.nics))
    widths = [inner.width for inner in panel.panels] + [bar.width for bar in panel.bars]
    panel.width = max(sum(widths) + _PAD * max(0, len(widths) - 1) + 2 * _PAD, _EMPTY)


def _place(panel: Panel, x: float) -> None:
    panel.x = x
    inner = x + _PAD
    for below in panel.panels:
        _place(below, inner)
        inner += below.width + _PAD
    for bar in panel.bars:
        bar.x = inner
        for tiles in (bar.gpus, bar.nics):
            at = bar.x + (bar.width - _row_width(tiles)) / 2
            for tile in tiles:
                tile.x = at
                at += tile.width + _GAP
        inner += bar.width + _PAD

"""Tiles for GPUs and NICs, the bars they hang on, and the lines between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordra.topology.machine import Gpu, Machine, Nic
from koordra.topology.pictures.drawing.pen import (
    FAINT_INK,
    FAULT,
    GPU,
    HELD,
    HOST_BRIDGE,
    INK,
    NIC,
    OFF,
    PAPER,
    RAILS,
    SWITCH,
    Pen,
)
from koordra.topology.pictures.drawing.plan import BAR, GPU_SIZE, NIC_ROW, NIC_SIZE, Bar, Plan, Tile
from koordra.topology.pictures.text import labels, port_text
from koordra.topology.pictures.usage import Usage, mig_summary

_RIBBON: Final = 19.0
_MIG_COLOURS: Final = ("#8fbf4f", "#5f8d1f", "#b8d98a", "#79a83a")


class DeviceArtist:
    """Draws one machine's devices; holds what every tile needs."""

    def __init__(self, pen: Pen, machine: Machine, usage: Usage, rails: Mapping[str, int]) -> None:
        self._pen, self._usage, self._rails = pen, usage, rails
        self._short = labels(machine)
        self._vfs: dict[str, list[Nic]] = {}
        for vf in machine.vfs:
            self._vfs.setdefault(vf.parent or "", []).append(vf)

    def bar(self, bar: Bar, plan: Plan) -> None:
        """A bar with everything on it."""
        inset = 0.0 if bar.switch else 7.0
        self._lines(bar.nics, NIC_ROW + NIC_SIZE[1], plan.bar_row + inset)
        self._lines(bar.gpus, plan.gpu_row, plan.bar_row + BAR - inset)
        if bar.switch is None:
            top, height = plan.bar_row + inset, BAR - 2 * inset
            self._pen.rect(bar.x, top, bar.width, height, fill=HOST_BRIDGE, radius=height / 2)
            self._pen.note("the host bridge: no switch between")
        else:
            self._switch(bar, plan.bar_row, bar.switch)
        for tile in bar.nics:
            self._nic(tile, NIC_ROW)
        for tile in bar.gpus:
            self._gpu(tile, plan.gpu_row)

    def _switch(self, bar: Bar, y: float, switch: str) -> None:
        overlaid = any("pcieSwitch" in tile.device.inferred for tile in bar.gpus + bar.nics)
        fill, ink, mark = (PAPER, SWITCH, "*") if overlaid else (SWITCH, PAPER, "")
        self._pen.rect(
            bar.x, y, bar.width, BAR, fill=fill, stroke=SWITCH, radius=6, stroke_width=1.5, dashed=overlaid
        )
        short = short_bus_id(switch) + mark
        texts = (f"PCIe switch {switch}{mark}", f"switch {short}", short)
        middle, room = bar.x + bar.width / 2, bar.width - 8
        self._pen.text(middle, y + 16, *texts, size=11, fill=ink, bold=True, anchor="middle", room=room)

    def _lines(self, tiles: Sequence[Tile], edge: float, end: float) -> None:
        """From tiles to the bar; nested switches are pills on the way, one for the tiles that share it."""
        nested: dict[str, list[Tile]] = {}
        for tile in tiles:
            switches = tile.device.location.switches
            if len(switches) > 1:
                nested.setdefault(switches[-1], []).append(tile)
            else:
                self._pen.line(tile.middle, edge, tile.middle, end, stroke=SWITCH, width=2)
        middle = (edge + end) / 2
        for switch, below in nested.items():
            for tile in below:
                self._pen.line(tile.middle, edge, tile.middle, middle, stroke=SWITCH, width=2)
            first, last = below[0].middle, below[-1].middle
            self._pen.line((first + last) / 2, middle, (first + last) / 2, end, stroke=SWITCH, width=2)
            width = max(last - first + 20, 58.0)
            self._pen.rect(
                (first + last - width) / 2, middle - 7.5, width, 15, fill=PAPER, stroke=SWITCH, radius=7.5
            )
            self._pen.note(f"nested switch {switch}")
            self._pen.text(
                (first + last) / 2, middle + 3.5, short_bus_id(switch), size=9, mono=True, anchor="middle"
            )

    def _gpu(self, tile: Tile, y: float) -> None:
        gpu = tile.device
        assert isinstance(gpu, Gpu)
        x, (width, height) = tile.x, GPU_SIZE
        offered = self._usage.is_offered(gpu)
        self._box(tile, y, height, colours=GPU if offered else OFF, faulty=bool(gpu.faults))
        self._pen.text(x + 9, y + 22, self._short[gpu.name].replace("GPU", "GPU "), size=16, bold=True)
        name = (gpu.product_name or "unknown model").removeprefix("NVIDIA ").removeprefix("Tesla ")
        words = name.replace("-", " ").split()
        shorter = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
        self._pen.text(x + 9, y + 40, *shorter, size=11.5, room=width - 18)
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"
        self._pen.text(x + 9, y + 56, memory, size=11.5, fill=FAINT_INK)
        if gpu.mig_enabled:
            self._mig(gpu, x + 9, y + 62, width - 18)
        else:
            self._bus_id(tile, y + 72, size=10.5)
        self._ribbon(tile, y + height, gpu.faults)

    def _mig(self, gpu: Gpu, x: float, y: float, width: float) -> None:
        """The card's memory slices; each instance is a block of its own."""
        slices = max([8, *(instance.start + instance.size for instance in gpu.mig_instances)])
        self._pen.rect(x, y, width, 14, fill=PAPER, stroke=GPU[1], radius=2)
        for number, instance in enumerate(gpu.mig_instances):
            self._pen.rect(
                x + width * instance.start / slices + 1,
                y + 1,
                width * instance.size / slices - 2,
                12,
                fill=_MIG_COLOURS[number % len(_MIG_COLOURS)],
                radius=1.5,
            )
        cut = mig_summary(gpu)
        kinds = " ".join(part.partition(".")[0] for part in cut.removeprefix("MIG: ").split(", "))
        self._pen.text(x, y + 26, cut, f"MIG: {kinds}", size=10, room=width)

    def _nic(self, tile: Tile, y: float) -> None:
        nic = tile.device
        assert isinstance(nic, Nic)
        half = tile.width < NIC_SIZE[0]
        x, height = tile.x + (5 if half else 9), NIC_SIZE[1]
        room = tile.width - (10 if half else 18)
        self._box(tile, y, height, colours=NIC if self._usage.is_offered(nic) else OFF, faulty=False)
        rail = self._rails.get(nic.location.bus_id)
        label = self._short[nic.name]
        # Beside a rail's badge half a tile has room for NIC9, hardly for NIC10.
        size = (10.5 if len(label) < 5 else 9.5) if half else 14.0
        self._pen.text(x, y + 18, label if half else label.replace("NIC", "NIC "), size=size, bold=True)
        if rail is not None:
            self._rail(rail, tile, y, half=half)
        detail = 9.0 if half else 10.4
        self._pen.text(x, y + 34, nic.ib_device, size=detail, room=room)
        port = nic.port
        rate = f"{port.rate_gbps}G" if port and port.rate_gbps else "down"
        layer = {"InfiniBand": "IB", "Ethernet": "Eth"}.get(port.link_layer or "", "") if port else ""
        several = f"{len(nic.ports)} x " if len(nic.ports) > 1 else ""
        texts = (
            port_text(nic),
            f"{several}{rate} {port.link_layer if port else ''}",
            f"{rate} {layer}",
            rate,
        )
        fill = FAULT if rate == "down" else FAINT_INK
        self._pen.text(x, y + 48, *texts, size=detail, fill=fill, room=room)
        if vfs := self._vfs.get(nic.location.bus_id):
            self._virtual_functions(vfs, x, y + 55, room)
        else:
            self._bus_id(tile, y + 62, size=8.5 if half else 10)
        self._ribbon(tile, y + height, ())

    def _rail(self, rail: int, tile: Tile, y: float, *, half: bool) -> None:
        radius = 7.5 if half else 10.0
        x, middle = tile.x + tile.width - radius - (3 if half else 6), y + (13 if half else 15)
        self._pen.add("circle", cx=x, cy=middle, r=radius, fill=RAILS[rail % len(RAILS)])
        self._pen.note(f"rail {rail}, inferred")
        size = 9.0 if half else 11.0
        self._pen.text(x, middle + size * 0.36, str(rail), size=size, fill=PAPER, bold=True, anchor="middle")

    def _virtual_functions(self, vfs: Sequence[Nic], x: float, y: float, width: float) -> None:
        step = min(10.0, width / len(vfs))
        for number, vf in enumerate(vfs):
            holders = self._usage.holders_of(vf)
            self._pen.rect(
                x + number * step, y, step - 2, 9, fill=HELD if holders else PAPER, stroke=NIC[1], radius=1
            )
            self._pen.note(f"{vf.name}: {', '.join(holders) or 'free'}")

    def _box(self, tile: Tile, y: float, height: float, *, colours: tuple[str, str], faulty: bool) -> None:
        fill, stroke = colours
        self._pen.rect(
            tile.x,
            y,
            tile.width,
            height,
            fill=fill,
            stroke=FAULT if faulty else stroke,
            radius=7,
            stroke_width=2 if faulty else 1.5,
            dashed=bool(tile.device.inferred),
        )
        self._pen.note(tile.device.name)

    def _bus_id(self, tile: Tile, y: float, *, size: float) -> None:
        left = 5 if tile.width < NIC_SIZE[0] else 9
        mark = "*" if tile.device.inferred else ""
        text = short_bus_id(tile.device.location.bus_id) + mark
        self._pen.text(tile.x + left, y, text, size=size, fill=FAINT_INK, mono=True)

    def _ribbon(self, tile: Tile, bottom: float, faults: Sequence[str]) -> None:
        """Along the lower edge: why the device is out of work, or who has it."""
        holders = self._usage.holders_of(tile.device)
        if faults:
            fill, texts = FAULT, [", ".join(faults)]
        elif not self._usage.is_offered(tile.device):
            fill, texts = OFF[1], ["not offered"]
        elif holders:
            names = [holder.partition("/")[2] for holder in holders]
            more = f" +{len(names) - 1}" if len(names) > 1 else ""
            fill, texts = HELD, [", ".join(holders), ", ".join(names), names[0] + more]
        else:
            return
        self._pen.rect(tile.x + 4, bottom - _RIBBON - 3, tile.width - 8, _RIBBON, fill=fill, radius=4)
        self._pen.note(", ".join(holders) or texts[0])
        self._pen.text(
            tile.middle,
            bottom - 9.5,
            *texts,
            size=9.0 if tile.width < NIC_SIZE[0] else 10.5,
            fill=INK if fill == HELD else PAPER,
            bold=True,
            anchor="middle",
            room=tile.width - 24,
        )


def short_bus_id(bus_id: str) -> str:
    """Without the domain where it is the usual one."""
    return bus_id.removeprefix("0000:")

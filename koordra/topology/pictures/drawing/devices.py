"""Tiles for GPUs and NICs, the bars they hang on, and the lines between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from koordra.topology.fabrics import rails
from koordra.topology.machine import Gpu, Machine, Nic, RdmaPort
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
from koordra.topology.pictures.usage import MachineUsage, Part, labels, mig_summary, port_text

_RIBBON: Final = 19.0
_BAR_OF_SEVERAL: Final = 12.0
_MIG_COLOURS: Final = ("#8fbf4f", "#5f8d1f", "#b8d98a", "#79a83a")


class DevicePen(Pen):
    """Draws one machine and its devices; holds what every tile needs."""

    def __init__(self, machine: Machine, usage: MachineUsage) -> None:
        super().__init__()
        self.machine, self.usage, self.rails, self.short = machine, usage, rails(machine), labels(machine)
        self._vfs: defaultdict[str | None, list[Nic]] = defaultdict(list)
        for vf in machine.vfs:
            self._vfs[vf.parent].append(vf)

    def bar(self, bar: Bar, plan: Plan) -> None:
        """A bar with everything on it."""
        inset = 0.0 if bar.switch else 7.0
        self._lines(bar.nics, NIC_ROW + NIC_SIZE[1], plan.bar_row + inset)
        self._lines(bar.gpus, plan.gpu_row, plan.bar_row + BAR - inset)
        if bar.switch is None:
            top, height = plan.bar_row + inset, BAR - 2 * inset
            self.rect(bar.x, top, bar.width, height, fill=HOST_BRIDGE, radius=height / 2)
            self.note("the host bridge: no switch between")
        else:
            self._switch(bar, plan.bar_row, bar.switch)
        for tile in bar.nics:
            self._nic(tile, NIC_ROW)
        for tile in bar.gpus:
            self._gpu(tile, plan.gpu_row)

    def _switch(self, bar: Bar, y: float, switch: str) -> None:
        overlaid = any("pcieSwitch" in tile.device.location.inferred for tile in bar.tiles)
        fill, ink, mark = (PAPER, SWITCH, "*") if overlaid else (SWITCH, PAPER, "")
        self.rect(
            bar.x, y, bar.width, BAR, fill=fill, stroke=SWITCH, radius=6, stroke_width=1.5, dashed=overlaid
        )
        short = short_bus_id(switch) + mark
        texts = (f"PCIe switch {switch}{mark}", f"switch {short}", short)
        middle, room = bar.x + bar.width / 2, bar.width - 8
        self.text(middle, y + 16, *texts, size=11, fill=ink, bold=True, anchor="middle", room=room)

    def _lines(self, tiles: Sequence[Tile], edge: float, end: float) -> None:
        """From tiles to the bar; nested switches are pills on the way, one for the tiles that share it."""
        nested: defaultdict[str, list[Tile]] = defaultdict(list)
        for tile in tiles:
            switches = tile.device.location.switches
            if len(switches) > 1:
                nested[switches[-1]].append(tile)
            else:
                self.line(tile.middle, edge, tile.middle, end, stroke=SWITCH, width=2)
        y = (edge + end) / 2
        for switch, below in nested.items():
            for tile in below:
                self.line(tile.middle, edge, tile.middle, y, stroke=SWITCH, width=2)
            first, last = below[0].middle, below[-1].middle
            middle, width = (first + last) / 2, max(last - first + 20, 58.0)
            self.line(middle, y, middle, end, stroke=SWITCH, width=2)
            self.rect(middle - width / 2, y - 7.5, width, 15, fill=PAPER, stroke=SWITCH, radius=7.5)
            self.note(f"nested switch {switch}")
            self.text(middle, y + 3.5, short_bus_id(switch), size=9, mono=True, anchor="middle")

    def _gpu(self, tile: Tile, y: float) -> None:
        gpu = tile.device
        assert isinstance(gpu, Gpu)
        x, (width, height) = tile.x, GPU_SIZE
        self._box(
            tile, y, height, colours=GPU if self.usage.is_offered(gpu) else OFF, faulty=bool(gpu.faults)
        )
        self.text(x + 9, y + 22, self.short[gpu.name].replace("GPU", "GPU "), size=16, bold=True)
        name = (gpu.product_name or "unknown model").removeprefix("NVIDIA ").removeprefix("Tesla ")
        words = name.replace("-", " ").split()
        shorter = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
        self.text(x + 9, y + 40, *shorter, size=11.5, room=width - 18)
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"
        self.text(x + 9, y + 56, memory, size=11.5, fill=FAINT_INK)
        if gpu.mig_enabled:
            self._mig(gpu, x + 9, y + 62, width - 18)
        else:
            self._bus_id(tile, y + 72, size=10.5)
        self._ribbon(tile, y + height, gpu.faults)

    def _mig(self, gpu: Gpu, x: float, y: float, width: float) -> None:
        """The card's memory slices; each instance is a block of its own."""
        slices = max([8, *(instance.start + instance.size for instance in gpu.mig_instances)])
        self.rect(x, y, width, 14, fill=PAPER, stroke=GPU[1], radius=2)
        for number, instance in enumerate(gpu.mig_instances):
            left, across = (width * count / slices for count in (instance.start, instance.size))
            fill = _MIG_COLOURS[number % len(_MIG_COLOURS)]
            self.rect(x + left + 1, y + 1, across - 2, 12, fill=fill, radius=1.5)
        cut = mig_summary(gpu)
        kinds = " ".join(part.partition(".")[0] for part in cut.removeprefix("MIG: ").split(", "))
        self.text(x, y + 26, cut, f"MIG: {kinds}", size=10, room=width)

    def _nic(self, tile: Tile, y: float) -> None:
        nic = tile.device
        assert isinstance(nic, Nic)
        inset, detail, small = (5, 9.0, 8.5) if tile.half else (9, 10.4, 10.0)
        x, height, room = tile.x + inset, NIC_SIZE[1], tile.width - 2 * inset
        self._box(tile, y, height, colours=NIC if self.usage.is_offered(nic) else OFF)
        label, rail = self.short[nic.name], self.rails.get(nic.location.bus_id)
        # Beside a rail's badge half a tile has room for NIC9, hardly for NIC10.
        size = (10.5 if len(label) < 5 else 9.5) if tile.half else 14.0
        self.text(x, y + 18, label if tile.half else label.replace("NIC", "NIC "), size=size, bold=True)
        if rail is not None:
            self._rail(rail, tile, y)
        self.text(x, y + 34, nic.ib_device, size=detail, room=room)
        port = nic.port or RdmaPort(0)
        rate = f"{port.rate_gbps}G" if port.rate_gbps else "down"
        several = f"{len(nic.ports)} x " if len(nic.ports) > 1 else ""
        shortest = {"InfiniBand": "IB", "Ethernet": "Eth"}.get(port.link_layer or "", "")
        texts = f"{several}{rate} {port.link_layer or ''}", f"{rate} {shortest}", rate
        fill = FAULT if rate == "down" else FAINT_INK
        self.text(x, y + 48, port_text(nic), *texts, size=detail, fill=fill, room=room)
        if vfs := self._vfs[nic.location.bus_id]:
            self._virtual_functions(vfs, x, y + 55, room)
        else:
            self._bus_id(tile, y + 62, size=small)
        self._ribbon(tile, y + height, ())

    def _rail(self, rail: int, tile: Tile, y: float) -> None:
        radius, inset, top, size = (7.5, 3, 13, 9.0) if tile.half else (10.0, 6, 15, 11.0)
        x, middle = tile.x + tile.width - radius - inset, y + top
        self.add("circle", cx=x, cy=middle, r=radius, fill=RAILS[rail % len(RAILS)])
        self.note(f"rail {rail}, inferred")
        self.text(x, middle + size * 0.36, str(rail), size=size, fill=PAPER, bold=True, anchor="middle")

    def _virtual_functions(self, vfs: Sequence[Nic], x: float, y: float, width: float) -> None:
        step = min(10.0, width / len(vfs))
        for number, vf in enumerate(vfs):
            holders = self.usage.holders_of(vf)
            fill = HELD if holders else PAPER
            self.rect(x + number * step, y, step - 2, 9, fill=fill, stroke=NIC[1], radius=1)
            self.note(f"{vf.name}: {', '.join(holders) or 'free'}")

    def _box(
        self, tile: Tile, y: float, height: float, *, colours: tuple[str, str], faulty: bool = False
    ) -> None:
        (fill, stroke), dashed = colours, bool(tile.device.location.inferred)
        stroke, width = (FAULT, 2) if faulty else (stroke, 1.5)
        self.rect(
            tile.x,
            y,
            tile.width,
            height,
            fill=fill,
            stroke=stroke,
            radius=7,
            stroke_width=width,
            dashed=dashed,
        )
        self.note(tile.device.name)

    def _bus_id(self, tile: Tile, y: float, *, size: float) -> None:
        location = tile.device.location
        text = short_bus_id(location.bus_id) + "*" * bool(location.inferred)
        self.text(tile.x + (5 if tile.half else 9), y, text, size=size, fill=FAINT_INK, mono=True)

    def _ribbon(self, tile: Tile, bottom: float, faults: Sequence[str]) -> None:
        """Along the lower edge: why the device is out of work, or who has it."""
        holders = self.usage.holders_of(tile.device)
        bars = self.usage.bars(tile.device)
        is_whole = len(holders) == 1 and sum(size for _, size in bars[0][1]) >= 1 if bars else True
        if not is_whole and not faults and self.usage.is_offered(tile.device):
            self._shares(tile, bottom, bars)
            return
        if faults:
            fill, texts = FAULT, [", ".join(faults)]
        elif not self.usage.is_offered(tile.device):
            fill, texts = OFF[1], ["not offered"]
        elif holders:
            names = [holder.partition("/")[2] for holder in holders]
            more = f" +{len(names) - 1}" if len(names) > 1 else ""
            fill, texts = HELD, [", ".join(holders), ", ".join(names), names[0] + more]
        else:
            return
        self.rect(tile.x + 4, bottom - _RIBBON - 3, tile.width - 8, _RIBBON, fill=fill, radius=4)
        self.note(", ".join(holders) or texts[0])
        size, ink, room = 9.0 if tile.half else 10.5, INK if fill == HELD else PAPER, tile.width - 24
        middle, y = tile.middle, bottom - 9.5
        self.text(middle, y, *texts, size=size, fill=ink, bold=True, anchor="middle", room=room)

    def _shares(
        self, tile: Tile, bottom: float, bars: Sequence[tuple[str, Sequence[tuple[Part, float]]]]
    ) -> None:
        """In place of a ribbon: a bar for each capacity, as long as what is given of it, a piece for each
        claim."""
        x, width, height = tile.x + 4, tile.width - 8, _RIBBON if len(bars) == 1 else _BAR_OF_SEVERAL
        top = bottom - 3 - height * len(bars)
        for place, (name, given) in enumerate(bars):
            y, left = top + place * height, x
            self.rect(x, y, width, height - 1.5, fill=PAPER, stroke=HELD, radius=2)
            for part, fraction in given:
                self.rect(left, y, width * fraction, height - 1.5, fill=HELD, stroke=PAPER, radius=1)
                self.note(f"{name}: {part.claim} {part.amounts[name]}")
                left += width * fraction
            total = f"{sum(fraction for _, fraction in given):.0%}"
            texts = (total,) if tile.half else (f"{name} {total}", total)
            letters = 8.5 if len(bars) > 1 else 9.5
            base, room = y + (height - 1.5) / 2 + letters * 0.36, width - 12
            self.text(tile.middle, base, *texts, size=letters, bold=True, anchor="middle", room=room)


def short_bus_id(bus_id: str) -> str:
    """Without the domain where it is the usual one."""
    return bus_id.removeprefix("0000:")

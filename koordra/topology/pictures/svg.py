"""The machine as a poster: one self-contained SVG document.

Panels are sockets, NUMA nodes and host bridges; dark bars are PCIe switches, with NICs above and GPUs below; NVLink runs
below the panels. Under it stand the level of every GPU to every NIC, the NUMA distances and the legend. The order of the
module names is the order of work: ``plan`` places, ``devices`` and ``nvlinks`` draw, ``legend`` explains.

The document uses no script, no external font and no style sheet, so that it looks the same in a browser, in a paper and
on a wall; the same machine always gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from koordra.topology.fabrics import rails
from koordra.topology.machine import Machine
from koordra.topology.pictures.drawing.devices import DeviceArtist
from koordra.topology.pictures.drawing.legend import Legend
from koordra.topology.pictures.drawing.nvlinks import draw_nvlinks, nvlink_height
from koordra.topology.pictures.drawing.pen import (
    FAINT_INK,
    INK,
    NUMA,
    PAPER,
    ROOT,
    SOCKET,
    Pen,
    text_width,
)
from koordra.topology.pictures.drawing.plan import MARGIN, PANEL_TOPS, Panel, Plan, plan
from koordra.topology.pictures.usage import NOBODY, Usage
from koordra.topology.product_names import nic_model

_LEAST_WIDTH: Final = 1000.0
_STYLES: Final = {"socket": SOCKET, "numa": NUMA, "root": ROOT}


def svg(machine: Machine, usage: Usage = NOBODY, *, title: str = "", subtitle: str = "") -> str:
    """The picture as text that ends with a newline. ``title`` names the machine, ``subtitle`` says what it is."""
    numbers = rails(machine)
    marks = bool(numbers) or any(device.inferred for device in machine.devices())
    held = any(usage.holders_of(device) for device in machine.devices())
    legend = Legend(machine, rails=len(numbers), marks=marks, held=held)
    placed = plan(machine, least_width=max(_LEAST_WIDTH, legend.width + 2 * MARGIN))
    below = placed.bottom + 34 + nvlink_height(placed)
    height = below + 34 + legend.height + MARGIN
    pen = Pen()
    pen.rect(0, 0, placed.width, height, fill=PAPER)
    _heading(pen, machine, title or "machine", subtitle, placed.width)
    for socket in placed.sockets:
        _panel(pen, socket, placed.bottom)
    _between_sockets(pen, placed, machine)
    draw_nvlinks(pen, placed)
    artist = DeviceArtist(pen, machine, usage, numbers)
    for bar in placed.bars():
        artist.bar(bar, placed)
    pen.line(MARGIN, below + 8, placed.width - MARGIN, below + 8, stroke="#d3dbe4")
    legend.draw(pen, MARGIN, below + 30, placed.width - 2 * MARGIN)
    return pen.document(placed.width, height, title=title or "machine")


def _heading(pen: Pen, machine: Machine, title: str, subtitle: str, width: float) -> None:
    room = width - 2 * MARGIN
    pen.text(MARGIN, 50, title, size=30, bold=True, room=room)
    for place, line in enumerate([line for line in (subtitle, summary(machine)) if line]):
        pen.text(MARGIN, 77 + 22 * place, line, size=15, fill=FAINT_INK, room=room)


def summary(machine: Machine) -> str:
    """``8 x NVIDIA H100 80GB HBM3, 16 x ConnectX-7, driver 550.54.15``."""
    counts = Counter(gpu.product_name or "unknown GPU" for gpu in machine.gpus)
    counts += Counter(nic_model(nic.vendor, nic.device_id) or "RDMA NIC" for nic in machine.nics)
    parts = [f"{count} x {name}" for name, count in counts.items()]
    if machine.vfs:
        parts.append(f"{len(machine.vfs)} virtual functions")
    if machine.driver_version:
        parts.append(f"driver {machine.driver_version}")
    return ", ".join(parts) or "no GPU and no RDMA NIC"


def _panel(pen: Pen, panel: Panel, end: float) -> None:
    """``end`` is below all devices."""
    top = PANEL_TOPS[panel.kind]
    inset = {"socket": 0.0, "numa": 8.0, "root": 16.0}[panel.kind]
    fill, stroke = _STYLES[panel.kind]
    bottom = end + 16 - inset
    pen.rect(panel.x, top, panel.width, bottom - top, fill=fill, stroke=stroke, radius=12 - inset / 3)
    if panel.kind == "root":
        devices = [tile.device for bar in panel.bars for tile in (*bar.gpus, *bar.nics)]
        text = panel.label + "*" * any("pcieRoot" in device.inferred for device in devices)
        texts = f"host bridge {text}", text
        pen.text(panel.x + 9, top + 17, *texts, size=11, fill=FAINT_INK, room=panel.width - 16)
    elif panel.kind == "numa":
        name, _, cpus = panel.label.partition("   ")
        pen.text(panel.x + 10, top + 21, name, size=13.5, bold=True, room=panel.width - 14)
        left = panel.x + 10 + text_width(name, 13.5, bold=True) + 8
        shorter, room = cpus.removeprefix("CPUs "), panel.x + panel.width - left - 5
        pen.text(left, top + 21, cpus, shorter, "", size=11.5, fill=FAINT_INK, room=room)
        if not panel.panels:
            middle = panel.x + panel.width / 2, (top + bottom) / 2
            pen.text(*middle, "no device", size=11, fill=FAINT_INK, anchor="middle")
    else:
        pen.text(panel.x + 12, top + 25, panel.label, size=18, bold=True, room=panel.width - 20)
    for inner in panel.panels:
        _panel(pen, inner, end)


def _between_sockets(pen: Pen, placed: Plan, machine: Machine) -> None:
    """The interconnect, with the distance from one socket's first NUMA node to the other's."""
    y = PANEL_TOPS["socket"] + 18
    for one, other in zip(placed.sockets, placed.sockets[1:], strict=False):
        left, right = one.x + one.width, other.x
        if one.number is None or other.number is None:
            continue
        pen.rect(left - 3, y - 6, right - left + 6, 12, fill=INK, radius=6)
        near, far = one.panels[0].number, other.panels[0].number
        distance = machine.distance(near, far) if near is not None and far is not None else None
        if distance is not None:
            pen.text((left + right) / 2, y + 24, str(distance), size=13, bold=True, anchor="middle")

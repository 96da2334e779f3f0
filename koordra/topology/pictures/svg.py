"""The machine as a poster: one self-contained SVG document.

Panels are sockets, NUMA nodes and host bridges; dark bars are PCIe switches, with NICs above and GPUs below;
NVLink runs below the panels. Under it stand the level of every GPU to every NIC, the NUMA distances and the
legend. The order of the module names is the order of work: ``plan`` places, ``devices`` and ``nvlinks`` draw,
``legend`` explains.

The document uses no script, no external font and no style sheet, so that it looks the same in a browser, in a
paper and on a wall; the same machine always gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from koordra.topology.machine import Machine
from koordra.topology.pictures.drawing.devices import DevicePen
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
from koordra.topology.pictures.drawing.plan import MARGIN, Panel, Plan, plan
from koordra.topology.pictures.usage import NOBODY, MachineUsage, labels
from koordra.topology.product_names import nic_model

_LEAST_WIDTH: Final = 1000.0
_SMALL: Final = 12.0
_LINE: Final = 19.0
_PANELS: Final = {"socket": (124.0, 0.0, SOCKET), "numa": (160.0, 8.0, NUMA), "root": (192.0, 16.0, ROOT)}
"""Of each kind of panel the top, how much less far down it reaches, and its colours."""


def svg(machine: Machine, usage: MachineUsage = NOBODY, *, title: str = "", subtitle: str = "") -> str:
    """The picture as text that ends with a newline. ``title`` names the machine, ``subtitle`` says what it
    is."""
    pen = DevicePen(machine, usage)
    legend = Legend(pen)
    placed = plan(machine, least_width=max(_LEAST_WIDTH, legend.width + 2 * MARGIN))
    below = placed.bottom + 34 + nvlink_height(placed)
    holders = held_lines(machine, usage, width=placed.width - 2 * MARGIN)
    listed = below + 34 + legend.height + 30
    height = (listed + 24 + _LINE * len(holders) if holders else listed - 30) + MARGIN
    pen.rect(0, 0, placed.width, height, fill=PAPER)
    room = placed.width - 2 * MARGIN
    pen.text(MARGIN, 50, title or "machine", size=30, bold=True, room=room)
    for place, line in enumerate(filter(None, (subtitle, summary(machine)))):
        pen.text(MARGIN, 77 + 22 * place, line, size=15, fill=FAINT_INK, room=room)
    for socket in placed.sockets:
        _panel(pen, socket, placed.bottom)
    _between_sockets(pen, placed)
    draw_nvlinks(pen, placed)
    for bar in placed.bars():
        pen.bar(bar, placed)
    pen.line(MARGIN, below + 8, placed.width - MARGIN, below + 8, stroke="#d3dbe4")
    legend.draw(MARGIN, below + 30, room)
    if holders:
        pen.text(MARGIN, listed + 6, "Who has what", size=15, bold=True)
    for place, line in enumerate(holders):
        pen.text(MARGIN, listed + 30 + _LINE * place, line, size=_SMALL)
    return pen.document(placed.width, height, title=title or "machine")


def held_lines(machine: Machine, usage: MachineUsage, *, width: float) -> list[str]:
    """Every device that is held and each of its claims by full name, with what it has, in lines of this
    width."""
    short, lines = labels(machine), []
    for device in machine.devices():
        parts = {part.claim: part.amounts for part in usage.parts.get(device.name, ())}
        for claim in usage.holders_of(device):
            amounts = ", ".join(f"{name} {amount}" for name, amount in parts.get(claim, {}).items())
            text = f"{short[device.name]} {device.name}: {claim}"
            lines += _within(text + (f" ({amounts})" if amounts else ""), width)
    return lines


def _within(text: str, width: float) -> list[str]:
    """The text in pieces that are no wider."""
    lines = []
    while text:
        most = len(text)
        while most > 1 and text_width(text[:most], _SMALL) > width:
            most -= 1
        lines.append(text[:most])
        text = text[most:]
    return lines


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
    top, inset, (fill, stroke) = _PANELS[panel.kind]
    bottom = end + 16 - inset
    pen.rect(panel.x, top, panel.width, bottom - top, fill=fill, stroke=stroke, radius=12 - inset / 3)
    if panel.kind == "root":
        tiles = [tile for bar in panel.bars() for tile in bar.tiles]
        text = panel.label + "*" * any("pcieRoot" in tile.device.location.inferred for tile in tiles)
        texts = f"host bridge {text}", text
        pen.text(panel.x + 9, top + 17, *texts, size=11, fill=FAINT_INK, room=panel.width - 16)
    elif panel.kind == "numa":
        name, _, cpus = panel.label.partition("   ")
        pen.text(panel.x + 10, top + 21, name, size=13.5, bold=True, room=panel.width - 14)
        left = panel.x + 10 + text_width(name, 13.5, bold=True) + 8
        shorter, room = cpus.removeprefix("CPUs "), panel.x + panel.width - left - 5
        pen.text(left, top + 21, cpus, shorter, "", size=11.5, fill=FAINT_INK, room=room)
        if not panel.inner:
            middle = panel.x + panel.width / 2, (top + bottom) / 2
            pen.text(*middle, "no device", size=11, fill=FAINT_INK, anchor="middle")
    else:
        pen.text(panel.x + 12, top + 25, panel.label, size=18, bold=True, room=panel.width - 20)
    for inner in panel.inner:
        if isinstance(inner, Panel):
            _panel(pen, inner, end)


def _between_sockets(pen: DevicePen, placed: Plan) -> None:
    """The interconnect, with the distance from one socket's first NUMA node to the other's."""
    y = _PANELS["socket"][0] + 18
    for one, other in zip(placed.sockets, placed.sockets[1:], strict=False):
        left, right = one.x + one.width, other.x
        if one.number is None or other.number is None:
            continue
        pen.rect(left - 3, y - 6, right - left + 6, 12, fill=INK, radius=6)
        near, far = (
            next(node.id for node in pen.machine.numa_nodes if node.socket == panel.number)
            for panel in (one, other)
        )
        distance = pen.machine.distance(near, far)
        if distance is not None:
            pen.text((left + right) / 2, y + 24, str(distance), size=13, bold=True, anchor="middle")

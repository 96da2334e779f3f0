"""The lower part of the page: how near every GPU is to every NIC, NUMA distances, and what the colours mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from koordra.topology.machine import Device, Machine, nvlinks_between, pcie_level
from koordra.topology.pictures.drawing.pen import (
    FAINT_INK,
    FAULT,
    GPU,
    HELD,
    HOST_BRIDGE,
    INK,
    LEVELS,
    NIC,
    NVLINK,
    NVLINK_DARK,
    OFF,
    PAPER,
    RAILS,
    SWITCH,
    Pen,
)
from koordra.topology.pictures.text import INFERRED, labels, level_rests_on_guess

_NARROWEST: Final = 38.0
_WIDEST: Final = 62.0
_CELL_HEIGHT: Final = 21.0
_SLIT_CELL: Final = 38.0
_ROW_LABEL: Final = 52.0
_SHADES: Final = ((25, "#ffffff"), (15, "#e6ecf2"), (10, "#cdd8e3"), (-1, "#a9bacb"))
_MEANINGS: Final = {
    "PIX": "at most one PCIe bridge or switch",
    "PXB": "several PCIe bridges below one host bridge",
    "PHB": "the same PCIe host bridge",
    "NODE": "different host bridges of one NUMA node",
    "SYS": "different NUMA nodes",
}
_LEGEND_WIDTH: Final = 350.0
_BETWEEN: Final = 56.0
_TILE: Final = {"x": 0, "y": 0, "width": 26, "height": 16, "radius": 4, "stroke_width": 1.5}
_BAR: Final = {"x": 0, "y": 2, "width": 26, "height": 12, "radius": 4}
_SWATCHES: Final[dict[str, dict[str, Any]]] = {
    "GPU": _TILE | {"fill": GPU[0], "stroke": GPU[1]},
    "RDMA NIC": _TILE | {"fill": NIC[0], "stroke": NIC[1]},
    "PCIe switch": _BAR | {"fill": SWITCH},
    "host bridge": _BAR | {"y": 4, "height": 8, "fill": HOST_BRIDGE},
    "one NVLink": _BAR | {"y": 6.8, "height": 2.4, "radius": 0, "fill": NVLINK},
    "several NVLinks": _BAR | {"y": 5.5, "height": 5, "radius": 0, "fill": NVLINK_DARK},
    "NVLink": _BAR | {"y": 5.5, "height": 5, "radius": 0, "fill": NVLINK_DARK},
    "rail (a card each) *": {"x": 5, "y": 0, "width": 16, "height": 16, "radius": 8, "fill": RAILS[0]},
    "held by a claim": _BAR | {"fill": HELD},
    "unhealthy": _BAR | {"fill": FAULT},
    "not offered": _TILE | {"fill": OFF[0], "stroke": OFF[1]},
    "place inferred *": _TILE | {"fill": PAPER, "stroke": INK, "dashed": True},
    "virtual function": {
        "x": 8,
        "y": 3,
        "width": 9,
        "height": 10,
        "radius": 1,
        "fill": PAPER,
        "stroke": NIC[1],
    },
}
"""What is explained, in this order, and its picture: a rectangle in a field of 26 by 16."""


class Legend:
    """Measures, then draws. ``rails``, ``marks`` and ``held`` select the entries."""

    def __init__(self, machine: Machine, *, rails: int, marks: bool, held: bool) -> None:
        self._machine, self._marks = machine, marks
        self._rows: Sequence[Device] = machine.gpus or machine.nics
        self._columns: Sequence[Device] = machine.nics if machine.gpus and machine.nics else self._rows
        # NUMA distances are shown of nodes with CPUs or devices, if all is known about them.
        memory = machine.memory_only()
        numa = [node.id for node in machine.numa_nodes if node not in memory]
        known = all(machine.distance(one, other) is not None for one in numa for other in numa)
        self._numa = numa if known else []
        self._entries = _entries(machine, rails=rails, held=held)
        self._numa_width = max(_ROW_LABEL + 10 + _SLIT_CELL * len(self._numa), 160.0) if self._numa else 0
        self._key_height = 40 + 22 * (len(_MEANINGS) + (len(self._entries) + 1) // 2) + (20 if marks else 0)
        # What stands beside the matrix, with the gaps.
        self._others = _LEGEND_WIDTH + _BETWEEN + (self._numa_width + _BETWEEN if self._numa else 0)
        self.width = self._others + _ROW_LABEL + _NARROWEST * len(self._columns)
        self.height = max(46 + _CELL_HEIGHT * max(len(self._rows), len(self._numa)), self._key_height)

    def draw(self, pen: Pen, x: float, y: float, width: float) -> None:
        """Three columns across ``width``: the matrix, the distances, the legend at the right edge."""
        cell = (width - self._others - _ROW_LABEL) / max(1, len(self._columns))
        cell = min(_WIDEST, max(_NARROWEST, cell))
        matrix = _ROW_LABEL + cell * len(self._columns) if self._rows else 0
        if self._rows:
            self._matrix(pen, x, y, cell)
        if self._numa:
            free = width - matrix - _LEGEND_WIDTH - self._numa_width
            self._distances(pen, x + matrix + free / 2, y)
        self._key(pen, x + width - _LEGEND_WIDTH, y)

    def _matrix(self, pen: Pen, x: float, y: float, width: float) -> None:
        short = labels(self._machine)
        title = "PCIe level, GPU to NIC" if self._columns is not self._rows else "PCIe level"
        names = [[short[device.name] for device in some] for some in (self._rows, self._columns)]
        for (row, column), at in _grid(pen, x, y, title=title, names=names, left=_ROW_LABEL, width=width):
            pair = self._rows[row], self._columns[column]
            word = str(pcie_level(*pair))
            fill, ink = LEVELS.get(word, (PAPER, FAINT_INK))
            pen.rect(*at, width - 1.5, _CELL_HEIGHT - 1.5, fill=fill, radius=2.5)
            shown = "" if word == "X" else word + "*" * level_rests_on_guess(*pair)
            pen.text(at[0] + width / 2 - 0.8, at[1] + 14, shown, size=10, fill=ink, anchor="middle")

    def _distances(self, pen: Pen, x: float, y: float) -> None:
        names = [[f"NUMA {number}" for number in self._numa], [str(number) for number in self._numa]]
        title, left = "NUMA distance (SLIT)", _ROW_LABEL + 10
        for (row, column), at in _grid(pen, x, y, title=title, names=names, left=left, width=_SLIT_CELL):
            distance = self._machine.distance(self._numa[row], self._numa[column]) or 0
            fill = next(shade for least, shade in _SHADES if distance > least)
            pen.rect(*at, _SLIT_CELL - 1.5, _CELL_HEIGHT - 1.5, fill=fill, stroke="#d3dbe4", radius=2.5)
            pen.text(at[0] + _SLIT_CELL / 2, at[1] + 14, str(distance), size=10, anchor="middle")

    def _key(self, pen: Pen, x: float, y: float) -> None:
        pen.text(x, y + 14, "Legend", size=15, bold=True)
        for place, (word, meaning) in enumerate(_MEANINGS.items()):
            line = y + 30 + 22 * place
            fill, ink = LEVELS[word]
            pen.rect(x, line, 46, 18, fill=fill, stroke="#d3dbe4", radius=3)
            pen.text(x + 23, line + 13, word, size=10.5, fill=ink, bold=True, anchor="middle")
            pen.text(x + 56, line + 13.5, meaning, size=12)
        for place, text in enumerate(self._entries):
            left, line = x + place % 2 * _LEGEND_WIDTH / 2, y + 40 + 22 * (len(_MEANINGS) + place // 2)
            swatch = _SWATCHES[text]
            pen.rect(**swatch | {"x": left + swatch["x"], "y": line + swatch["y"]})
            pen.text(left + 34, line + 13, text, size=12)
        if self._marks:
            pen.text(x, y + self._key_height - 4, INFERRED, size=11, fill=FAINT_INK)


def _entries(machine: Machine, *, rails: int, held: bool) -> list[str]:
    """Only what this picture shows."""
    devices = list(machine.devices())
    below_switch = [bool(device.location.switches) for device in devices]
    single = any(nvlinks_between(a, b) == 1 for a, b in combinations(machine.gpus, 2))
    linked = any(gpu.nvlinks for gpu in machine.gpus)
    shown = {
        "GPU": machine.gpus,
        "RDMA NIC": machine.nics,
        "PCIe switch": any(below_switch),
        "host bridge": not all(below_switch),
        "one NVLink": single,
        "several NVLinks": linked and single,
        "NVLink": linked and not single,
        "rail (a card each) *": rails,
        "held by a claim": held,
        "unhealthy": any(gpu.faults for gpu in machine.gpus),
        "not offered": any(not gpu.certain for gpu in machine.gpus),
        "place inferred *": any(device.inferred for device in devices),
        "virtual function": machine.vfs,
    }
    return [text for text in _SWATCHES if shown[text]]


def _grid(
    pen: Pen, x: float, y: float, *, title: str, names: Sequence[Sequence[str]], left: float, width: float
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Draws a table's title and the names of its rows and columns; row and column of each cell, and its upper left corner, in
    drawing order."""
    rows, columns = names
    pen.text(x, y + 14, title, size=15, bold=True)
    for column, label in enumerate(columns):
        middle = x + left + width * (column + 0.5)
        pen.text(middle, y + 40, label, size=9.5, fill=FAINT_INK, anchor="middle")
    for row, label in enumerate(rows):
        top = y + 46 + row * _CELL_HEIGHT
        pen.text(x + left - 8, top + 15, label, size=11, bold=True, anchor="end")
        for column in range(len(columns)):
            yield (row, column), (x + left + column * width, top)

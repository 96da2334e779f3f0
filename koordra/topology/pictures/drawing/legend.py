"""The lower part of the page: how near every GPU is to every NIC, NUMA distances, what colours mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from koordra.topology.machine import Device, level_is_inferred, nvlinks_between, pcie_level
from koordra.topology.pictures.drawing.devices import DevicePen
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
)
from koordra.topology.pictures.text import INFERRED

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

Swatch = dict[str, Any]
"""A rectangle in a field of 26 by 16."""


class Legend:
    """Measures what the page of this pen needs, then draws it."""

    def __init__(self, pen: DevicePen) -> None:
        machine = pen.machine
        self._pen = pen
        self._rows: Sequence[Device] = machine.gpus or machine.nics
        self._columns: Sequence[Device] = machine.nics if machine.gpus and machine.nics else self._rows
        # NUMA distances are shown of nodes with CPUs or devices, if all is known about them.
        memory = machine.memory_only()
        numa = [node.id for node in machine.numa_nodes if node not in memory]
        known = all(machine.distance(one, other) is not None for one in numa for other in numa)
        self._numa = numa if known else []
        self._inferred = any(device.location.inferred for device in machine.devices())
        self._entries = [(text, swatch) for text, shown, swatch in self._swatches() if shown]
        self._numa_width = max(_ROW_LABEL + 10 + _SLIT_CELL * len(self._numa), 160.0) if self._numa else 0
        marks = bool(pen.rails) or self._inferred
        self._key_height = 40 + 22 * (len(_MEANINGS) + (len(self._entries) + 1) // 2) + 20 * marks
        self._note = INFERRED if marks else ""
        # What stands beside the matrix, with the gaps.
        self._others = _LEGEND_WIDTH + _BETWEEN + (self._numa_width + _BETWEEN if self._numa else 0)
        self.width = self._others + _ROW_LABEL + _NARROWEST * len(self._columns)
        self.height = max(46 + _CELL_HEIGHT * max(len(self._rows), len(self._numa)), self._key_height)

    def draw(self, x: float, y: float, width: float) -> None:
        """Three columns across ``width``: the matrix, the distances, the legend at the right edge."""
        cell = (width - self._others - _ROW_LABEL) / max(1, len(self._columns))
        cell = min(_WIDEST, max(_NARROWEST, cell))
        matrix = _ROW_LABEL + cell * len(self._columns) if self._rows else 0
        if self._rows:
            self._matrix(x, y, cell)
        if self._numa:
            free = width - matrix - _LEGEND_WIDTH - self._numa_width
            self._distances(x + matrix + free / 2, y)
        self._key(x + width - _LEGEND_WIDTH, y)

    def _matrix(self, x: float, y: float, width: float) -> None:
        pen = self._pen
        title = "PCIe level, GPU to NIC" if self._columns is not self._rows else "PCIe level"
        rows, columns = ([pen.short[device.name] for device in some] for some in (self._rows, self._columns))
        for row, column, left, top in self._grid(
            x, y, title, rows=rows, columns=columns, label=_ROW_LABEL, width=width
        ):
            pair = self._rows[row], self._columns[column]
            word = str(pcie_level(*pair))
            fill, ink = LEVELS.get(word, (PAPER, FAINT_INK))
            pen.rect(left, top, width - 1.5, _CELL_HEIGHT - 1.5, fill=fill, radius=2.5)
            shown = "" if word == "X" else word + "*" * level_is_inferred(*pair)
            pen.text(left + width / 2 - 0.8, top + 14, shown, size=10, fill=ink, anchor="middle")

    def _distances(self, x: float, y: float) -> None:
        columns, width = list(map(str, self._numa)), _SLIT_CELL
        rows, title, label = [f"NUMA {number}" for number in columns], "NUMA distance (SLIT)", _ROW_LABEL + 10
        for row, column, left, top in self._grid(
            x, y, title, rows=rows, columns=columns, label=label, width=width
        ):
            distance = self._pen.machine.distance(self._numa[row], self._numa[column]) or 0
            fill = next(shade for least, shade in _SHADES if distance > least)
            self._pen.rect(
                left, top, width - 1.5, _CELL_HEIGHT - 1.5, fill=fill, stroke="#d3dbe4", radius=2.5
            )
            self._pen.text(left + width / 2, top + 14, str(distance), size=10, anchor="middle")

    def _grid(
        self,
        x: float,
        y: float,
        title: str,
        *,
        rows: Sequence[str],
        columns: Sequence[str],
        label: float,
        width: float,
    ) -> Iterator[tuple[int, int, float, float]]:
        """Draws a table's title and the names of its rows and columns; row and column of each cell, and its
        upper left corner, in drawing order. ``label`` is how wide the names of rows are."""
        x, pen = x + label, self._pen
        pen.text(x - label, y + 14, title, size=15, bold=True)
        for column, name in enumerate(columns):
            middle = x + width * (column + 0.5)
            pen.text(middle, y + 40, name, size=9.5, fill=FAINT_INK, anchor="middle")
        for row, name in enumerate(rows):
            top = y + 46 + row * _CELL_HEIGHT
            pen.text(x - 8, top + 15, name, size=11, bold=True, anchor="end")
            for column in range(len(columns)):
                yield row, column, x + column * width, top

    def _key(self, x: float, y: float) -> None:
        pen = self._pen
        pen.text(x, y + 14, "Legend", size=15, bold=True)
        for place, (word, meaning) in enumerate(_MEANINGS.items()):
            line = y + 30 + 22 * place
            fill, ink = LEVELS[word]
            pen.rect(x, line, 46, 18, fill=fill, stroke="#d3dbe4", radius=3)
            pen.text(x + 23, line + 13, word, size=10.5, fill=ink, bold=True, anchor="middle")
            pen.text(x + 56, line + 13.5, meaning, size=12)
        for place, (text, swatch) in enumerate(self._entries):
            left, line = x + place % 2 * _LEGEND_WIDTH / 2, y + 40 + 22 * (len(_MEANINGS) + place // 2)
            pen.rect(**swatch | {"x": left + swatch["x"], "y": line + swatch["y"]})
            pen.text(left + 34, line + 13, text, size=12)
        pen.text(x, y + self._key_height - 4, self._note, size=11, fill=FAINT_INK)

    def _swatches(self) -> Iterator[tuple[str, object, Swatch]]:
        """What can be explained, whether this picture shows it, and how it looks."""
        machine = self._pen.machine
        switched = [bool(device.location.switches) for device in machine.devices()]
        single = any(nvlinks_between(a, b) == 1 for a, b in combinations(machine.gpus, 2))
        linked = any(gpu.nvlinks for gpu in machine.gpus)
        held = any(map(self._pen.usage.holders_of, machine.devices()))
        rail = {"x": 5, "y": 0, "width": 16, "height": 16, "radius": 8, "fill": RAILS[0]}
        function = {"x": 8, "y": 3, "width": 9, "height": 10, "radius": 1, "fill": PAPER, "stroke": NIC[1]}
        yield "GPU", machine.gpus, _tile(*GPU)
        yield "RDMA NIC", machine.nics, _tile(*NIC)
        yield "PCIe switch", any(switched), _bar(SWITCH)
        yield "host bridge", not all(switched), _bar(HOST_BRIDGE, 4)
        yield "one NVLink", single, _bar(NVLINK, 6.8, radius=0)
        yield "several NVLinks", linked and single, _bar(NVLINK_DARK, 5.5, radius=0)
        yield "NVLink", linked and not single, _bar(NVLINK_DARK, 5.5, radius=0)
        yield "rail (a card each) *", self._pen.rails, rail
        yield "held by a claim", held, _bar(HELD)
        yield "part of it is free", self._pen.usage.parts, _tile(PAPER, HELD)
        yield "unhealthy", any(gpu.faults for gpu in machine.gpus), _bar(FAULT)
        yield "not offered", any(not gpu.certain for gpu in machine.gpus), _tile(*OFF)
        yield "place inferred *", self._inferred, _tile(PAPER, INK) | {"dashed": True}
        yield "virtual function", machine.vfs, function


def _tile(fill: str, stroke: str) -> Swatch:
    where = {"x": 0, "y": 0, "width": 26, "height": 16}
    return {**where, "radius": 4, "stroke_width": 1.5, "fill": fill, "stroke": stroke}


def _bar(fill: str, y: float = 2, *, radius: float = 4) -> Swatch:
    return {"x": 0, "y": y, "width": 26, "height": 16 - 2 * y, "radius": radius, "fill": fill}

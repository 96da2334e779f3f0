"""The lower part of the page: how near every GPU is to every NIC, NUMA distances, and what the colours mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from koordra.topology.machine import Device, Machine, NumaNode, nvlinks_between, pcie_level
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
from koordra.topology.pictures.text import labels, level_rests_on_guess

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


class Legend:
    """Measures, then draws. ``rails``, ``marks`` and ``held`` select the entries."""

    def __init__(self, machine: Machine, *, rails: int, marks: bool, held: bool) -> None:
        self._machine, self._rails, self._marks, self._held = machine, rails, marks, held
        self._rows: Sequence[Device] = machine.gpus or machine.nics
        self._columns: Sequence[Device] = machine.nics if machine.gpus and machine.nics else self._rows
        self._slit = self._with_distances(machine)

    @staticmethod
    def _with_distances(machine: Machine) -> list[NumaNode]:
        """The NUMA nodes whose distances are shown: those with CPUs or devices, if all is known about them."""
        memory = machine.memory_only()
        shown = [node for node in machine.numa_nodes if node not in memory]
        known = all(machine.distance(one.id, other.id) is not None for one in shown for other in shown)
        return shown if known else []

    @property
    def width(self) -> float:
        """The least width that everything fits into."""
        return self._others() + _ROW_LABEL + _NARROWEST * len(self._columns)

    @property
    def height(self) -> float:
        tallest = max(len(self._rows), len(self._slit))
        return max(46 + _CELL_HEIGHT * tallest, self._key_height())

    def draw(self, pen: Pen, x: float, y: float, width: float) -> None:
        """Three columns across ``width``: the matrix, the distances, the legend at the right edge."""
        cell = (width - self._others() - _ROW_LABEL) / max(1, len(self._columns))
        cell = min(_WIDEST, max(_NARROWEST, cell))
        matrix = _ROW_LABEL + cell * len(self._columns) if self._rows else 0
        if self._rows:
            self._matrix(pen, x, y, cell)
        if self._slit:
            free = width - matrix - _LEGEND_WIDTH - self._slit_width()
            self._distances(pen, x + matrix + free / 2, y)
        self._key(pen, x + width - _LEGEND_WIDTH, y)

    def _others(self) -> float:
        """What stands beside the matrix, with the gaps."""
        return _LEGEND_WIDTH + _BETWEEN + (self._slit_width() + _BETWEEN if self._slit else 0)

    def _key_height(self) -> float:
        entries = (len(self._entries()) + 1) // 2
        return 30 + 22 * (len(_MEANINGS) + entries) + 10 + (20 if self._marks else 0)

    def _slit_width(self) -> float:
        return max(_ROW_LABEL + 10 + _SLIT_CELL * len(self._slit), 160.0)

    def _matrix(self, pen: Pen, x: float, y: float, width: float) -> None:
        short = labels(self._machine)
        title = "PCIe level, GPU to NIC" if self._columns is not self._rows else "PCIe level"
        rows, columns = ([short[device.name] for device in some] for some in (self._rows, self._columns))
        for (row, column), at in _grid(
            pen, x, y, title=title, rows=rows, columns=columns, left=_ROW_LABEL, width=width
        ):
            pair = self._rows[row], self._columns[column]
            word = str(pcie_level(*pair))
            fill, ink = LEVELS.get(word, (PAPER, FAINT_INK))
            pen.rect(*at, width - 1.5, _CELL_HEIGHT - 1.5, fill=fill, radius=2.5)
            shown = "" if word == "X" else word + "*" * level_rests_on_guess(*pair)
            pen.text(at[0] + width / 2 - 0.8, at[1] + 14, shown, size=10, fill=ink, anchor="middle")

    def _distances(self, pen: Pen, x: float, y: float) -> None:
        numbers = [node.id for node in self._slit]
        rows, columns = [f"NUMA {number}" for number in numbers], [str(number) for number in numbers]
        title, left = "NUMA distance (SLIT)", _ROW_LABEL + 10
        for (row, column), at in _grid(
            pen, x, y, title=title, rows=rows, columns=columns, left=left, width=_SLIT_CELL
        ):
            distance = self._machine.distance(numbers[row], numbers[column]) or 0
            fill = next(shade for least, shade in _SHADES if distance > least)
            pen.rect(*at, _SLIT_CELL - 1.5, _CELL_HEIGHT - 1.5, fill=fill, stroke="#d3dbe4", radius=2.5)
            pen.text(at[0] + _SLIT_CELL / 2, at[1] + 14, str(distance), size=10, anchor="middle")

    def _key(self, pen: Pen, x: float, y: float) -> None:
        pen.text(x, y + 14, "Legend", size=15, bold=True)
        line = y + 30
        for word, meaning in _MEANINGS.items():
            fill, ink = LEVELS[word]
            pen.rect(x, line, 46, 18, fill=fill, stroke="#d3dbe4", radius=3)
            pen.text(x + 23, line + 13, word, size=10.5, fill=ink, bold=True, anchor="middle")
            pen.text(x + 56, line + 13.5, meaning, size=12)
            line += 22
        line += 10
        for place, (kind, text) in enumerate(self._entries()):
            left = x + (place % 2) * (_LEGEND_WIDTH / 2)
            self._swatch(pen, kind, left, line)
            pen.text(left + 34, line + 13, text, size=12)
            if place % 2:
                line += 22
        if self._marks:
            pen.text(
                x,
                y + self._key_height() - 4,
                "* inferred or laid over, not read from the machine",
                size=11,
                fill=FAINT_INK,
            )

    def _entries(self) -> list[tuple[str, str]]:
        """Only what this picture shows."""
        machine = self._machine
        shown = {
            "gpu": (machine.gpus, "GPU"),
            "nic": (machine.nics, "RDMA NIC"),
            "switch": (any(device.location.switches for device in machine.devices()), "PCIe switch"),
            "bridge": (any(not device.location.switches for device in machine.devices()), "host bridge"),
            "link": (self._single_links(), "one NVLink"),
            "nvlink": (
                any(gpu.nvlinks for gpu in machine.gpus),
                "several NVLinks" if self._single_links() else "NVLink",
            ),
            "rail": (self._rails, "rail (a card each) *"),
            "held": (self._held, "held by a claim"),
            "fault": (any(gpu.faults for gpu in machine.gpus), "unhealthy"),
            "off": (any(not gpu.certain for gpu in machine.gpus), "not offered"),
            "dashed": (any(device.inferred for device in machine.devices()), "place inferred *"),
            "vf": (machine.vfs, "virtual function"),
        }
        return [(kind, text) for kind, (present, text) in shown.items() if present]

    def _single_links(self) -> bool:
        """Whether the legend has to distinguish arcs of two widths."""
        return any(nvlinks_between(a, b) == 1 for a, b in combinations(self._machine.gpus, 2))

    def _swatch(self, pen: Pen, kind: str, x: float, y: float) -> None:
        match kind:
            case "gpu" | "nic" | "off":
                fill, stroke = {"gpu": GPU, "nic": NIC, "off": OFF}[kind]
                pen.rect(x, y, 26, 16, fill=fill, stroke=stroke, radius=4, stroke_width=1.5)
            case "dashed":
                pen.rect(x, y, 26, 16, fill=PAPER, stroke=INK, radius=4, stroke_width=1.5, dashed=True)
            case "bridge":
                pen.rect(x, y + 4, 26, 8, fill=HOST_BRIDGE, radius=4)
            case "switch" | "held" | "fault":
                fill = {"switch": SWITCH, "held": HELD, "fault": FAULT}[kind]
                pen.rect(x, y + 2, 26, 12, fill=fill, radius=4)
            case "nvlink":
                pen.line(x, y + 8, x + 26, y + 8, stroke=NVLINK_DARK, width=5)
            case "link":
                pen.line(x, y + 8, x + 26, y + 8, stroke=NVLINK, width=2.4)
            case "rail":
                pen.circle(x + 13, y + 8, 8, fill=RAILS[0])
            case _:
                pen.rect(x + 8, y + 3, 9, 10, fill=PAPER, stroke=NIC[1], radius=1)


def _grid(
    pen: Pen,
    x: float,
    y: float,
    *,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    left: float,
    width: float,
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Draws a table's title and labels; row and column of each cell, and its upper left corner, in drawing order."""
    pen.text(x, y + 14, title, size=15, bold=True)
    for column, label in enumerate(columns):
        middle = x + left + width * (column + 0.5)
        pen.text(middle, y + 40, label, size=9.5, fill=FAINT_INK, anchor="middle")
    for row, label in enumerate(rows):
        top = y + 46 + row * _CELL_HEIGHT
        pen.text(x + left - 8, top + 15, label, size=11, bold=True, anchor="end")
        for column in range(len(columns)):
            yield (row, column), (x + left + column * width, top)

"""The plot of a replay, as an SVG document: allocation and fragmentation over arrivals, all policies in one.

Both are percent of the cluster's GPUs, means over the seeds; allocation is drawn solid, fragmentation dashed.
Colours keep their order also for people who do not see red and green apart; the legend repeats each policy's
last allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.simulation.replay import Curve
from koordra.topology.pictures.drawing.pen import PAPER, Pen

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT = 900, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 40, 60
_AXIS: Final = "arrived GPU request, % of capacity (solid: allocated, dashed: fragmented; % of all GPUs)"

_Points = list[tuple[int, float]]
"""(percent of arrivals, percent of GPUs)"""


def svg(curves: Sequence[tuple[str, Curve]], *, title: str) -> str:
    """One curve per policy and seed; those of one policy are averaged."""
    most = max([at for _, curve in curves for at in curve.events] + [100])
    pen = Pen()
    _frame(pen, most, title)
    for number, name in enumerate(dict.fromkeys(name for name, _ in curves)):
        own = [curve for known, curve in curves if known == name]
        colour = _COLOURS[number % len(_COLOURS)]
        allocated = _mean([_allocated(curve) for curve in own])
        for line, dashed in ((allocated, False), (_mean([_fragmented(curve) for curve in own]), True)):
            points = [(_x(at, most), _y(value)) for at, value in line]
            pen.polyline(points, stroke=colour, width=1.8, dashed=dashed)
        x, y = _WIDTH - _RIGHT + 12, _TOP + 20 * number + 6
        pen.line(x, y, x + 22, y, stroke=colour, width=3)
        pen.text(x + 28, y + 4, f"{name} {allocated[-1][1]:.2f}" if allocated else name, size=13)
    return pen.document(_WIDTH, _HEIGHT, title=title)


def _frame(pen: Pen, most: int, title: str) -> None:
    pen.rect(0, 0, _WIDTH, _HEIGHT, fill=PAPER)
    pen.text(_LEFT, 22, title, size=15)
    for percent in range(0, 101, 20):
        pen.line(_LEFT, _y(percent), _WIDTH - _RIGHT, _y(percent), stroke="#dddddd")
        pen.text(_LEFT - 8, _y(percent) + 4, str(percent), size=13, anchor="end")
    for at in range(0, most + 1, 10):
        pen.text(_x(at, most), _HEIGHT - _BOTTOM + 18, str(at), size=13, anchor="middle")
    pen.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 18, _AXIS, size=13, anchor="middle")


def _x(at: float, most: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / most


def _y(percent: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * percent / 100


def _allocated(curve: Curve) -> dict[int, float]:
    return {at: 100 * curve.allocated[at] / count for at, count in curve.events.items() if count}


def _fragmented(curve: Curve) -> dict[int, float]:
    return {at: 100 * total / samples for at, (total, samples) in curve.fragmented.items()}


def _mean(lines: Sequence[dict[int, float]]) -> _Points:
    found = []
    for at in sorted({at for line in lines for at in line}):
        values = [line[at] for line in lines if at in line]
        found.append((at, sum(values) / len(values)))
    return found

"""The picture of a replay, as SVG text: allocation and fragmentation over arrivals, all policies in one.

Both are percent of the cluster's GPUs, means over the seeds; allocation is drawn solid, fragmentation dashed. Colours keep their
order also for people who do not see red and green apart; every line is labelled at its end as well as in the legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from koordra.simulation.replay import Curve

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT = 900, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 40, 60


def svg(curves: Sequence[tuple[str, Curve]], *, title: str) -> str:
    """One curve per policy and seed; those of one policy are averaged."""
    names = list(dict.fromkeys(name for name, _ in curves))
    most = max([at for _, curve in curves for at in curve.events] + [100])
    plot = _Plot(most)
    parts = [plot.frame(title)]
    for number, name in enumerate(names):
        own = [curve for known, curve in curves if known == name]
        colour = _COLOURS[number % len(_COLOURS)]
        allocated = _averaged([_allocated(curve) for curve in own])
        fragmented = _averaged([_fragmented(curve) for curve in own])
        parts += [
            plot.line(allocated, colour, dashed=False),
            plot.line(fragmented, colour, dashed=True),
            plot.legend(number, name, colour, allocated),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _allocated(curve: Curve) -> dict[int, float]:
    return {at: 100 * curve.allocated[at] / count for at, count in curve.events.items() if count}


def _fragmented(curve: Curve) -> dict[int, float]:
    return {at: 100 * total / samples for at, (total, samples) in curve.fragmented.items()}


def _averaged(lines: Sequence[dict[int, float]]) -> list[tuple[int, float]]:
    found = []
    for at in sorted({at for line in lines for at in line}):
        values = [line[at] for line in lines if at in line]
        found.append((at, sum(values) / len(values)))
    return found


class _Plot:
    def __init__(self, most: int) -> None:
        self.most = most

    def _x(self, at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / self.most

    def _y(self, percent: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * percent / 100

    def frame(self, title: str) -> str:
        lines = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
                f' font-family="sans-serif" font-size="13"><title>{escape(title)}</title>'
            ),
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
        ]
        for percent in range(0, 101, 20):
            y = self._y(percent)
            lines.append(
                f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
            )
        lines += [
            f'<text x="{self._x(at):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{at}</text>'
            for at in range(0, self.most + 1, 10)
        ]
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        lines.append(
            f'<text x="{middle:.0f}" y="{_HEIGHT - 18}" text-anchor="middle">'
            "arrived GPU request, % of capacity (solid: allocated, dashed: fragmented; % of all GPUs)</text>"
        )
        return "\n".join(lines)

    def line(self, points: Sequence[tuple[int, float]], colour: str, *, dashed: bool) -> str:
        if not points:
            return ""
        path = " ".join(f"{self._x(at):.1f},{self._y(value):.1f}" for at, value in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'

    def legend(self, number: int, name: str, colour: str, points: Sequence[tuple[int, float]]) -> str:
        y = _TOP + 20 * number + 6
        x = _WIDTH - _RIGHT + 12
        last = f" {points[-1][1]:.2f}" if points else ""
        return (
            f'<path d="M{x} {y}h22" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{x + 28}" y="{y + 4}">{escape(name)}{last}</text>'
        )

"""Profiles as people look at them: a line for each series in a terminal, and an SVG document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from koordra.profiles.condensed import Condensed, Use
from koordra.profiles.profile import Profile
from koordra.profiles.series import Series
from koordra.topology.pictures.drawing.pen import PAPER, Pen

_BARS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = "·"
TITLES: Final = {
    Series.GPU: "GPUs busy",
    Series.SM: "SMs, of one GPU",
    Series.GPU_MEMORY: "GPU memory, of one",
    Series.CPU: "processors",
    Series.MEMORY: "host memory",
    Series.RDMA: "RDMA",
}


def spark(values: Sequence[int | None], highest: int) -> str:
    """A bar each, from nothing to the highest; a point where nothing is known."""
    top = len(_BARS) - 1
    return "".join(
        _GAP if value is None else _BARS[min(top, value * top // highest) if highest else 0]
        for value in values
    )


def amount(series: Series, value: int) -> str:
    """In the words of people: `0.40`, `18%`, `11.2Gi`, `1.5GB/s`."""
    if series is Series.SM:
        return f"{value / 10:.0f}%"
    if series in (Series.GPU, Series.CPU):
        return f"{value / 1000:.2f}"
    units: tuple[tuple[str, float], ...] = (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
    if series is Series.RDMA:
        units = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
    for unit, size in units:
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value}B/s" if series is Series.RDMA else str(value)


def rows(use: Use) -> Iterator[Sequence[str]]:
    """What, over time, sorted, p99, peak."""
    for series, one in use.items():
        yield (
            TITLES[series],
            spark(one.points, one.peak),
            spark(one.deciles, one.peak),
            *(amount(series, value) for value in (one.deciles[4], one.p99, one.peak)),
        )


HEADER: Final = ("", "OVER TIME", "SORTED", "MEDIAN", "P99", "PEAK")
_WIDTH, _ROW, _PLOT, _LEFT, _TOP = 900, 84, 300, 180, 60
_OVER_TIME, _SORTED = "#0072b2", "#d55e00"


def svg(profiles: Sequence[Profile], *, title: str, remarks: Sequence[str] = ()) -> str:
    """Of each profile a row for each series: over time on the left, sorted on the right."""
    pen = Pen()
    height = _TOP + sum(_ROW * len(one.use) + 30 for one in profiles) + 24 * len(remarks) + 20
    pen.rect(0, 0, _WIDTH, height, fill=PAPER)
    pen.text(20, 28, title, size=16)
    pen.text(_LEFT, 50, "over its time, mean of each tenth", size=12)
    pen.text(_LEFT + _PLOT + 60, 50, "sorted, deciles", size=12)
    y = float(_TOP)
    for profile in profiles:
        pen.text(20, y + 14, f"{len(profile.pods)} pods, template {profile.template or 'unknown'}", size=12)
        y += 30
        for series, one in profile.use.items():
            _row(pen, y, series, one)
            y += _ROW
    for remark in remarks:
        pen.text(20, y + 14, remark, size=12)
        y += 24
    return pen.document(_WIDTH, height, title=title)


def _row(pen: Pen, y: float, series: Series, one: Condensed) -> None:
    pen.text(20, y + 26, TITLES[series], size=13)
    pen.text(20, y + 44, f"p99 {amount(series, one.p99)}", size=12)
    pen.text(20, y + 60, f"peak {amount(series, one.peak)}", size=12)
    sorted_from = _LEFT + _PLOT + 60
    for left, values, colour in (
        (_LEFT, one.points, _OVER_TIME),
        (sorted_from, one.deciles, _SORTED),
    ):
        pen.line(left, y + _ROW - 14, left + _PLOT, y + _ROW - 14, stroke="#999999")
        for number, value in enumerate(values):
            if value is not None:
                tall = (_ROW - 24) * value / one.peak if one.peak else 0.0
                wide = _PLOT / len(values)
                pen.rect(left + number * wide, y + _ROW - 14 - tall, wide - 3, tall, fill=colour)

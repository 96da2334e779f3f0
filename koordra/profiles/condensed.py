"""A summary as people and decisions read it: Alnair's ten points, in time order and as sorted deciles both,
and what was highest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from koordra.profiles.series import Series
from koordra.profiles.summary import Cell, Summary

POINTS: Final = 10


@dataclass(frozen=True, slots=True)
class Condensed:
    """In the series' unit. `points`: means over the tenths of the time, in order, None where nothing is
    known; fewer of what was shorter than ten samples. `deciles`: what it was not above in 10, 20, ... 100 %
    of the time, the last the highest. `p99` as deciles, `peak` exact. `seconds`: of how long there are
    samples, of all pods together."""

    points: tuple[int | None, ...]
    deciles: tuple[int, ...]
    peak: int
    p99: int
    seconds: int

    @property
    def document(self) -> dict[str, Any]:
        return {**asdict(self), "points": list(self.points), "deciles": list(self.deciles)}


Use = dict[Series, Condensed]
"""What a pod used, or one of several on average. A series that nobody measured is not there."""


def condensed(summary: Summary) -> Condensed:
    """Raises ValueError for one without samples."""
    if not summary.cells:
        raise ValueError("there are no samples")
    return Condensed(
        points=_points(summary),
        deciles=tuple(summary.quantile((number + 1) / POINTS) for number in range(POINTS)),
        peak=summary.peak,
        p99=summary.quantile(0.99),
        seconds=summary.ms // 1000,
    )


def _points(summary: Summary) -> tuple[int | None, ...]:
    first = min(summary.cells)
    length = max(summary.cells) - first + 1
    parts = [Cell() for _ in range(min(POINTS, length))]
    for number, cell in summary.cells.items():
        parts[((number - first) * len(parts)) // length].add(cell)
    return tuple((2 * part.total + part.ms) // (2 * part.ms) if part.ms else None for part in parts)

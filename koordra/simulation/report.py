"""What a replay reports: one document for machines, one table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordra.simulation.replay import Run, decision_us


@dataclass(frozen=True, slots=True)
class Reported:
    """A run with what it belongs to. `capacity` is in thousandths of GPU."""

    policy: str
    seed: int
    capacity: int
    run: Run

    def to_dict(self) -> dict[str, Any]:
        curve = self.run.curve
        most = curve.percent_allocated(130)
        return {
            "policy": self.policy,
            "seed": self.seed,
            "arrivals": self.run.arrivals,
            "alloc_pct_100": _rounded(curve.percent_allocated(100)),
            "alloc_pct_130": _rounded(most),
            "unallocated_gpus_130": None
            if most is None
            else round((100 - most) / 100 * self.capacity / 1000, 2),
            "frag_pct_100": _rounded(curve.percent_fragmented(100)),
            "elapsed_s": round(sum(self.run.decisions) / 1e9, 4),
            "decision_us": decision_us(self.run.decisions),
        }


def document(reports: Iterable[Reported]) -> dict[str, Any]:
    """`runs` one by one, `summary` by policy in the order given. `std` is over seeds, of a sample."""
    runs = [report.to_dict() for report in reports]
    return {
        "runs": runs,
        "summary": [_summary(name, runs) for name in dict.fromkeys(r["policy"] for r in runs)],
    }


_FIGURES: Final = {
    "ALLOC% @100": ("alloc_pct_100", 2),
    "ALLOC% @130": ("alloc_pct_130", 2),
    "IDLE GPUS@130": ("unallocated_gpus_130", 0),
    "FRAG% @100": ("frag_pct_100", 2),
    "SECONDS": ("elapsed_s", 2),
}
"""Column -> figure of a run, of which there is a mean, and its digits."""

COLUMNS: Final = ("POLICY", "SEED", "ARRIVALS", *_FIGURES, "P50 µs", "P99 µs")


def _summary(policy: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [run for run in runs if run["policy"] == policy]
    values = [run["alloc_pct_130"] for run in own if run["alloc_pct_130"] is not None]
    return {
        "policy": policy,
        "alloc_pct_130_std": round(float(np.std(values, ddof=1)), 3) if len(values) > 1 else 0.0,
        **{f"{figure}_mean": _mean(own, figure) for figure, _ in _FIGURES.values()},
    }


def rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The document as lines of a table: the runs, then the means."""
    lines: list[tuple[str, ...]] = []
    for run in found["runs"]:
        figures = [_shown(run[figure], digits) for figure, digits in _FIGURES.values()]
        times = [_shown(run["decision_us"][part], 0) for part in ("p50", "p99")]
        lines.append((run["policy"], str(run["seed"]), str(run["arrivals"]), *figures, *times))
    for one in found["summary"]:
        means = {figure: _shown(one[f"{figure}_mean"], digits) for figure, digits in _FIGURES.values()}
        means["alloc_pct_130"] += f" ±{_shown(one['alloc_pct_130_std'], 2)}"
        lines.append((one["policy"], "mean", "", *means.values(), "", ""))
    return lines


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return round(float(np.mean(values)), 3) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

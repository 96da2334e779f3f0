"""Made-up use of GPUs."""

from __future__ import annotations

from koordra.profiles.condensed import Condensed, Use
from koordra.profiles.series import Series

GIB = 1 << 30


def level(value: int, *, peak: int | None = None, seconds: int = 3600) -> Condensed:
    return Condensed((value,) * 10, (value,) * 10, value if peak is None else peak, value, seconds)


def use(memory: int, percent: int, *, peak: int | None = None, seconds: int = 3600) -> Use:
    """GPU memory in bytes, and in how many percent of the time kernels ran."""
    return {
        Series.GPU_MEMORY: level(memory, peak=peak, seconds=seconds),
        Series.SM: level(percent * 10, seconds=seconds),
    }

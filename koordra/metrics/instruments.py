"""What there is to count. Pure.

    REFUSALS: Final = counter("koordra_nri_refusals", "Refused containers.", rule=RULES)
    LIMIT: Final = gauge("koordra_limiter_limit_bytes", "...", UUID=bounded("the GPUs of the node"))

A label is declared with its values, or with what bounds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

LATENCY_BUCKETS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Seconds: from a look-up in memory to a request that nearly timed out."""

OTHER: Final = "other"
"""Stands for a value that a declaration does not list."""

_UNITS: Final = (
    "bytes_per_second",
    "timestamp_seconds",
    "seconds",
    "bytes",
    "ratio",
    "watts",
    "info",
)


class Sort(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """`values` are there from the start. `bound` says what else there may be, and what bounds it; empty:
    nothing else."""

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""

    def shown(self, value: object) -> str:
        text = str(value)
        return text if self.bound or text in self.values else OTHER


@dataclass(frozen=True, slots=True)
class Instrument:
    """`name` as a sample has it, but for the endings of a histogram."""

    sort: Sort
    name: str
    meaning: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """Of the name; empty for plain numbers."""
        name = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")

    def shown(self, values: Iterable[object]) -> list[str]:
        """The values of the labels, in the declaration's words."""
        return [label.shown(value) for label, value in zip(self.labels, values, strict=True)]

    def known_values(self) -> Iterator[tuple[str, ...]]:
        """Every combination of labels, where the values of all are listed."""
        return iter(product(*(label.values for label in self.labels)))


Values = Iterable[str] | Label


def bounded(by: str, *, known: Iterable[str] = ()) -> Label:
    """A label whose values are not all listed: `by` says what they are, and what keeps them few."""
    return Label("", tuple(known), by)


def counter(name: str, meaning: str, **labels: Values) -> Instrument:
    """Something that only grows; `name` ends in `_total`."""
    return Instrument(Sort.COUNTER, name, meaning, _labels(labels))


def gauge(name: str, meaning: str, **labels: Values) -> Instrument:
    return Instrument(Sort.GAUGE, name, meaning, _labels(labels))


def histogram(
    name: str,
    meaning: str,
    *,
    buckets: tuple[float, ...] = LATENCY_BUCKETS,
    **labels: Values,
) -> Instrument:
    """How a quantity is spread; seconds unless the name says otherwise."""
    return Instrument(Sort.HISTOGRAM, name, meaning, _labels(labels), buckets)


def _labels(given: dict[str, Values]) -> tuple[Label, ...]:
    return tuple(
        Label(name, values.values, values.bound) if isinstance(values, Label) else Label(name, tuple(values))
        for name, values in given.items()
    )

"""The instruments of one process and what they stand at, as Prometheus reads it.

Three ways to keep a value:

    counter, gauge, histogram    counted where it happens
    table                        rows that are replaced as a whole: a scrape sees all of the old ones or all
                                 of the new ones, and those of what is gone are gone
    node_tables                  rows by node, of which there are many: their text is made once, and again
                                 when a node's rows change, in the scrape's thread

A scrape takes no lock that a worker waits for.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from koordra import __version__
from koordra.metrics.instruments import Instrument, Sort, bounded, gauge

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD_INFO: Final = gauge(
    "koordra_build_info",
    "1; which koordra this is, and which Python runs it",
    version=bounded("one value"),
    python=bounded("one value"),
)
Rows = Mapping[tuple[str, ...], float]
"""Values of the labels, in the order of the declaration -> the figure."""

_Family = GaugeMetricFamily | CounterMetricFamily


MOST_KNOWN: Final = 1024
"""Spellings of labels whose series an instrument finds at once."""


class _Declared(MetricWrapperBase):
    """`labels` takes what the declaration lists; anything else is counted as `other`."""

    declared: Instrument
    known: dict[tuple[object, ...], Any]

    def labels(self, *values: object, **_: object) -> Self:
        found: Self | None = self.known.get(values)
        if found is None:
            found = super().labels(*self.declared.shown(values))
            if len(self.known) < MOST_KNOWN:
                self.known[values] = found
        return found


class Counter(_Declared, prometheus_client.Counter):
    pass


class Gauge(_Declared, prometheus_client.Gauge):
    pass


class Histogram(_Declared, prometheus_client.Histogram):
    pass


_Made = TypeVar("_Made", Counter, Gauge, Histogram)


class Table(Collector):
    """Rows that are replaced as a whole, by any thread. What is listed of the labels stands at 0 where
    nothing is said of it; `hide`: nothing is shown, not even that."""

    def __init__(self, declared: Instrument) -> None:
        self.declared = declared
        self._known: Rows = dict.fromkeys(declared.known_values(), 0.0)
        self._rows: Callable[[], Rows] = lambda: self._known

    def set(self, rows: Rows) -> None:
        shown = {**self._known, **rows}
        self._rows = lambda: shown

    def follow(self, rows: Callable[[], Rows]) -> None:
        """Asked at each scrape, in its thread."""
        self._rows = lambda: {**self._known, **rows()}

    def hide(self) -> None:
        self._rows = dict

    def collect(self) -> Iterable[_Family]:
        return [_family(self.declared, self._rows())]

    def describe(self) -> Iterable[_Family]:
        """For whoever registers: a name is taken once."""
        return [_family(self.declared, {})]


class NodeTables:
    """Rows of several instruments by node, whose name is their first label. `put` and `clear` are for one
    thread, `text` for any other."""

    def __init__(self, declared: Iterable[Instrument]) -> None:
        self.declared = tuple(declared)
        self._nodes: dict[str, tuple[Rows, ...]] = {}
        self._made: dict[str, tuple[tuple[Rows, ...], tuple[str, ...]]] = {}
        self._making = threading.Lock()

    def put(self, node: str, rows: tuple[Rows, ...] | None) -> None:
        """The rows of each instrument, without the node's name, or None for a node that is gone."""
        if rows is None:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = rows

    def clear(self) -> None:
        self._nodes.clear()

    def text(self) -> str:
        nodes = self._nodes.copy()
        with self._making:
            made = {}
            for node, rows in nodes.items():
                known = self._made.get(node)
                made[node] = (
                    known if known is not None and known[0] is rows else (rows, self._text_of(node, rows))
                )
            self._made = made
        return "".join(self._families([texts for _, texts in made.values()]))

    def _families(self, texts: list[tuple[str, ...]]) -> Iterator[str]:
        for at, declared in enumerate(self.declared):
            yield f"# HELP {declared.name} {declared.meaning}\n# TYPE {declared.name} {declared.sort}\n"
            yield from (text[at] for text in texts)

    def _text_of(self, node: str, rows: tuple[Rows, ...]) -> tuple[str, ...]:
        return tuple(
            "".join(_line(declared, (node, *values), figure) for values, figure in of.items())
            for declared, of in zip(self.declared, rows, strict=True)
        )


def _line(declared: Instrument, values: tuple[str, ...], figure: float) -> str:
    labels = ",".join(
        f'{label.name}="{_escaped(value)}"' for label, value in zip(declared.labels, values, strict=True)
    )
    return f"{declared.name}{{{labels}}} {figure!r}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(declared: Instrument, rows: Rows) -> _Family:
    make = CounterMetricFamily if declared.sort is Sort.COUNTER else GaugeMetricFamily
    family = make(declared.name, declared.meaning, labels=[label.name for label in declared.labels])
    for values, figure in rows.items():
        family.add_metric(declared.shown(values), figure)
    return family


def samples(text: str, names: Collection[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Those of these names in what a process of koordra's serves: name, labels, value."""
    wanted = tuple(names)
    chosen = "\n".join(line for line in text.splitlines() if line.startswith(wanted)) + "\n"
    try:
        for family in text_string_to_metric_families(chosen):
            yield from ((one.name, one.labels, one.value) for one in family.samples if one.name in names)
    except ValueError:  # whoever answered is no koordra
        return


class Metrics:
    """The instruments of one process. Asking twice for one is a programming error and raises ValueError."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._node_tables: list[NodeTables] = []
        self.gauge(BUILD_INFO).labels(__version__, platform.python_version()).set(1)

    def counter(self, declared: Instrument) -> Counter:
        return self._prepared(Counter(*_terms(declared, Sort.COUNTER), registry=self._registry), declared)

    def gauge(self, declared: Instrument) -> Gauge:
        return self._prepared(Gauge(*_terms(declared, Sort.GAUGE), registry=self._registry), declared)

    def histogram(self, declared: Instrument) -> Histogram:
        terms, buckets = _terms(declared, Sort.HISTOGRAM), declared.buckets
        return self._prepared(Histogram(*terms, registry=self._registry, buckets=buckets), declared)

    def table(self, declared: Instrument) -> Table:
        found = Table(declared)
        self._registry.register(found)
        return found

    def node_tables(self, declared: Iterable[Instrument]) -> NodeTables:
        self._node_tables.append(NodeTables(declared))
        return self._node_tables[-1]

    def _prepared(self, made: _Made, declared: Instrument) -> _Made:
        made.declared, made.known = declared, {}
        for values in declared.known_values() if declared.labels else ():
            made.labels(*values)
        return made

    def text(self) -> str:
        """What Prometheus reads (text format 0.0.4)."""
        found = generate_latest(self._registry).decode()
        return found + "".join(each.text() for each in self._node_tables)


def _terms(declared: Instrument, sort: Sort) -> tuple[str, str, list[str]]:
    assert declared.sort is sort, declared
    return declared.name, declared.meaning, [label.name for label in declared.labels]

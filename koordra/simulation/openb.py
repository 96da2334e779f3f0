"""Traces as values: the node and pod lists of OpenB, read from their text.

Columns (Alibaba cluster-trace-gpu-v2023): nodes `sn, cpu_milli, memory_mib, gpu, model`; pods `name,
cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec` and others that the experiment ignores. `gpu_milli` is
the share of each GPU, 1000 a whole one; `gpu_spec` lists the models a pod may use, joined by `|`, empty for
any. A list may leave out columns that have a natural default (memory, model, spec), and nothing else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import WHOLE, Request


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """`request` is the pod's class: pods that ask for the same share everything that is computed for them."""

    name: str
    request: Request


_NODE_COLUMNS: Final = ("sn", "cpu_milli", "gpu")
_POD_COLUMNS: Final = ("name", "cpu_milli", "num_gpu", "gpu_milli")


def read_nodes(lines: Iterable[str], *, source: str = "nodes") -> list[TraceNode]:
    """The nodes in the order of the list. Raises InvalidManifest with the line."""
    return [
        TraceNode(
            name=row.text("sn"),
            cpu=row.number("cpu_milli"),
            memory=row.number("memory_mib", default=_PLENTY),
            gpus=row.number("gpu"),
            model=row.text("model", default=""),
        )
        for row in rows_of(lines, source, _NODE_COLUMNS)
    ]


def read_pods(lines: Iterable[str], *, source: str = "pods") -> list[TracePod]:
    """The pods in the order of the list. Raises InvalidManifest with the line."""
    found = []
    for row in rows_of(lines, source, _POD_COLUMNS):
        gpus, milli = row.number("num_gpu"), row.number("gpu_milli")
        if gpus and not 0 < milli <= WHOLE:
            raise row.wrong("gpu_milli", f"is {milli}", "write 1 to 1000")
        if gpus > 1 and milli < WHOLE:
            raise row.wrong("gpu_milli", f"is {milli} of each of {gpus} GPUs", "only one GPU can be shared")
        request = Request(
            cpu=row.number("cpu_milli"),
            memory=row.number("memory_mib", default=0),
            gpus=gpus,
            milli=milli if gpus else 0,
            models=tuple(sorted(filter(None, row.text("gpu_spec", default="").split("|")))),
        )
        found.append(TracePod(row.text("name"), request))
    return found


_PLENTY: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a list; an amount that is empty is 0."""

    source: str
    line: int
    values: dict[str, str]

    def text(self, column: str, *, default: str | None = None) -> str:
        value = self.values.get(column)
        if value is None:
            if default is None:
                raise self.wrong(column, "is missing", "the row is too short")
            return default
        return value.strip()

    def number(self, column: str, *, default: int | None = None) -> int:
        return int(self.amount(column, default=default))

    def amount(self, column: str, *, default: int | None = None) -> float:
        text = self.text(column, default=None if default is None else str(default))
        try:
            value = float(text or 0)
        except ValueError as error:
            raise self.wrong(column, f"is {text!r}", "write a number") from error
        if not 0 <= value < inf:
            raise self.wrong(column, f"is {text}", "write a number that is not negative")
        return value

    def wrong(self, column: str, what: str, remedy: str) -> InvalidManifest:
        return InvalidManifest(what, object=f"{self.source} line {self.line}", field=column, remedy=remedy)


def rows_of(lines: Iterable[str], source: str, needed: tuple[str, ...]) -> list[Row]:
    """The rows of a list with at least these columns. Raises InvalidManifest."""
    reader = csv.DictReader(lines)
    try:
        return list(_rows(reader, source, needed))
    except csv.Error as error:
        raise InvalidManifest(f"is no CSV: {error}", object=f"{source} line {reader.line_num}") from error


def _rows(reader: csv.DictReader[str], source: str, needed: tuple[str, ...]) -> Iterator[Row]:
    columns = [name.strip() for name in reader.fieldnames or ()]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InvalidManifest(
            f"has no column {', '.join(missing)}",
            object=source,
            remedy="give the CSV a header line with the columns of its trace",
        )
    reader.fieldnames = columns
    for row in reader:
        values = {key: value for key, value in row.items() if key and value is not None}
        yield Row(source, reader.line_num, values)

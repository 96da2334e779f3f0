"""The DLRM trace (Alibaba cluster-trace-gpu-v2025): GPU and RDMA requests with times, and how well they are paired.

One row is an instance: `cpu_request` (vCPU), `gpu_request`, `rdma_request` (percent of one NIC), `memory_request` (GiB),
`creation_time` and `deletion_time` in seconds, empty for before the start and after the end. Instances without a GPU belong on
CPU nodes, of which the trace has none either; they are counted and left out.

The trace has no list of nodes. Nodes are made of one machine, whose shape (GPUs, NICs, levels) is known, with as many cores and
as much memory per GPU as the caller says. Events happen in the order of time, departures before arrivals of the same second;
each arrival is tried once.

Reported per run, for requests of one GPU and one NIC: how many pairs are aligned (PIX or PXB), in all and among those placed
while at least 90 % of the GPUs were in use, and how many got the best level that was free on their node (found by looking at
every pair).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from koordra.errors import InvalidManifest
from koordra.placement.columns.fleet import Fleet, Placement
from koordra.placement.columns.state import FULL, WHOLE, Kind, Request, State
from koordra.simulation.replay import Clock, Cluster, Progress, decision_us
from koordra.topology.levels import Level
from koordra.topology.machine_shape import MachineShape, pair_level

_COLUMNS: Final = ("gpu_request", "rdma_request", "cpu_request", "memory_request")
NEARLY_FULL: Final = 0.9


class Event(NamedTuple):
    """Time, 0 for a departure and 1 for an arrival, number of the instance."""

    time: float
    arrives: int
    instance: int


@dataclass(frozen=True, slots=True)
class Trace:
    requests: tuple[Request, ...]
    events: tuple[Event, ...]
    without_gpu: int

    @property
    def most(self) -> int:
        """GPUs in use at once, at most, if everything were placed."""
        now = most = 0
        for event in self.events:
            now += self.requests[event.instance].gpus * (1 if event.arrives else -1)
            most = max(most, now)
        return most


def read_trace(lines: Iterable[str], *, source: str = "trace") -> Trace:
    """Raises InvalidManifest for a list that is no DLRM trace."""
    reader = csv.DictReader(lines)
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise InvalidManifest(f"has no column {', '.join(missing)}", object=source)
    requests: list[Request] = []
    events: list[Event] = []
    without = 0
    for row in reader:
        try:
            request = _request(row)
            created, deleted = float(row.get("creation_time") or 0), row.get("deletion_time")
            if not request.gpus:
                without += 1
                continue
            events.append(Event(created, 1, len(requests)))
            if deleted:
                events.append(Event(float(deleted), 0, len(requests)))
            requests.append(request)
        except ValueError as error:
            raise InvalidManifest(
                f"cannot be read: {error}", object=f"{source} line {reader.line_num}"
            ) from error
    return Trace(tuple(requests), tuple(sorted(events)), without)


def _request(row: dict[str, Any]) -> Request:
    percent = min(FULL, round(float(row["rdma_request"] or 0)))
    gpus = round(float(row["gpu_request"] or 0))
    return Request(
        cpu=round(1000 * float(row["cpu_request"] or 0)),
        memory=round(1024 * float(row["memory_request"] or 0)),
        gpus=gpus,
        milli=WHOLE if gpus else 0,
        nics=1 if percent else 0,
        percent=percent,
    )


def nodes_of(shape: MachineShape, count: int, *, cores: int = 16, gibibytes: int = 128) -> Cluster:
    """`count` nodes of one machine, with so many cores and so much memory per GPU."""
    state = State(
        kind=0,
        cpu=1000 * cores * shape.gpus,
        memory=1024 * gibibytes * shape.gpus,
        gpus=(WHOLE,) * shape.gpus,
        nics=(FULL,) * shape.nics,
    )
    return Cluster((Kind("", shape.gpus, shape),), (state,) * count)


@dataclass(slots=True)
class Alignment:
    """Levels of the pairs placed, in all and while the cluster was nearly full; `best` got the best level of their node."""

    levels: Counter[int] = field(default_factory=Counter)
    when_full: Counter[int] = field(default_factory=Counter)
    best: int = 0
    arrivals: int = 0
    refused: int = 0
    most_allocated: float = 0.0
    allocated: float = 0.0
    decisions: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        pairs = sum(self.levels.values())
        return {
            "arrivals": self.arrivals,
            "refused": self.refused,
            "alloc_pct_max": round(100 * self.most_allocated, 2),
            "alloc_pct_end": round(100 * self.allocated, 2),
            "pairs": pairs,
            "aligned_pct": _aligned(self.levels),
            "pairs_above_90": sum(self.when_full.values()),
            "aligned_pct_above_90": _aligned(self.when_full),
            "best_level_pct": round(100 * self.best / pairs, 3) if pairs else None,
            "levels": {str(Level(level)): count for level, count in sorted(self.levels.items())},
            "elapsed_s": round(sum(self.decisions) / 1e9, 4),
            "decision_us": decision_us(self.decisions or [0]),
        }


def _aligned(levels: Counter[int]) -> float | None:
    total = sum(levels.values())
    near = sum(count for level, count in levels.items() if level <= Level.PXB)
    return round(100 * near / total, 3) if total else None


def replay(
    fleet: Fleet,
    trace: Trace,
    events: Sequence[Event],
    *,
    clock: Clock,
    learn: Callable[[Request], bool] = lambda _request: False,
    on_progress: Progress = lambda _done, _of: None,
) -> Alignment:
    """Apply the events. `learn` is called before each arrival and returns whether the policy's table changed."""
    found = Alignment()
    capacity = sum(sum(state.gpus) for state in fleet.nodes if state is not None)
    held: dict[int, Placement] = {}
    allocated = 0
    for number, event in enumerate(events):
        if number % 512 == 0:
            on_progress(number, len(events))
        if not event.arrives:
            gone = held.pop(event.instance, None)
            if gone is not None:
                fleet.release(gone)
                allocated -= gone.request.share
            continue
        request = trace.requests[event.instance]
        before = clock()
        if learn(request):
            fleet.tables_changed()
        placement = fleet.find(request)
        spent = clock() - before
        found.arrivals += 1
        if placement is None:
            found.refused += 1
            found.decisions.append(spent)
            continue
        _note(found, fleet, placement, full=allocated >= NEARLY_FULL * capacity)
        before = clock()
        fleet.take(placement)
        found.decisions.append(spent + clock() - before)
        held[event.instance] = placement
        allocated += request.share
        found.most_allocated = max(found.most_allocated, allocated / capacity)
    found.allocated = allocated / capacity
    return found


def _note(found: Alignment, fleet: Fleet, placement: Placement, *, full: bool) -> None:
    request, state = placement.request, fleet.nodes[placement.node]
    assert state is not None
    shape = fleet.kinds[state.kind].shape
    if shape is None or request.gpus != 1 or request.nics != 1:
        return
    found.levels[placement.level] += 1
    if full:
        found.when_full[placement.level] += 1
    best = min(
        int(pair_level(shape, 1 << gpu, 1 << nic) or 0)
        for gpu, free in enumerate(state.gpus)
        if free >= request.milli
        for nic, left in enumerate(state.nics)
        if left >= request.percent
    )
    found.best += placement.level == best

"""The DLRM trace (Alibaba cluster-trace-gpu-v2025): GPU and RDMA requests with times, and how well they are
paired.

One row is an instance: `cpu_request` (vCPU), `gpu_request`, `rdma_request` (percent of one NIC),
`memory_request` (GiB), `creation_time` and `deletion_time` in seconds, empty for before the start and after
the end. Instances without a GPU belong on CPU nodes, of which the trace has none either; they are counted and
left out.

The trace has no list of nodes. Nodes are made of one machine (`machine_cluster`). Events happen in the order
of time, departures before arrivals of the same second; each arrival is tried once.

Reported per run, for requests of one GPU and one NIC: how many pairs are aligned (PIX or PXB), in all and
among those placed while at least 90 % of the GPUs were in use, and how many got the best level that was free
on their node (found by looking at every pair).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

from koordra.placement.free_amounts.state import FULL, WHOLE, Request
from koordra.simulation.machine_cluster import MachineCluster, PodPlacement
from koordra.simulation.openb import Row, rows_of
from koordra.simulation.replay import Clock, Progress, decision_us
from koordra.topology.levels import Level

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
        changes = [self.requests[one.instance].gpus * (1 if one.arrives else -1) for one in self.events]
        return max(accumulate(changes, initial=0))


def read_trace(lines: Iterable[str], *, source: str = "trace") -> Trace:
    """Raises InvalidManifest for a list that is no DLRM trace."""
    requests: list[Request] = []
    events: list[Event] = []
    without = 0
    for row in rows_of(lines, source, _COLUMNS):
        request = _request(row)
        if not request.gpus:
            without += 1
            continue
        events.append(Event(row.amount("creation_time", default=0), 1, len(requests)))
        if row.text("deletion_time", default=""):
            events.append(Event(row.amount("deletion_time"), 0, len(requests)))
        requests.append(request)
    return Trace(tuple(requests), tuple(sorted(events)), without)


def _request(row: Row) -> Request:
    percent, gpus = min(FULL, round(row.amount("rdma_request"))), round(row.amount("gpu_request"))
    return Request(
        cpu=round(1000 * row.amount("cpu_request")),
        memory=round(1024 * row.amount("memory_request")),
        gpus=gpus,
        milli=WHOLE if gpus else 0,
        nics=1 if percent else 0,
        percent=percent,
    )


@dataclass(slots=True)
class Alignment:
    """Levels of the pairs placed, in all and while the cluster was nearly full; `best` got the best level of
    their node."""

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
    cluster: MachineCluster,
    trace: Trace,
    events: Sequence[Event],
    *,
    clock: Clock,
    on_progress: Progress = lambda _done, _of: None,
) -> Alignment:
    """Apply the events."""
    found = Alignment()
    held: dict[int, PodPlacement] = {}
    allocated = 0
    for number, event in enumerate(events):
        if number % 512 == 0:
            on_progress(number, len(events))
        if not event.arrives:
            gone = held.pop(event.instance, None)
            if gone is not None:
                cluster.release(gone)
                allocated -= gone.request.share
            continue
        before = clock()
        placement = cluster.place(trace.requests[event.instance])
        found.decisions.append(clock() - before)
        found.arrivals += 1
        if placement is None:
            found.refused += 1
            continue
        if placement.level is not None:
            found.levels[placement.level] += 1
            found.when_full[placement.level] += allocated >= NEARLY_FULL * cluster.capacity
            found.best += placement.level == placement.best
        held[event.instance] = placement
        allocated += placement.request.share
        found.most_allocated = max(found.most_allocated, allocated / cluster.capacity)
    found.allocated = allocated / cluster.capacity
    return found

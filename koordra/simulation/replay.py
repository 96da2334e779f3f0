"""The FGD experiment: pods arrive in random order at a cluster that is filled beyond its capacity; each is
tried once.

Order: pods by name, shuffled with the seed. If they ask for more than `tune_ratio` times the GPU capacity,
random pods are removed; if less, random pods are drawn again and appended, until the next would pass it. No
departures, no retries.

The arrival ratio of an event is the GPU share asked for so far per capacity, rounded to a percent. What is
reported at 100 or 130 % is the mean over the events of that percent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from koordra.api.names import DEFAULT_POLICY
from koordra.errors import PlanError
from koordra.placement.free_amounts.state import WHOLE, FreeAmounts, MachineType, Request
from koordra.placement.policy.workload import Online, Workload
from koordra.placement.policy.workload_table import LearnedTable
from koordra.simulation.baseline_policies import (
    SCORES,
    BaselinePolicy,
    Fgd,
    Target,
    fragmented,
    place_randomly,
)
from koordra.simulation.fleet import Fleet, FleetPlacement, Policy
from koordra.simulation.learning import FleetExpectedWaste, capacity_of
from koordra.simulation.openb import TraceNode, TracePod

NAMES: Final = (*SCORES, "fgd", DEFAULT_POLICY)
"""Of policies."""

Clock = Callable[[], int]
Progress = Callable[[int, int], None]
"""Called with the number of requests done and their total."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of a trace as the fleet sees them."""

    kinds: tuple[MachineType, ...]
    nodes: tuple[FreeAmounts, ...]

    @property
    def capacity(self) -> int:
        """Thousandths of GPU."""
        return sum(sum(state.gpus) for state in self.nodes)


def cluster_of(nodes: Sequence[TraceNode], *, scale: int = 1) -> Cluster:
    """`scale` copies of the list, one after the other."""
    kinds: dict[MachineType, int] = {}
    states = []
    for node in nodes:
        kind = kinds.setdefault(MachineType(node.model, node.gpus), len(kinds))
        states.append(FreeAmounts(kind, node.cpu, node.memory, (WHOLE,) * node.gpus))
    return Cluster(tuple(kinds), tuple(states) * scale)


def shuffled(nodes: Sequence[FreeAmounts], generator: np.random.Generator) -> list[FreeAmounts]:
    """The order in which ties are broken: fixed for a run, and no property of the list."""
    return [nodes[int(at)] for at in generator.permutation(len(nodes))]


def arrivals(
    pods: Sequence[TracePod],
    capacity: int,
    *,
    generator: np.random.Generator,
    tune_ratio: float = 1.3,
    scale: int = 1,
) -> list[Request]:
    """The requests in order of arrival."""
    ordered = [pod.request for pod in sorted(pods, key=lambda pod: pod.name)]
    found = [ordered[int(at)] for _ in range(scale) for at in generator.permutation(len(ordered))]
    limit = round(tune_ratio * capacity)
    requested = sum(request.share for request in found)
    if not any(request.share for request in ordered):
        return found
    if requested > limit:
        order = generator.permutation(len(found))
        gone: set[int] = set()
        for at in order:
            if requested <= limit:
                break
            requested -= found[int(at)].share
            gone.add(int(at))
        return [request for at, request in enumerate(found) if at not in gone]
    while True:
        for at in generator.integers(len(ordered), size=1024):
            request = ordered[int(at)]
            if requested + request.share > limit:
                return found
            requested += request.share
            found.append(request)


@dataclass(slots=True)
class Curve:
    """By percent of arrivals: sums over its events, of which the report takes the mean.

    `fragmented` holds (sum, samples): the first event of each percent, and every eighth of those at 100 %.
    """

    events: Counter[int] = field(default_factory=Counter)
    allocated: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    fragmented: dict[int, tuple[float, int]] = field(default_factory=dict)

    def percent_allocated(self, at: int) -> float | None:
        near = _near(self.events, at)
        return None if near is None else 100 * self.allocated[near] / self.events[near]

    def percent_fragmented(self, at: int) -> float | None:
        near = _near(self.fragmented, at)
        return None if near is None else 100 * self.fragmented[near][0] / self.fragmented[near][1]


_COARSE = 5
"""A small cluster jumps several percent with one pod; the last event so many percent before counts."""


def _near(values: Mapping[int, object], at: int) -> int | None:
    return next((percent for percent in range(at, at - _COARSE - 1, -1) if percent in values), None)


@dataclass(slots=True)
class Run:
    """One replay. Times are nanoseconds of the decisions alone (choose and take)."""

    arrivals: int
    curve: Curve
    decisions: list[int]


def run(
    fleet: Fleet,
    requests: Sequence[Request],
    capacity: int,
    *,
    clock: Clock,
    place: Callable[[Request], FleetPlacement | None] | None = None,
    fragmentation: Callable[[Fleet], float] | None = None,
    on_progress: Progress = lambda _done, _of: None,
) -> Run:
    """Replay the requests. `fragmentation` is computed outside the times; `on_progress` is called once per
    percent."""
    place = place or fleet.place
    curve = Curve()
    spent: list[int] = []
    requested = allocated = 0
    percent = -1
    for number, request in enumerate(requests):
        before = clock()
        placement = place(request)
        spent.append(clock() - before)
        requested += request.share
        if placement is not None:
            allocated += request.share
        now = round(100 * requested / capacity)
        curve.events[now] += 1
        curve.allocated[now] += allocated / capacity
        if fragmentation is not None and (now != percent or (now == 100 and number % 8 == 0)):
            total, samples = curve.fragmented.get(now, (0.0, 0))
            curve.fragmented[now] = total + fragmentation(fleet) / capacity, samples + 1
        if now != percent:
            percent = now
            on_progress(number, len(requests))
    return Run(len(requests), curve, spent)


def decision_us(decisions: Sequence[int]) -> dict[str, float | None]:
    """Percentiles of decision times, given in nanoseconds."""
    if not decisions:
        return {"p50": None, "p99": None, "max": None}
    spent = np.array(decisions) / 1000
    p50, p99, most = (round(float(value), 2) for value in (*np.percentile(spent, (50, 99)), spent.max()))
    return {"p50": p50, "p99": p99, "max": most}


def policy_named(
    name: str, kinds: Sequence[MachineType], workload: Workload, table: LearnedTable | None = None
) -> Policy:
    """A fresh policy; `table` is what `koordra` knows. Raises PlanError for an unknown name."""
    if name in SCORES:
        return BaselinePolicy(SCORES[name])
    if name not in NAMES:
        raise PlanError(f"{name!r} is not a policy; policies are {', '.join(NAMES)}")
    return Fgd(Target(workload.popular(), kinds)) if name == "fgd" else FleetExpectedWaste(kinds, table)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`table` is what `koordra` knows at the start, None for nothing; `unknown`: it learns from arrivals."""

    cluster: Cluster
    pods: Sequence[TracePod]
    workload: Workload
    table: LearnedTable | None = None
    unknown: bool = False
    tune_ratio: float = 1.3
    scale: int = 1

    def replay(
        self,
        name: str,
        generator: np.random.Generator,
        *,
        clock: Clock,
        on_progress: Progress = lambda _done, _of: None,
    ) -> Run:
        """Order and ties come from the generator."""
        cluster, target = self.cluster, Target(self.workload.popular(), self.cluster.kinds)
        requests = arrivals(
            self.pods, cluster.capacity, generator=generator, tune_ratio=self.tune_ratio, scale=self.scale
        )
        policy = policy_named(name, cluster.kinds, self.workload, self.table)
        fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), policy)
        online = Online(capacity_of(cluster.kinds, cluster.nodes))

        def place(request: Request) -> FleetPlacement | None:
            if name == "random":
                return place_randomly(fleet, request, generator)
            if self.unknown and isinstance(policy, FleetExpectedWaste):
                table = online.observe(request)
                if table is not None:
                    policy.learn(table)
                    fleet.policy_changed()
            return fleet.place(request)

        return run(
            fleet,
            requests,
            cluster.capacity,
            clock=clock,
            place=place,
            fragmentation=lambda now: fragmented(now, target),
            on_progress=on_progress,
        )

"""One replay of a list of pods under a policy by name: what `koordra replay` and the benchmarks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from koordra.allocator.fleet.experiment import Clock, Cluster, Run, arrivals, run, shuffled
from koordra.allocator.fleet.fleet import Fleet, Placement
from koordra.allocator.fleet.fragmentation import fragmented
from koordra.allocator.fleet.learning import Online, capacity_of
from koordra.allocator.fleet.leftover import ExpectedLeftover
from koordra.allocator.fleet.policies import policy_named
from koordra.allocator.fleet.published import anywhere
from koordra.allocator.fleet.states import Request
from koordra.allocator.fleet.table import Table
from koordra.allocator.fleet.trace import TracePod
from koordra.allocator.fleet.workload import Workload

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """`table` is what `koordra` knows at the start, None for nothing; `unknown`: it learns from what arrives."""

    cluster: Cluster
    pods: Sequence[TracePod]
    workload: Workload
    table: Table | None = None
    unknown: bool = False
    tune_ratio: float = 1.3
    scale: int = 1

    def replay(
        self,
        name: str,
        generator: np.random.Generator,
        *,
        clock: Clock,
        told: Told = lambda _done, _of: None,
    ) -> Run:
        """Order and ties come from the generator."""
        cluster, target = self.cluster, self.workload.popular()
        requests = arrivals(
            self.pods, cluster.capacity, generator=generator, tune_ratio=self.tune_ratio, scale=self.scale
        )
        policy = policy_named(name, self.workload, self.table)
        fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), policy)
        if not self.unknown:
            fleet.expect(request for request, _ in self.workload.ordered())
        return run(
            fleet,
            requests,
            cluster.capacity,
            clock=clock,
            place=self._placing(fleet, generator),
            fragmentation=lambda now: fragmented(now, target),
            told=told,
        )

    def _placing(
        self, fleet: Fleet, generator: np.random.Generator
    ) -> Callable[[Request], Placement | None] | None:
        """How a request is placed where the fleet does not do it alone: at random, or while learning."""
        policy = fleet.policy
        if policy.name == "random":
            return lambda request: anywhere(fleet, request, generator)
        if not isinstance(policy, ExpectedLeftover) or not self.unknown:
            return None
        online = Online(policy, capacity_of(self.cluster.kinds, self.cluster.nodes))

        def place(request: Request) -> Placement | None:
            if online.heard(request):
                fleet.tables_changed()
            return fleet.place(request)

        return place

"""A better table for the policy `koordra`: learned by replaying the workload.

Streams drawn from the counts, of 100 % of the capacity, are placed on an empty fleet by the policy itself; every free share that a GPU
passed through votes with what the GPU had left in the end, five votes go to the value at once (`workload_learning.expected`). Half of
the result is mixed in per round; the mean of the last rounds is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from koordra.placement.free_amounts.state import WHOLE, Kind, Request, State
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import expected
from koordra.placement.policy.workload_table import STEP, STEPS, LearnedTable
from koordra.simulation.fleet import Fleet
from koordra.simulation.fleet_expected_waste import FleetExpectedWaste

_VOTES = 5
_Votes = np.ndarray[tuple[int], np.dtype[np.float64]]


def capacity_of(kinds: Sequence[Kind], nodes: Sequence[State]) -> dict[str, int]:
    """GPUs by model."""
    found: dict[str, int] = {}
    for state in nodes:
        kind = kinds[state.kind]
        found[kind.model] = found.get(kind.model, 0) + kind.gpus
    return dict(sorted(found.items()))


def replayed(
    workload: Workload,
    kinds: Sequence[Kind],
    nodes: Sequence[State],
    *,
    rounds: int = 12,
    streams: int = 4,
    generators: Callable[[int], np.random.Generator],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> LearnedTable:
    """The table by replaying on empty `nodes`. `generators(i)` makes the i-th stream's randomness; `progress` is
    called with the number of streams done and of all."""
    table = expected(workload, capacity_of(kinds, nodes))
    first = np.array(table.holes, dtype=np.float64)
    hole, late = first.copy(), []
    drawn = [_stream(workload, nodes, generators(number)) for number in range(streams)]
    for round_number in range(rounds):
        sums, visits = _VOTES * first, np.full(len(first), float(_VOTES))
        for number, stream in enumerate(drawn):
            progress(round_number * streams + number, rounds * streams)
            policy = FleetExpectedWaste(kinds, replace(table, holes=tuple(int(value) for value in hole)))
            _vote(Fleet(kinds, nodes, policy), stream, sums, visits)
        hole = 0.5 * hole + 0.5 * sums / visits
        if round_number >= rounds // 2:
            late.append(hole)
    return replace(table, holes=tuple(int(value) for value in np.mean(late, axis=0)))


def _stream(workload: Workload, nodes: Sequence[State], generator: np.random.Generator) -> list[Request]:
    """Requests drawn by their counts until they ask for the fleet's capacity."""
    counted = workload.ordered()
    parts = np.array([count for _, count in counted], dtype=np.float64)
    capacity = sum(sum(state.gpus) for state in nodes)
    found: list[Request] = []
    asked = 0
    while asked < capacity:
        for at in generator.choice(len(counted), size=256, p=parts / parts.sum()):
            request = counted[int(at)][0]
            asked += request.share
            if asked > capacity:
                break
            found.append(request)
    return found


def _vote(fleet: Fleet, stream: Sequence[Request], sums: _Votes, visits: _Votes) -> None:
    """Place the stream; each free share that a GPU passed through votes with what was left in the end."""
    passed: dict[tuple[int, int], list[int]] = {}
    for request in stream:
        placement = fleet.place(request)
        if placement is None:
            continue
        left = fleet.nodes[placement.node].gpus
        for gpu in placement.gpus:
            passed.setdefault((placement.node, gpu), [WHOLE // STEP]).append(left[gpu] // STEP)
    untouched = sum(len(state.gpus) for state in fleet.nodes) - len(passed)
    sums[STEPS] += untouched * WHOLE * 1000
    visits[STEPS] += untouched
    for steps in passed.values():
        end = steps[-1] * STEP * 1000
        for step in steps:
            sums[step] += end
            visits[step] += 1

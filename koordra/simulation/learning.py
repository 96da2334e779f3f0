"""The policy `koordra` on a fleet: the terms of `placement.policy.expected_waste` that nodes of a trace have,
over all nodes at once.

The key is 1024 * cost + what is left on the chosen GPU (ties: smallest leftover). Inside a node the GPU with
the least waste and leftover is taken, one that nobody uses yet only if that is better by what B loses; among
equal ones the first.

`replayed` learns a better table for it by replaying the workload. Streams drawn from the counts, of 100 % of
the capacity, are placed on an empty fleet by the policy itself; every free share that a GPU passed through
votes with what the GPU had left in the end, five votes go to the value at once (`workload.expected`). Half of
the result is mixed in per round; the mean of the last rounds is the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from koordra.placement.free_amounts.state import WHOLE, FreeAmounts, MachineType, Request
from koordra.placement.policy import expected_waste as terms
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import MILLION, STEP, STEPS, LearnedTable
from koordra.simulation.fleet import INFEASIBLE, SHARE, Fleet, Ints, tag

_VOTES = 5
_Votes = np.ndarray[tuple[int], np.dtype[np.float64]]


def capacity_of(kinds: Sequence[MachineType], nodes: Sequence[FreeAmounts]) -> dict[str, int]:
    """GPUs by model."""
    found = Counter[str]()
    for state in nodes:
        found[kinds[state.kind].model] += kinds[state.kind].gpus
    return dict(sorted(found.items()))


def replayed(
    workload: Workload,
    kinds: Sequence[MachineType],
    nodes: Sequence[FreeAmounts],
    *,
    rounds: int = 12,
    streams: int = 4,
    generators: Callable[[int], np.random.Generator],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> LearnedTable:
    """The table by replaying on empty `nodes`. `generators(i)` makes the i-th stream's randomness; `progress`
    is called with the number of streams done and of all."""
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


def _stream(
    workload: Workload, nodes: Sequence[FreeAmounts], generator: np.random.Generator
) -> list[Request]:
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


_LEFT_BITS: Final = 10
_MICRO: Final = 1000


class FleetExpectedWaste:
    """See the module; before anything was learned the cost is U/100, which is best fit."""

    def __init__(self, kinds: Sequence[MachineType], table: LearnedTable | None = None) -> None:
        self._kinds = kinds
        self.learn(table or LearnedTable())

    def learn(self, table: LearnedTable) -> None:
        """The fleet is to be told (`Fleet.policy_changed`)."""
        self.table = table
        self._hole = table.hole
        self._waste = waste = terms.ExpectedWaste(table)
        self._lone = terms.BLOCKS * waste.blocks.value_of_one
        self._reserve = np.array([table.reserved.get(kind.model, 0) for kind in self._kinds], dtype=np.int64)
        # Which kinds of nodes each block may run on.
        self._allowed = [
            np.array([not block.models or kind.model in block.models for kind in self._kinds])
            for block in waste.blocks.blocks
        ]

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        if tag(request) == SHARE:
            return (int(self._shares(fleet.gpus[node], request).argmin()),)
        return tuple(fleet.fitting(node, request)[: request.gpus])

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        gpus, cpu, memory, kind = fleet.gpus[at], fleet.cpu[at], fleet.memory[at], fleet.kind[at]
        free = np.maximum(gpus, 0)
        rest, unused = _MICRO * free.sum(axis=1), (gpus == WHOLE).sum(axis=1)
        usable = rest - self._hole[free].sum(axis=1)
        left = np.zeros(len(at), dtype=np.int64)
        lost: Ints = left + request.gpus * (_MICRO * WHOLE - int(self._hole[WHOLE] - self._hole[0]))
        broken: Ints = left + request.gpus
        if tag(request) == SHARE:
            chosen = self._shares(gpus, request).argmin(axis=1)[:, None]
            before = np.take_along_axis(free, chosen, axis=1)[:, 0]
            left = np.maximum(before - request.milli, 0)
            lost = _MICRO * request.milli + self._hole[left] - self._hole[before]
            broken = (before == WHOLE).astype(np.int64)

        def lacking(usable: Ints, cpu: Ints, memory: Ints) -> Ints:
            cores, host = self._waste.cores, self._waste.memory
            return np.maximum(_stranded(cores, usable, cpu), _stranded(host, usable, memory))

        cost = (terms.HOLES - terms.PACKING) * lost + terms.PACKING * usable
        cost -= terms.HOLES * _MICRO * request.share
        cost += terms.RESERVED * request.share * self._reserve[kind]
        cost += terms.LACKING * (
            lacking(usable - lost, cpu - request.cpu, memory - request.memory) - lacking(usable, cpu, memory)
        )
        then = self._lost(rest - _MICRO * request.share, unused - broken, cpu - request.cpu, kind)
        cost += terms.BLOCKS * (then - self._lost(rest, unused, cpu, kind))
        found: Ints = (cost + terms.UNIT // 2) // terms.UNIT << _LEFT_BITS | left
        return found

    def _lost(self, rest: Ints, unused: Ints, cpu: Ints, kind: Ints) -> Ints:
        """`MultiGpuFragmentation.one`, element by element."""
        blocks, fitting = self._waste.blocks, np.zeros_like(rest)
        for block, allowed in zip(blocks.blocks, self._allowed, strict=True):
            fitting += block.part * ((unused >= block.gpus) & (cpu >= block.cpu) & allowed[kind])
        found: Ints = (blocks.total * rest - terms.UNIT * unused * fitting) // MILLION
        return found

    def _shares(self, gpus: Ints, request: Request) -> Ints:
        """What a share costs on each GPU, and what it leaves there."""
        left = np.maximum(gpus - request.milli, 0)
        waste = (terms.HOLES - terms.PACKING) * (self._hole[left] - self._hole[np.maximum(gpus, 0)])
        waste += self._lone * (gpus == WHOLE)
        found: Ints = np.where(gpus >= request.milli, waste << _LEFT_BITS | left, INFEASIBLE)
        return found


def _stranded(of: terms.StrandedCapacity, usable: Ints, free: Ints) -> Ints:
    """`StrandedCapacity.one`, element by element."""
    enough = np.searchsorted(of.per_gpu, free * MILLION // np.maximum(usable, 1), side="right")
    found: Ints = usable * np.array(of.gpu)[enough] - free * np.array(of.other)[enough]
    return np.maximum(found, 0) // MILLION

"""The policy `koordra` on a fleet: the terms of `placement.policy.expected_waste` that nodes of a trace have, over all nodes at once.

The key is 1024 * cost + what is left on the chosen GPU (ties: smallest leftover). Inside a node the GPU with the least waste and leftover
is taken, one that nobody uses yet only if that is better by what B loses; among equal ones the first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from koordra.allocator.score import DEFAULT_POLICY
from koordra.placement.free_amounts.state import WHOLE, Kind, Request
from koordra.placement.policy import expected_waste as terms
from koordra.placement.policy.workload_table import MILLION, LearnedTable
from koordra.simulation.fleet import INFEASIBLE, Fleet, Ints

_LEFT_BITS: Final = 10
_MICRO: Final = 1000


class FleetExpectedWaste:
    """See the module; before anything was learned the cost is U/100, which is best fit."""

    name = DEFAULT_POLICY

    def __init__(self, kinds: Sequence[Kind], table: LearnedTable | None = None) -> None:
        self._kinds = kinds
        self.learn(table or LearnedTable())

    def learn(self, table: LearnedTable) -> None:
        """The fleet is to be told (`Fleet.policy_changed`)."""
        self.table = table
        self._hole = table.hole
        waste = terms.ExpectedWaste(table)
        self._stranded = [_Stranded(waste.cores), _Stranded(waste.memory)]
        self._blocks = _Blocks(waste.blocks, self._kinds) if waste.blocks else None
        self._lone = terms.BLOCKS * waste.blocks.value_of_one
        self._reserve = np.array([table.reserved.get(kind.model, 0) for kind in self._kinds], dtype=np.int64)

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        if request.gpus == 1 and request.milli < WHOLE:
            return (int(self._shares(fleet.gpus[node], request).argmin()),)
        unused = [at for at, free in enumerate(fleet.nodes[node].gpus) if free >= request.milli]
        return tuple(unused[: request.gpus])

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        gpus, cpu, memory, kind = fleet.gpus[at], fleet.cpu[at], fleet.memory[at], fleet.kind[at]
        free = np.maximum(gpus, 0)
        rest, unused = _MICRO * free.sum(axis=1), (gpus == WHOLE).sum(axis=1)
        usable = rest - self._hole[free].sum(axis=1)
        left = np.zeros(len(at), dtype=np.int64)
        lost: Ints = left + request.gpus * (_MICRO * WHOLE - int(self._hole[WHOLE] - self._hole[0]))
        broken: Ints = left + request.gpus
        if request.gpus == 1 and request.milli < WHOLE:
            chosen = self._shares(gpus, request).argmin(axis=1)[:, None]
            before = np.take_along_axis(free, chosen, axis=1)[:, 0]
            left = np.maximum(before - request.milli, 0)
            lost = _MICRO * request.milli + self._hole[left] - self._hole[before]
            broken = (before == WHOLE).astype(np.int64)
        cost = (terms.HOLES - terms.PACKING) * lost + terms.PACKING * usable
        cost -= terms.HOLES * _MICRO * request.share
        cost += terms.RESERVED * request.share * self._reserve[kind]
        cost += terms.LACKING * (
            self._lacking(usable - lost, cpu - request.cpu, memory - request.memory)
            - self._lacking(usable, cpu, memory)
        )
        if self._blocks is not None:
            then = self._blocks.of(rest - _MICRO * request.share, unused - broken, cpu - request.cpu, kind)
            cost += terms.BLOCKS * (then - self._blocks.of(rest, unused, cpu, kind))
        found: Ints = (cost + terms.UNIT // 2) // terms.UNIT << _LEFT_BITS | left
        return found

    def _shares(self, gpus: Ints, request: Request) -> Ints:
        """What a share costs on each GPU, and what it leaves there."""
        left = np.maximum(gpus - request.milli, 0)
        waste = (terms.HOLES - terms.PACKING) * (self._hole[left] - self._hole[np.maximum(gpus, 0)])
        waste += self._lone * (gpus == WHOLE)
        found: Ints = np.where(gpus >= request.milli, waste << _LEFT_BITS | left, INFEASIBLE)
        return found

    def _lacking(self, usable: Ints, cpu: Ints, memory: Ints) -> Ints:
        cores, host = self._stranded
        found: Ints = np.maximum(cores.of(usable, cpu), host.of(usable, memory))
        return found


class _Stranded:
    """`StrandedCapacity` element by element."""

    def __init__(self, of: terms.StrandedCapacity) -> None:
        self._per_gpu = np.array(of.per_gpu, dtype=np.int64)
        self._gpu, self._other = np.array(of.gpu, dtype=np.int64), np.array(of.other, dtype=np.int64)

    def of(self, usable: Ints, free: Ints) -> Ints:
        enough = self._per_gpu.searchsorted(free * MILLION // np.maximum(usable, 1), side="right")
        found: Ints = np.maximum(usable * self._gpu[enough] - free * self._other[enough], 0) // MILLION
        return found


class _Blocks:
    """`MultiGpuFragmentation` element by element: Q by kind, free whole GPUs, and how many of the classes' cores are there."""

    def __init__(self, of: terms.MultiGpuFragmentation, kinds: Sequence[Kind]) -> None:
        cores = sorted({block.cpu for block in of.blocks})
        self._cores, self._total = np.array(cores, dtype=np.int64), of.total
        self._most = max(block.gpus for block in of.blocks)
        self._fitting = np.zeros((len(kinds), self._most + 1, len(cores) + 1), dtype=np.int64)
        for number, kind in enumerate(kinds):
            for block in of.blocks:
                if not block.models or kind.model in block.models:
                    self._fitting[number, block.gpus :, bisect_right(cores, block.cpu) :] += block.part

    def of(self, rest: Ints, unused: Ints, cpu: Ints, kind: Ints) -> Ints:
        reached = self._cores.searchsorted(cpu, side="right")
        fitting = self._fitting[kind, np.minimum(np.maximum(unused, 0), self._most), reached]
        found: Ints = (self._total * rest - terms.UNIT * unused * fitting) // MILLION
        return found

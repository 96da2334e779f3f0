"""FGD's fragmentation over classes of several GPUs: free GPU that is of no use to them.

A class j of k_j GPUs and c_j cores can use a node's free whole GPUs if there are k_j of them, the cores suffice and the model
is allowed; everything else that is free is lost to it. With p_j its part of the pods

    B = sum_j p_j * (R - [fits] * 1000 * free) = (sum_j p_j) * R - 1000 * free * Q(free, C, model)

where Q sums p_j over the classes that fit: a table by number of free GPUs and by how many of the c_j the cores reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from koordra.allocator.fleet.columns import Ints
from koordra.allocator.fleet.states import State
from koordra.allocator.fleet.table import MILLION, Block

_GPU = 1_000_000
"""Millionths of a GPU."""


class Blocks:
    def __init__(self, blocks: Sequence[Block], models: Sequence[str]) -> None:
        self._listed = sorted({block.cpu for block in blocks})
        self._cores = np.array(self._listed, dtype=np.int64)
        self._total = sum(block.part for block in blocks)
        most = max((block.gpus for block in blocks), default=0)
        self.most = most
        self._fitting = np.zeros((len(models), most + 1, len(self._listed) + 1), dtype=np.int64)
        for kind, model in enumerate(models):
            for block in blocks:
                if not block.models or model in block.models:
                    reached = bisect_right(self._listed, block.cpu)
                    self._fitting[kind, block.gpus :, reached:] += block.part

    def __bool__(self) -> bool:
        return bool(self._listed)

    @property
    def value_of_one(self) -> int:
        """What breaking into one more GPU can cost, in thousandths of a milli-GPU."""
        return _GPU * self._total // MILLION

    def one(self, rest: int, free: int, state: State) -> int:
        reached = bisect_right(self._listed, state.cpu)
        fitting = int(self._fitting[state.kind, min(free, self.most), reached])
        return (self._total * rest - _GPU * free * fitting) // MILLION

    def many(self, rest: Ints | int, free: Ints, cpu: Ints, kind: Ints | int) -> Ints:
        reached = self._cores.searchsorted(cpu, side="right")
        fitting = self._fitting[kind, np.minimum(free, self.most), reached]
        found: Ints = (self._total * rest - _GPU * free * fitting) // MILLION
        return found

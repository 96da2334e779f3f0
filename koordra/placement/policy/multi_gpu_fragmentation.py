"""FGD's fragmentation over classes of several GPUs: free GPU that is of no use to them.

A class j of k_j GPUs and c_j cores can use a node's free whole GPUs if there are k_j of them, the cores suffice and the model
is allowed; everything else that is free is lost to it. With p_j its part of the pods

    B = sum_j p_j * (R - [fits] * 1000 * free) = (sum_j p_j) * R - 1000 * free * Q(free, C, model)

where Q sums p_j over the classes that fit: a table by number of free GPUs and by how many of the c_j the cores reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from koordra.placement.columns.arrays import Ints
from koordra.placement.columns.state import State
from koordra.placement.policy.workload_table import MILLION, Block

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
        self._flat = self._fitting.ravel()
        self._fitting_listed: list[list[list[int]]] = self._fitting.tolist()

    def __bool__(self) -> bool:
        return bool(self._listed)

    @property
    def value_of_one(self) -> int:
        """What breaking into one more GPU can cost, in thousandths of a milli-GPU."""
        return _GPU * self._total // MILLION

    def one(self, rest: int, free: int, state: State) -> int:
        reached = bisect_right(self._listed, state.cpu)
        fitting = self._fitting_listed[state.kind][min(free, self.most)][reached]
        return (self._total * rest - _GPU * free * fitting) // MILLION

    def devices(self, rest: Ints, free: Ints, kind: Ints | int) -> BlocksOfDevices:
        """What does not depend on the cores, element by element."""
        row = (kind * self._fitting.shape[1] + np.minimum(free, self.most)) * self._fitting.shape[2]
        return BlocksOfDevices(self._total * rest, _GPU * free, row)

    def many(self, devices: BlocksOfDevices, cpu: Ints) -> Ints:
        """Element by element."""
        reached = self._cores.searchsorted(cpu, side="right")
        reached += devices.row
        found: Ints = self._flat.take(reached)
        found *= devices.free
        np.subtract(devices.rest, found, out=found)
        found //= MILLION
        return found


class BlocksOfDevices(NamedTuple):
    """B's parts: the classes' part of what is free, free whole GPUs, and where in the table of fitting classes to look."""

    rest: Ints
    free: Ints
    row: Ints

    def since(self, start: int) -> BlocksOfDevices:
        return BlocksOfDevices(self.rest[start:], self.free[start:], self.row[start:])

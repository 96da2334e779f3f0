"""Usable GPU that will lack something else: cores, memory, or a NIC's bandwidth beside it.

    lacking(U, C) = sum over demands j of part_j * max(0, U - C / q_j)

U is usable GPU, C what is free of the other resource, q_j how much of it demand j wants per GPU. With the demands in the order
of q, those that lack are the ones with U * q_j > C: the upper end. So with sums over upper ends, made once,

    lacking(U, C) = U * A[k] - C * B[k],   k = number of demands with q_j <= C / U

All in whole numbers: U and the result in millionths of a GPU, C in the units of q_j.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from koordra.placement.columns.arrays import Ints
from koordra.placement.policy.workload_table import MILLION, Demand


class StrandedCapacity:
    """The function above for one resource."""

    __slots__ = ("_gpu", "_gpu_listed", "_listed", "_other", "_other_listed", "_per_gpu", "most")

    def __init__(self, demands: Sequence[Demand]) -> None:
        self.most = max((entry.per_gpu for entry in demands), default=0)
        # Who wants a thousandth of what others want never lacks it first; and products stay far below 2^63.
        ordered = sorted(entry for entry in demands if entry.per_gpu * 1000 > self.most and entry.part > 0)
        gpu, other = [0], [0]
        for entry in reversed(ordered):
            gpu.append(gpu[-1] + entry.part)
            other.append(other[-1] + entry.part * MILLION // entry.per_gpu)
        self._listed = [entry.per_gpu for entry in ordered]
        self._per_gpu = np.array(self._listed, dtype=np.int64)
        self._gpu_listed, self._other_listed = gpu[::-1], other[::-1]
        self._gpu = np.array(self._gpu_listed, dtype=np.int64)
        self._other = np.array(self._other_listed, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._listed)

    def many(self, usable: Ints, divisor: Ints, free: Ints) -> Ints:
        """Element by element; `divisor` is `usable`, but at least 1. The result is the caller's."""
        share = free * MILLION
        share //= divisor
        enough = self._per_gpu.searchsorted(share, side="right")
        found: Ints = self._gpu.take(enough)
        found *= usable
        other: Ints = self._other.take(enough)
        other *= free
        found -= other
        np.maximum(found, 0, out=found)
        found //= MILLION
        return found

    def one(self, usable: int, free: int) -> int:
        if usable <= 0 or not self._listed:
            return 0
        enough = bisect_right(self._listed, free * MILLION // usable)
        return max(0, usable * self._gpu_listed[enough] - free * self._other_listed[enough]) // MILLION

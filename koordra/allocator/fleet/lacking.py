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

from koordra.allocator.fleet.columns import Ints
from koordra.allocator.fleet.table import MILLION, Demand


class Lacking:
    """The function above for one resource."""

    __slots__ = ("_gpu", "_listed", "_other", "_per_gpu", "most")

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
        self._gpu = np.array(gpu[::-1], dtype=np.int64)
        self._other = np.array(other[::-1], dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._listed)

    def many(self, usable: Ints, free: Ints) -> Ints:
        """Element by element."""
        enough = self._per_gpu.searchsorted(free * MILLION // np.maximum(usable, 1), side="right")
        found: Ints = np.maximum(usable * self._gpu[enough] - free * self._other[enough], 0) // MILLION
        return found

    def one(self, usable: int, free: int) -> int:
        if usable <= 0 or not self._listed:
            return 0
        enough = bisect_right(self._listed, free * MILLION // usable)
        return max(0, usable * int(self._gpu[enough]) - free * int(self._other[enough])) // MILLION

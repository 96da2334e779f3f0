"""Whether pods may have room, by counting: of every size, no more pieces than there are rooms of that size.

GPU shares, NIC shares, and sets of whole GPUs on one node are counted each for itself. Too little room is certain; enough is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from koordra.placement.columns.state import WHOLE, Request, State


class Room:
    """What is free on these nodes, by size."""

    def __init__(self, nodes: Sequence[State | None]) -> None:
        self._nodes = nodes
        self._gpus: Counter[int] = Counter()
        self._nics: Counter[int] = Counter()
        self._whole: Counter[int] = Counter()
        for state in nodes:
            if state is not None:
                self._count(state, 1)

    def suffices(self, touched: Mapping[int, State], requests: Sequence[Request]) -> bool:
        """Whether there may be room, with these nodes as they are now; False is certain."""
        for node, state in touched.items():
            before = self._nodes[node]
            assert before is not None
            self._count(before, -1)
            self._count(state, 1)
        found = (
            _pieces_fit(self._gpus, [(one.milli, one.gpus) for one in requests if one.gpus])
            and _pieces_fit(self._nics, [(one.percent, one.nics) for one in requests if one.nics])
            and _pieces_fit(
                self._whole, [(one.gpus, 1) for one in requests if one.gpus > 1 and one.milli == WHOLE]
            )
        )
        for node, state in touched.items():
            before = self._nodes[node]
            assert before is not None
            self._count(state, -1)
            self._count(before, 1)
        return found

    def _count(self, state: State, times: int) -> None:
        for free in state.gpus:
            self._gpus[free] += times
        for free in state.nics:
            self._nics[free] += times
        self._whole[sum(free == WHOLE for free in state.gpus)] += times


def _pieces_fit(free: Mapping[int, int], wanted: Sequence[tuple[int, int]]) -> bool:
    """Of every size asked for: no more pieces as large or larger than there are rooms of that size."""
    for size in {size for size, _ in wanted if size}:
        pieces = sum(count for other, count in wanted if other >= size)
        if pieces > sum(count * (amount // size) for amount, count in free.items()):
            return False
    return True

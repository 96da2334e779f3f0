"""First fit, blind to topology: the first node with enough of everything, its first GPUs, its first NICs.

What clusters do whose scheduler counts devices and knows no distances; reported beside `koordra`'s alignment.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from koordra.placement.columns.arrays import INFEASIBLE, Classes, Ints, Keys, Slots, accepts, fits
from koordra.placement.columns.state import Choice, Request, State
from koordra.topology.machine_shape import pair_level

NAME: Final = "first-fit"


class FirstFit:
    name = NAME
    sorts = False
    cuts = False

    def start(self, slots: Slots, classes: Classes) -> None:
        self.slots, self.classes = slots, classes

    def enter(self, slot: int) -> None:
        """Nothing is kept per state."""

    def column(self, slot: int, start: int) -> Keys:
        requests = self.classes.requests[start:]
        return np.array([self._key(slot, request) for request in requests], dtype=np.int64)

    def row(self, slots: Ints, number: int) -> Keys:
        request = self.classes.requests[number]
        return np.array([self._key(int(slot), request) for slot in slots], dtype=np.int64)

    def choose(self, state: State, request: Request) -> Choice:
        gpus = tuple(at for at, free in enumerate(state.gpus) if free >= request.milli)[: request.gpus]
        nics = tuple(at for at, free in enumerate(state.nics) if free >= request.percent)[: request.nics]
        shape = self.classes.kinds[state.kind].shape
        level = pair_level(shape, _mask(gpus), _mask(nics)) if shape is not None else None
        return Choice(gpus, nics, int(level or 0))

    def _key(self, slot: int, request: Request) -> int:
        state = self.slots.states[slot]
        assert state is not None
        enough = sum(free >= request.percent for free in state.nics) >= request.nics
        if (
            enough
            and fits(state, request)
            and not request.slices
            and accepts(self.classes.kinds[state.kind], request)
        ):
            return 0
        return INFEASIBLE


def _mask(positions: tuple[int, ...]) -> int:
    return sum(1 << at for at in positions)

"""States and request classes as columns of numbers: what policies compute with.

`Slots` holds one entry per state that some node is in, `Classes` one per request class. Both grow by doubling and never
shrink by themselves; the fleet recycles slots and starts the classes afresh when there are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from koordra.placement.columns.state import DeviceRequestShape, Kind, Request, Slice, State

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INFEASIBLE: Final = 1 << 62
"""The key of a node that cannot take the request; every real key is smaller."""

NOBODY: Final = 1 << 60
"""The first node of a slot that no node is in."""


def grown(array: npt.NDArray[Any], length: int, *, fill: int = 0, axis: int = 0) -> npt.NDArray[Any]:
    """The array with at least `length` entries along the axis, doubled where it was too short."""
    have = array.shape[axis]
    if have >= length:
        return array
    shape = list(array.shape)
    shape[axis] = max(length, 2 * have)
    found = np.full(shape, fill, dtype=array.dtype)
    found[tuple(slice(0, extent) for extent in array.shape)] = array
    return found


class Slots:
    """Columns over the states in use. `gpus` is padded with -1; `first` is the first node in the state."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.width = max([kind.gpus for kind in kinds] + [1])
        self.states: list[State | None] = []
        self.used = 0
        self.cpu = np.zeros(64, dtype=np.int64)
        self.memory = np.zeros(64, dtype=np.int64)
        self.kind = np.zeros(64, dtype=np.int64)
        self.tags = np.zeros(64, dtype=np.int64)
        self.gpus = np.full((64, self.width), -1, dtype=np.int64)
        self.first = np.full(64, NOBODY, dtype=np.int64)

    def write(self, slot: int, state: State) -> None:
        if slot == self.used:
            self._grow(slot + 1)
            self.states.append(state)
            self.used += 1
        self.states[slot] = state
        self.cpu[slot], self.memory[slot] = state.cpu, state.memory
        self.kind[slot], self.tags[slot] = state.kind, state.tags
        count = len(state.gpus)
        self.gpus[slot, :count] = state.gpus
        if count < self.width:
            self.gpus[slot, count:] = -1

    def _grow(self, length: int) -> None:
        if length <= len(self.cpu):
            return
        for name in ("cpu", "memory", "kind", "tags"):
            setattr(self, name, grown(getattr(self, name), length))
        self.gpus = grown(self.gpus, length, fill=-1)
        self.first = grown(self.first, length, fill=NOBODY)


class Classes:
    """Columns over the request classes. `form` numbers what the request wants of the devices.

    `cuts`: whether requests for slices may be served at all.
    """

    def __init__(self, kinds: Sequence[Kind], *, cuts: bool = True) -> None:
        self.kinds = kinds
        self.cuts = cuts
        self.requests: list[Request] = []
        self.forms: list[DeviceRequestShape] = []
        self.index: dict[Request, int] = {}
        self._form_index: dict[DeviceRequestShape, int] = {}
        self.cpu = np.zeros(64, dtype=np.int64)
        self.memory = np.zeros(64, dtype=np.int64)
        self.gpus = np.zeros(64, dtype=np.int64)
        self.milli = np.zeros(64, dtype=np.int64)
        self.share = np.zeros(64, dtype=np.int64)
        self.form = np.zeros(64, dtype=np.int64)
        self.tag = np.zeros(64, dtype=np.int64)
        self.allowed = np.zeros((len(kinds), 64), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request) -> int:
        from koordra.placement.columns.state import tag

        at = len(self.requests)
        if at == len(self.cpu):
            for name in ("cpu", "memory", "gpus", "milli", "share", "form", "tag"):
                setattr(self, name, grown(getattr(self, name), at + 1))
            self.allowed = grown(self.allowed, at + 1, axis=1)
        self.requests.append(request)
        self.index[request] = at
        form = request.form
        if form not in self._form_index:
            self._form_index[form] = len(self.forms)
            self.forms.append(form)
        self.cpu[at], self.memory[at], self.gpus[at] = request.cpu, request.memory, request.gpus
        self.milli[at], self.share[at] = request.milli, request.share
        self.form[at], self.tag[at] = self._form_index[form], tag(request)
        for number, kind in enumerate(self.kinds):
            self.allowed[number, at] = accepts(kind, request) and (self.cuts or not request.slices)
        return at


def accepts(kind: Kind, request: Request) -> bool:
    """Whether nodes of the kind may serve the request at all, by model and profiles."""
    if request.models and kind.model not in request.models:
        return False
    # Slices together with whole cards are left to the search.
    return not request.slices or (not request.gpus and _offers(kind, request.slices))


def _offers(kind: Kind, slices: Sequence[Slice]) -> bool:
    """Whether for each of the slices some card has a place."""
    layouts = {layout for layout in kind.layouts if layout is not None}
    return all(any(layout.places_of(one.profiles) for layout in layouts) for one in slices)


def fits(state: State, request: Request) -> bool:
    """Whether cores, memory and GPUs suffice (NICs are the joint search's)."""
    if state.cpu < request.cpu or state.memory < request.memory:
        return False
    if not request.gpus:
        return True
    return sum(free >= request.milli for free in state.gpus) >= request.gpus

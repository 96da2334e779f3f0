"""The published policies, as the FGD experiment runs them: what `koordra` is measured against.

Scores are 0..100, higher is better; the key is minus the score. C, g_i, R: free milli-cores, free share of GPU i, their sum.

    best-fit        100 * (1 - (C - cpu)/256000 - (R - share)/16000), truncated
    dot-product     100 * (1 - C/128000 * cpu/128000 / 2 - R/8000 * share/8000 / 2), truncated
    gpu-packing     no GPU wanted: 0; idle node: max(33 - free, free); needs k unused GPUs of a node in use: max(50 - k, 33);
                    fits on a GPU in use: max(100 - free percent there / 10, 50)
    gpu-clustering  25 * (8000 - R)/8000, and by sort of pods (share, one GPU, several) on the node: only the same 75, the same
                    among others 50, none 25, only others 0
    random          every node that fits alike

FGD has a module of its own (`fgd`). Which GPU: the fullest that fits (random: any); whole ones from the first on.

Tie-break, implied by the published numbers: the first node of the run's fixed shuffled order, not a random one (for FGD a random
one would cost 5.7 points), and the first GPU. (Best-fit's and dot-product's scores are whole numbers in 0..100, so the published
normalisation to 0..100 afterwards changes no order.)

    first-fit       blind to topology: the first node with enough of everything, its first GPUs, its first NICs; what clusters do
                    whose scheduler counts devices and knows no distances, reported beside `koordra`'s alignment
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from koordra.placement.columns.arrays import INFEASIBLE, Bools, Classes, Ints, Keys, Slots, accepts, fits
from koordra.placement.columns.fleet import Fleet, Placement
from koordra.placement.columns.state import WHOLE, Choice, Request, State
from koordra.topology.machine_shape import pair_level

_CORES: Final = 128_000
_GPUS: Final = 8_000


class View:
    """Some slots against some classes: free resources as (slots, 1), requests as (classes,), GPUs as (slots, 1, width)."""

    def __init__(self, slots: Slots, classes: Classes, at: Ints, which: slice) -> None:
        self.at, self.which, self.classes = at, which, classes
        self.cpu, self.memory = slots.cpu[at][:, None], slots.memory[at][:, None]
        self.gpus = slots.gpus[at][:, None, :]
        self.free = np.maximum(self.gpus, 0)
        self.rest = self.free.sum(axis=2)
        self.there = (self.gpus >= 0).sum(axis=2)
        self.tags = slots.tags[at][:, None]
        self.kind = slots.kind[at]
        self.wanted_cpu, self.wanted_memory = classes.cpu[which], classes.memory[which]
        self.number, self.milli, self.share = classes.gpus[which], classes.milli[which], classes.share[which]
        self.tag = classes.tag[which]

    def fits(self) -> Bools:
        enough = (self.gpus >= self.milli[:, None]).sum(axis=2) >= self.number
        enough &= (self.cpu >= self.wanted_cpu) & (self.memory >= self.wanted_memory)
        enough &= self.classes.allowed[self.kind, self.which]
        found: Bools = enough
        return found

    def fullest(self) -> Ints:
        """Free share of the fullest GPU that fits; meaningless where none does."""
        fitting = np.where(self.gpus >= self.milli[:, None], self.gpus, 2 * WHOLE)
        found: Ints = fitting.min(axis=2)
        return found


class BaselinePolicy:
    """A policy by a score of every pair of slot and class, higher is better. Keys are made afresh from the columns; the order of
    GPUs matters, so states keep it."""

    sorts = False
    cuts = False

    def __init__(self, name: str, score: Callable[[View], Ints]) -> None:
        self.name, self._score = name, score

    def start(self, slots: Slots, classes: Classes) -> None:
        self.slots, self.classes = slots, classes

    def enter(self, slot: int) -> None:
        """Nothing is kept per state."""

    def column(self, slot: int, start: int) -> Keys:
        found: Keys = self._keys(np.array([slot]), slice(start, len(self.classes)))[0]
        return found

    def row(self, slots: Ints, number: int) -> Keys:
        found: Keys = self._keys(slots, slice(number, number + 1))[:, 0]
        return found

    def choose(self, state: State, request: Request) -> Choice:
        fitting = [position for position, free in enumerate(state.gpus) if free >= request.milli]
        if request.gpus == 1:
            # min keeps the first of equal ones.
            return Choice((min(fitting, key=state.gpus.__getitem__),))
        return Choice(tuple(fitting[: request.gpus]) if request.gpus else ())

    def _keys(self, at: Ints, which: slice) -> Keys:
        """Keys of every pair of slot and class."""
        view = View(self.slots, self.classes, at, which)
        return np.where(view.fits(), -self._score(view), INFEASIBLE).astype(np.int64)


def _best_fit(view: View) -> Ints:
    cores, gpus = view.cpu - view.wanted_cpu, view.rest - view.share
    found: Ints = (100 * _CORES - 50 * cores - 50 * (_CORES // _GPUS) * gpus) // _CORES
    return found


def _dot_product(view: View) -> Ints:
    unit = _CORES * _CORES
    product = view.cpu * view.wanted_cpu + (_CORES // _GPUS) ** 2 * view.rest * view.share
    found: Ints = (100 * unit - 50 * product) // unit
    return found


def _gpu_packing(view: View) -> Ints:
    fullest = view.fullest()
    shared = (fullest < WHOLE) & (view.milli < WHOLE)
    on_used = np.maximum(100 - fullest // 100, 50)
    idle = view.rest == WHOLE * view.there
    score = np.where(shared, on_used, np.maximum(50 - view.number, 33))
    score = np.where(idle, np.maximum(33 - view.there, view.there), score)
    return np.where(view.number > 0, score, 0)


def _gpu_clustering(view: View) -> Ints:
    same, others = view.tags & view.tag, view.tags & ~view.tag
    base = 25 * (_GPUS - view.rest) // _GPUS
    sort = np.where(same > 0, np.where(others > 0, 50, 75), np.where(others > 0, 0, 25))
    return np.where(view.number > 0, base + sort, 0)


def no_preference(view: View) -> Ints:
    """Of `random`, which `place_randomly` stands for."""
    return np.zeros((len(view.at), len(view.milli)), dtype=np.int64)


SCORES: Final[dict[str, Callable[[View], Ints]]] = {
    "random": no_preference,
    "best-fit": _best_fit,
    "dot-product": _dot_product,
    "gpu-packing": _gpu_packing,
    "gpu-clustering": _gpu_clustering,
}


def place_randomly(fleet: Fleet, request: Request, generator: np.random.Generator) -> Placement | None:
    """Any node that fits, any of its GPUs that fit; placed."""
    feasible = (fleet.keys_of_nodes(request) < INFEASIBLE).nonzero()[0]
    if not len(feasible):
        return None
    node = int(feasible[int(generator.integers(len(feasible)))])
    placement = fleet.find_on(node, request)
    state = fleet.nodes[node]
    assert placement is not None
    assert state is not None
    if request.gpus:
        fitting = [gpu for gpu, free in enumerate(state.gpus) if free >= request.milli]
        chosen = generator.permutation(len(fitting))[: request.gpus]
        placement = placement._replace(gpus=tuple(sorted(fitting[int(at)] for at in chosen)))
    fleet.take(placement)
    return placement


FIRST_FIT: Final = "first-fit"


class FirstFit(BaselinePolicy):
    """A node that fits has the key 0."""

    def __init__(self) -> None:
        super().__init__(FIRST_FIT, no_preference)

    def choose(self, state: State, request: Request) -> Choice:
        gpus = tuple(at for at, free in enumerate(state.gpus) if free >= request.milli)[: request.gpus]
        nics = tuple(at for at, free in enumerate(state.nics) if free >= request.percent)[: request.nics]
        shape = self.classes.kinds[state.kind].shape
        level = pair_level(shape, _mask(gpus), _mask(nics)) if shape is not None else None
        return Choice(gpus, nics, int(level or 0))

    def _keys(self, at: Ints, which: slice) -> Keys:
        requests = self.classes.requests[which]
        return np.array(
            [[self._key(int(slot), request) for request in requests] for slot in at], dtype=np.int64
        )

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

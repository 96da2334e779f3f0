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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from koordra.placement.free_amounts.state import WHOLE, Request
from koordra.simulation.fleet import INFEASIBLE, Fleet, Ints, Placement, tag

_CORES: Final = 128_000
_GPUS: Final = 8_000


class View:
    """Some nodes against one request: free resources by node, `gpus` by node and GPU (-1: there is none)."""

    def __init__(self, fleet: Fleet, at: Ints, request: Request) -> None:
        self.request = request
        self.cpu, self.gpus, self.tags = fleet.cpu[at], fleet.gpus[at], fleet.tags[at]
        self.rest = np.maximum(self.gpus, 0).sum(axis=1)
        self.there = (self.gpus >= 0).sum(axis=1)

    def fullest(self) -> Ints:
        """Free share of the fullest GPU that fits; meaningless where none does."""
        found: Ints = np.where(self.gpus >= self.request.milli, self.gpus, 2 * WHOLE).min(axis=1)
        return found


class BaselinePolicy:
    """A policy by a score of nodes for a request, higher is better."""

    def __init__(self, name: str, score: Callable[[View], Ints]) -> None:
        self.name, self._score = name, score

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        return -self._score(View(fleet, at, request))

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        gpus = fleet.nodes[node].gpus
        fitting = [position for position, free in enumerate(gpus) if free >= request.milli]
        if request.gpus == 1:
            # min keeps the first of equal ones.
            return (min(fitting, key=gpus.__getitem__),)
        return tuple(fitting[: request.gpus])


def _best_fit(view: View) -> Ints:
    cores, gpus = view.cpu - view.request.cpu, view.rest - view.request.share
    found: Ints = (100 * _CORES - 50 * cores - 50 * (_CORES // _GPUS) * gpus) // _CORES
    return found


def _dot_product(view: View) -> Ints:
    unit = _CORES * _CORES
    product = view.cpu * view.request.cpu + (_CORES // _GPUS) ** 2 * view.rest * view.request.share
    found: Ints = (100 * unit - 50 * product) // unit
    return found


def _gpu_packing(view: View) -> Ints:
    number = view.request.gpus
    if not number:
        return np.zeros_like(view.cpu)
    fullest = view.fullest()
    shared = (fullest < WHOLE) & (view.request.milli < WHOLE)
    score = np.where(shared, np.maximum(100 - fullest // 100, 50), max(50 - number, 33))
    idle = view.rest == WHOLE * view.there
    return np.where(idle, np.maximum(33 - view.there, view.there), score)


def _gpu_clustering(view: View) -> Ints:
    sort = tag(view.request)
    if not sort:
        return np.zeros_like(view.cpu)
    same, others = view.tags & sort, view.tags & ~sort
    alone = np.where(same > 0, np.where(others > 0, 50, 75), np.where(others > 0, 0, 25))
    found: Ints = 25 * (_GPUS - view.rest) // _GPUS + alone
    return found


def no_preference(view: View) -> Ints:
    """Of `random`, which `place_randomly` stands for."""
    return np.zeros_like(view.cpu)


SCORES: Final[dict[str, Callable[[View], Ints]]] = {
    "random": no_preference,
    "best-fit": _best_fit,
    "dot-product": _dot_product,
    "gpu-packing": _gpu_packing,
    "gpu-clustering": _gpu_clustering,
}


def place_randomly(fleet: Fleet, request: Request, generator: np.random.Generator) -> Placement | None:
    """Any node that fits, any of its GPUs that fit; placed."""
    feasible = (fleet.keys(request) < INFEASIBLE).nonzero()[0]
    if not len(feasible):
        return None
    node = int(feasible[int(generator.integers(len(feasible)))])
    chosen: tuple[int, ...] = ()
    if request.gpus:
        fitting = [gpu for gpu, free in enumerate(fleet.nodes[node].gpus) if free >= request.milli]
        order = generator.permutation(len(fitting))[: request.gpus]
        chosen = tuple(sorted([fitting[int(at)] for at in order]))
    placement = Placement(node, request, chosen, 0)
    fleet.take(placement)
    return placement

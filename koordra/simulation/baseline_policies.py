"""The published policies, as the FGD experiment runs them: what `koordra` is measured against.

Scores are 0..100, higher is better; the key is minus the score. C, g_i, R: free milli-cores, free share of
GPU i, their sum.

    best-fit        100 * (1 - (C - cpu)/256000 - (R - share)/16000), truncated
    dot-product     100 * (1 - C/128000 * cpu/128000 / 2 - R/8000 * share/8000 / 2), truncated
    gpu-packing     no GPU wanted: 0; idle node: max(33 - free, free); needs k unused GPUs of a node in use:
                    max(50 - k, 33); fits on a GPU in use: max(100 - free percent there / 10, 50)
    gpu-clustering  25 * (8000 - R)/8000, and by sort of pods (share, one GPU, several) on the node: only the
                    same 75, the same among others 50, none 25, only others 0
    random          every node that fits alike

Which GPU: the fullest that fits (random: any); whole ones from the first on.

Tie-break, implied by the published numbers: the first node of the run's fixed shuffled order, not a random
one (for FGD a random one would cost 5.7 points), and the first GPU. (Best-fit's and dot-product's scores are
whole numbers in 0..100, so the published normalisation to 0..100 afterwards changes no order.)

FGD (fragmentation gradient descent, ATC'23): the node whose fragmentation grows least.

    score = 100 * sigmoid((F before - F after) / 1000), truncated to a whole number

with F the fragmentation of a node, the free GPU that pods of the target workload cannot use there:

    F(m) = R if m wants no GPU, or its model is not there, or cores or fitting GPUs do not suffice;
           otherwise the sum of g_i over GPUs with less free than m asks of each
    F    = sum over the target workload of p_m F(m);       the cluster's F is the sum over nodes

R is the node's free GPU, g_i that of GPU i. A share tries every GPU of the node and takes the one with the
best score, the first of equal ones; whole GPUs are taken from the first free one on. The truncation and the
tie-break (first node in the fixed order) are part of the result: without the first FGD loses 0.9, with random
ties 5.7 points on the default list.

F after is not computed anew. With L = sum of g_i below what a class wants and N = number of GPUs that have
it, one GPU that goes from v to v - s changes L by what v and v - s are worth below the threshold, and N by
whether they reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from koordra.placement.free_amounts.state import WHOLE, MachineType, Request
from koordra.placement.policy.workload import WorkloadShare
from koordra.simulation.fleet import INFEASIBLE, SHARE, Bools, Fleet, FleetPlacement, Ints, tag

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

    def __init__(self, score: Callable[[View], Ints]) -> None:
        self._score = score

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        return -self._score(View(fleet, at, request))

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        fitting = fleet.fitting(node, request)
        if request.gpus == 1:
            # min keeps the first of equal ones.
            return (min(fitting, key=fleet.nodes[node].gpus.__getitem__),)
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


def place_randomly(fleet: Fleet, request: Request, generator: np.random.Generator) -> FleetPlacement | None:
    """Any node that fits, any of its GPUs that fit; placed."""
    feasible = (fleet.keys(request) < INFEASIBLE).nonzero()[0]
    if not len(feasible):
        return None
    node = int(feasible[int(generator.integers(len(feasible)))])
    chosen: tuple[int, ...] = ()
    if request.gpus:
        fitting = fleet.fitting(node, request)
        order = generator.permutation(len(fitting))[: request.gpus]
        chosen = tuple(sorted([fitting[int(at)] for at in order]))
    placement = FleetPlacement(node, request, chosen)
    fleet.take(placement)
    return placement


_Floats = npt.NDArray[np.float64]


class Target:
    """The target workload as arrays over its classes that want GPUs; all free GPU is lost to the others."""

    def __init__(self, target: Sequence[WorkloadShare], kinds: Sequence[MachineType]) -> None:
        with_gpus = [one for one in target if one.request.gpus]
        requests = [one.request for one in with_gpus]
        self.part = np.array([one.part for one in with_gpus])
        self.cpu_only = sum(one.part for one in target if not one.request.gpus)
        self.cpu = np.array([request.cpu for request in requests], dtype=np.int64)
        self.milli = np.array([request.milli for request in requests], dtype=np.int64)
        self.number = np.array([request.gpus for request in requests], dtype=np.int64)
        allowed = [[not one.models or kind.model in one.models for one in requests] for kind in kinds]
        self.allowed: Bools = np.array(allowed, dtype=np.bool_).reshape(len(kinds), len(requests))
        """By (kind of node, class): whether the class may use the kind's model."""

    def below(self, gpus: Ints) -> tuple[Ints, Ints]:
        """By (node, class): the free share of GPUs with less than the class asks of each, and the number of
        the others."""
        small = gpus[:, :, None] < self.milli
        return np.where(small, np.maximum(gpus, 0)[:, :, None], 0).sum(axis=1), (~small).sum(axis=1)

    def lost(self, small: Ints, enough: Ints, cpu: Ints, rest: Ints, allowed: Bools) -> _Floats:
        """F over the classes with GPUs, summed over the last axis."""
        fits = (enough >= self.number) & (cpu >= self.cpu) & allowed
        found: _Floats = np.where(fits, small, rest) @ self.part
        return found

    def fragmentation(self, fleet: Fleet, at: Ints) -> _Floats:
        """F of the nodes `at`."""
        gpus = fleet.gpus[at]
        rest = np.maximum(gpus, 0).sum(axis=1)
        lost = self.lost(
            *self.below(gpus), fleet.cpu[at][:, None], rest[:, None], self.allowed[fleet.kind[at]]
        )
        found: _Floats = self.cpu_only * rest + lost
        return found


def fragmented(fleet: Fleet, target: Target) -> float:
    """F of the cluster, in thousandths of GPU."""
    return float(target.fragmentation(fleet, np.arange(len(fleet.nodes))).sum())


class Fgd(BaselinePolicy):
    """Keys are minus the best score over the GPUs of the node that a share may take."""

    def __init__(self, target: Target) -> None:
        super().__init__(no_preference)
        self._target = target

    def keys(self, fleet: Fleet, at: Ints, request: Request) -> Ints:
        positions = range(fleet.gpus.shape[1] if tag(request) == SHARE else 1)
        found: Ints = -_scores(self._gains(fleet, at, request, positions)).max(axis=1)
        return found

    def choose(self, fleet: Fleet, node: int, request: Request) -> tuple[int, ...]:
        if tag(request) != SHARE:
            return super().choose(fleet, node, request)
        positions = range(len(fleet.nodes[node].gpus))
        return (int(_scores(self._gains(fleet, np.array([node]), request, positions)[0]).argmax()),)

    def _gains(self, fleet: Fleet, at: Ints, request: Request, positions: Sequence[int]) -> _Floats:
        """F before minus F after by (node, position of a shared GPU); -inf where it does not fit."""
        target, gpus, shares = self._target, fleet.gpus[at], tag(request) == SHARE
        rest = np.maximum(gpus, 0).sum(axis=1)
        small, enough = target.below(gpus)
        old = gpus[:, list(positions)]
        new = old - (request.share if shares else 0)
        was, now = old[..., None] < target.milli, new[..., None] < target.milli
        moved = np.where(now, np.maximum(new, 0)[..., None], 0) - np.where(
            was, np.maximum(old, 0)[..., None], 0
        )
        after = target.lost(
            small[:, None, :] + moved,
            enough[:, None, :] + was.astype(np.int64) - now - (0 if shares else request.gpus),
            (fleet.cpu[at] - request.cpu)[:, None, None],
            (rest - request.share)[:, None, None],
            target.allowed[fleet.kind[at]][:, None, :],
        )
        after += target.cpu_only * (rest - request.share)[:, None]
        # Rounded, so that a pod that changes nothing gains exactly nothing whatever the order of summing was.
        gains: _Floats = np.round(target.fragmentation(fleet, at)[:, None] - after, 6)
        if shares:
            gains[new < 0] = -np.inf
        return gains


def _scores(gains: _Floats) -> Ints:
    scored: Ints = (100 / (1 + np.exp(-gains / 1000))).astype(np.int64)
    return scored

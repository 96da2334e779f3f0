"""FGD (fragmentation gradient descent, ATC'23): the node whose fragmentation grows least.

    score = 100 * sigmoid((F before - F after) / 1000), truncated to a whole number

with F the fragmentation of a node, the free GPU that pods of the target workload cannot use there:

    F(m) = R if m wants no GPU, or its model is not there, or cores or fitting GPUs do not suffice;
           otherwise the sum of g_i over GPUs with less free than m asks of each
    F    = sum over the target workload of p_m F(m);       the cluster's F is the sum over nodes

R is the node's free GPU, g_i that of GPU i. A share tries every GPU of the node and takes the one with the best score,
the first of equal ones; whole GPUs are taken from the first free one on. The truncation and the tie-break (first node in the
fixed order) are part of the result: without the first FGD loses 0.9, with random ties 5.7 points on the default list.

F after is not computed anew. With L = sum of g_i below what a class wants and N = number of GPUs that have it, one GPU that goes
from v to v - s changes L by what v and v - s are worth below the threshold, and N by whether they reach it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from koordra.placement.columns.arrays import INFEASIBLE, Bools, Classes, Ints, Keys, Slots
from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.state import WHOLE, Choice, Kind, Request, State
from koordra.placement.policy.workload import WorkloadShare
from koordra.simulation.baseline_policies import BaselinePolicy, View, no_preference

_Floats = npt.NDArray[np.float64]


class Target:
    """The target workload as arrays over its classes that want GPUs; all free GPU is lost to the others."""

    def __init__(self, target: Sequence[WorkloadShare]) -> None:
        with_gpus = [one for one in target if one.request.gpus]
        self.requests = [one.request for one in with_gpus]
        self.part = np.array([one.part for one in with_gpus])
        self.cpu_only = sum(one.part for one in target if not one.request.gpus)
        self.cpu = np.array([request.cpu for request in self.requests], dtype=np.int64)
        self.milli = np.array([request.milli for request in self.requests], dtype=np.int64)
        self.number = np.array([request.gpus for request in self.requests], dtype=np.int64)

    def allowed(self, kinds: Sequence[Kind]) -> Bools:
        """By (kind of node, class): whether the class may use the kind's model."""
        found = [
            [not request.models or kind.model in request.models for request in self.requests]
            for kind in kinds
        ]
        return np.array(found, dtype=np.bool_).reshape(len(kinds), len(self.requests))

    def below(self, gpus: Ints) -> tuple[Ints, Ints]:
        """By (slot, class): the free share of GPUs with less than the class asks of each, and the number of the others."""
        small = gpus[:, :, None] < self.milli
        return np.where(small, np.maximum(gpus, 0)[:, :, None], 0).sum(axis=1), (~small).sum(axis=1)

    def lost(self, small: Ints, enough: Ints, cpu: Ints, rest: Ints, allowed: Bools) -> _Floats:
        """F over the classes with GPUs, summed over the last axis."""
        fits = (enough >= self.number) & (cpu >= self.cpu) & allowed
        found: _Floats = np.where(fits, small, rest) @ self.part
        return found

    def fragmentation(self, slots: Slots, at: Ints, allowed: Bools) -> _Floats:
        """F of the slots `at`."""
        rest = np.maximum(slots.gpus[at], 0).sum(axis=1)
        lost = self.lost(
            *self.below(slots.gpus[at]), slots.cpu[at][:, None], rest[:, None], allowed[slots.kind[at]]
        )
        found: _Floats = self.cpu_only * rest + lost
        return found


def fragmented(fleet: Fleet, target: Target) -> float:
    """F of the cluster, in thousandths of GPU."""
    used = np.array([slot for slot, state in enumerate(fleet.slots.states) if state is not None])
    counts = np.bincount(fleet.slot_of_node[fleet.slot_of_node >= 0], minlength=fleet.slots.used)[used]
    return float(target.fragmentation(fleet.slots, used, target.allowed(fleet.kinds)) @ counts)


class Fgd(BaselinePolicy):
    """Keys are minus the best score over the GPUs of the node that a share may take."""

    def __init__(self, target: Sequence[WorkloadShare]) -> None:
        super().__init__("fgd", no_preference)
        self._target = Target(target)

    def start(self, slots: Slots, classes: Classes) -> None:
        super().start(slots, classes)
        self._allowed = self._target.allowed(classes.kinds)

    def column(self, slot: int, start: int) -> Keys:
        state = self.slots.states[slot]
        assert state is not None
        # GPUs with the same free share score alike: of each only the first is tried.
        firsts = [state.gpus.index(free) for free in dict.fromkeys(state.gpus)] or [0]
        which = slice(start, len(self.classes))
        keys: Keys = self._best(self._gains(np.array([slot]), which, firsts), np.array([slot]), which)[0]
        return keys

    def _keys(self, at: Ints, which: slice) -> Keys:
        return self._best(self._gains(at, which, range(self.slots.width)), at, which)

    def choose(self, state: State, request: Request) -> Choice:
        if request.gpus != 1 or request.milli == WHOLE:
            return super().choose(state, request)
        slot = next(number for number, known in enumerate(self.slots.states) if known == state)
        number = self.classes.index[request]
        gains = self._gains(np.array([slot]), slice(number, number + 1), range(len(state.gpus)))[0, 0]
        return Choice((int(_scores(gains).argmax()),))

    def _best(self, gains: _Floats, at: Ints, which: slice) -> Keys:
        view = View(self.slots, self.classes, at, which)
        score = _scores(gains).max(axis=2)
        return np.where(view.fits(), -score, INFEASIBLE).astype(np.int64)

    def _gains(self, at: Ints, which: slice, positions: Sequence[int]) -> _Floats:
        """F before minus F after by (slot, class, position of a shared GPU); -inf where the share does not fit there."""
        slots, classes, target = self.slots, self.classes, self._target
        gpus, cpu = slots.gpus[at], slots.cpu[at]
        rest = np.maximum(gpus, 0).sum(axis=1)
        small, enough = target.below(gpus)
        before = target.fragmentation(slots, at, self._allowed)
        share = classes.share[which]
        single = (classes.gpus[which] == 1) & (classes.milli[which] < WHOLE)
        taken = np.where(single, share, 0)[:, None]
        old = gpus[:, list(positions)][:, None, :]
        new = old - taken
        was, now = old[..., None] < target.milli, new[..., None] < target.milli
        moved = np.where(now, np.maximum(new, 0)[..., None], 0) - np.where(
            was, np.maximum(old, 0)[..., None], 0
        )
        lost_gpus = np.where(single, 0, classes.gpus[which])[None, :, None, None]
        after = target.lost(
            small[:, None, None, :] + moved,
            enough[:, None, None, :] + was.astype(np.int64) - now - lost_gpus,
            (cpu[:, None] - classes.cpu[which])[:, :, None, None],
            (rest[:, None] - share)[:, :, None, None],
            self._allowed[slots.kind[at]][:, None, None, :],
        )
        after += target.cpu_only * (rest[:, None] - share)[:, :, None]
        # Rounded, so that a pod that changes nothing gains exactly nothing whatever the order of summing was.
        gains: _Floats = np.round(before[:, None, None] - after, 6)
        gains[(new < 0) & single[:, None]] = -np.inf
        return gains


def _scores(gains: _Floats) -> Ints:
    scored: Ints = (100 / (1 + np.exp(-gains / 1000))).astype(np.int64)
    return scored

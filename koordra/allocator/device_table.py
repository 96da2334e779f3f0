"""Sets of devices of one machine that are judged once, so that the best of them is looked up.

What a set costs by the terms that read the selection alone (`SelectionTerms`) is the same on every node of a
kind. A table has that of many sets, made by calling the terms. A question then is three vector operations,
and its answer is the search's:

    leave out the sets with a device that cannot be taken
    add what groups cost that are whole now and would be broken (the only term of whole devices that reads
        what else is free)
    take the least

A set is a mask; which bit is which device is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from koordra.allocator.score import BROKEN
from koordra.allocator.selection_terms import SelectionTerms, WholeGroups

Masks = NDArray[np.int64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """By set: its devices, its cost, and by group that is better not broken (`groups`: masks) what breaking
    it costs."""

    sets: Masks
    cost: Numbers
    breaks: Numbers
    groups: tuple[int, ...] = ()

    def broken(self, at: Numbers, untouched: int) -> Numbers:
        """What these sets cost in groups that are whole while nobody uses the devices `untouched`."""
        whole = np.array([members & ~untouched == 0 for members in self.groups], dtype=np.int64)
        cost: Numbers = self.breaks[at] @ whole
        return cost

    def least(self, *, takeable: int, untouched: int) -> Masks:
        """The cheapest sets among the devices that may be taken; empty where none fits."""
        at: Numbers = ((self.sets & ~takeable) == 0).nonzero()[0]
        cost = self.cost[at] + self.broken(at, untouched)
        return self.sets[at[cost == cost.min()] if len(at) else at]


@dataclass(frozen=True, slots=True)
class MachineTerms:
    """The selection terms of a machine, whose devices are bits: `bit` has the mask of each by its position in
    the terms."""

    terms: SelectionTerms
    gpus: Sequence[int]
    nics: Sequence[int]
    bit: Mapping[int, int]
    whole: WholeGroups

    def table(self, sets: Masks) -> DeviceTable:
        """These sets, judged."""
        groups = [self.mask(members) for _, members in self.whole]
        breaks = np.zeros((len(sets), len(groups)), dtype=np.int64)
        for column, (weight, members) in enumerate(self.whole):
            held = np.bitwise_count(sets & groups[column]).astype(np.int64)
            breaks[:, column] = np.where(held > 0, (len(members) - held) * (weight * BROKEN), 0)
        return DeviceTable(sets, self._cost(sets), breaks, tuple(groups))

    def mask(self, devices: Iterable[int]) -> int:
        return sum([self.bit[device] for device in devices])

    def _cost(self, sets: Masks) -> Numbers:
        """The terms are called once for each set of GPUs, and once for so many GPUs and NICs of each kind."""
        gpus = sets & self.mask(self.gpus)
        held, which = np.unique(gpus, return_inverse=True)
        together = [
            self.terms.together([gpu for gpu in self.gpus if one & self.bit[gpu]]) for one in held.tolist()
        ]
        cost: Numbers = np.array(together, dtype=np.int64)[which]
        gpu_kinds = _alike(
            {gpu: tuple([self.terms.steps(gpu, nic) for nic in self.nics]) for gpu in self.gpus}
        )
        nic_kinds = _alike(
            {nic: tuple([self.terms.steps(gpu, nic) for gpu in self.gpus]) for nic in self.nics}
        )
        kinds = [*gpu_kinds, *nic_kinds]
        if not self.gpus or not self.nics or not len(sets):
            return cost
        counts = np.stack([np.bitwise_count(sets & self.mask(kind)) for kind in kinds], axis=1)
        rows, which = np.unique(counts, axis=0, return_inverse=True)
        near = []
        for row in rows.tolist():
            chosen = [kind[:count] for kind, count in zip(kinds, row, strict=True)]
            some, others = chosen[: len(gpu_kinds)], chosen[len(gpu_kinds) :]
            near.append(self.terms.nearness(list(chain(*some)), list(chain(*others))))
        return cost + np.array(near, dtype=np.int64)[which.reshape(-1)]


def _alike(places: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """Devices by their place, in device order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for device, place in places.items():
        found.setdefault(place, []).append(device)
    return list(found.values())

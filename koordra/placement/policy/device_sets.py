"""Several GPUs or NICs of one machine: which of them, by the written cost and then by what is left for others.

Every set of k GPUs and j NICs of a shape is written down once, with what it is worth to who gets it, in the units of
`allocator.score` (the part of the written cost that is about the claim):

    100 per step of nearness     each GPU's NIC, best pairing; nearness classes nest, so the steps are what each class cannot serve
      5 per half of NVLink       pairs without a link, links that a pair lacks, GPUs that are no partition
      1 per group more than one  switch groups, roots, NUMA nodes (twice), as published

A question then is: of the sets whose devices are all free, the least worth lost; of equal ones the least

    dA/2 - dT/50               usable GPU that will lack a NIC of its group, intact switch groups (`leftover`)
    broken groups              free GPUs left in groups that no longer are whole: switch groups and partitions of two (times 4),
                               NUMA nodes and partitions of four
    what is left on the NICs   best fit

and the first in device order, GPUs before NICs. Of more than MOST sets of a size, and of several devices of which one is shared,
nothing is said here: the search decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from koordra.allocator.score import COMPACTNESS, NEARNESS, NVLINK, PARTITION_WEIGHTS, UNLINKED, WORTH
from koordra.placement.columns.arrays import Ints
from koordra.placement.columns.state import WHOLE, Form, Spread
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, MachineShape

if TYPE_CHECKING:
    from koordra.placement.policy.device_value import Worth

MOST: Final = 20_000
"""Sets that are written down for one number of GPUs and NICs."""

_MOST_KNOWN: Final = 1 << 12
_WIDE: Final = 1 << 10

_GROUPS, _NODES = NEAR.index(Level.PXB), NEAR.index(Level.NODE)


def few_enough(shape: MachineShape, form: Form) -> bool:
    """Whether all sets of this size can be written down, and all GPUs that are free look the same."""
    return form.milli in (0, WHOLE) and comb(shape.gpus, form.gpus) * comb(shape.nics, form.nics) <= MOST


class Sets:
    """All sets of one size, in device order."""

    def __init__(self, shape: MachineShape, spread: Spread, *, gpus: int, nics: int) -> None:
        some, others = _sets(shape.gpus, gpus), _sets(shape.nics, nics)
        self.gpus = np.repeat(some, len(others), axis=0)
        self.nics = np.tile(others, (len(some), 1))
        self._gpu_masks, self._nic_masks = _masks(self.gpus), _masks(self.nics)
        self.worth = claims(shape, spread, self.gpus, self.nics)
        groups = shape.classes[_GROUPS]
        self._gpus_in = self.gpus @ _members([one.gpus for one in groups], shape.gpus)
        self._nics_in = self.nics @ _members([one.nics for one in groups], shape.nics)
        wholes = [(4, one.gpus) for one in groups] + [(1, one.gpus) for one in shape.classes[_NODES]]
        wholes += [
            (PARTITION_WEIGHTS[mask.bit_count()], mask)
            for mask in shape.partitions
            if mask.bit_count() in PARTITION_WEIGHTS
        ]
        self._wholes = [(weight, mask) for weight, mask in wholes if mask]
        self._known: dict[tuple[int, int], _Sorts] = {}
        self._inside = self.gpus @ _members([mask for _, mask in self._wholes], shape.gpus)

    def best(self, worth: Worth, form: Form, gpus: int, nics: int) -> int | None:
        """The number of the best set of these devices (masks of what can serve)."""
        sorts = self._known.get((gpus, nics))
        if sorts is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            sorts = self._known[gpus, nics] = self._sorts(gpus, nics)
        if not sorts.sets:
            return None
        alike = sorts.sets[0]
        if len(sorts.sets) > 1:
            free = sum(1 << gpu for gpu, left in enumerate(worth.devices.gpus) if left == WHOLE)
            whole = np.array([mask & ~free == 0 for _, mask in self._wholes], dtype=np.int64)
            changes = [worth.change_of(*taken, form) for taken in sorts.taken]
            costs = np.array(changes, dtype=np.int64)[sorts.takes].sum(axis=1)
            equal = _least(np.arange(len(costs)), costs)
            equal = _least(equal, sorts.inside[equal] @ whole)
            alike = sorts.sets[equal[0]]
            if len(equal) > 1:
                alike = np.sort(np.concatenate([sorts.sets[at] for at in equal]))
        if len(alike) == 1 or not form.nics:
            return int(alike[0])
        return int(_least(alike, self.nics[alike] @ np.array(worth.devices.nics, dtype=np.int64))[0])

    def _sorts(self, gpus: int, nics: int) -> _Sorts:
        """Those of the sets of these devices that are worth most to the claim, sorted by what they take of every group."""
        at = (((self._gpu_masks & ~gpus) | (self._nic_masks & ~nics)) == 0).nonzero()[0]
        if not len(at):
            return _Sorts([], [], at, at)
        at = _least(at, self.worth[at])
        of_groups = self._gpus_in[at] * _WIDE + self._nics_in[at]
        rows = np.concatenate([of_groups, self._inside[at]], axis=1)
        _, first, sort_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        sort_of = sort_of.reshape(-1)
        order = np.argsort(sort_of, kind="stable")
        sets = np.split(at[order], np.cumsum(np.bincount(sort_of))[:-1])
        of_groups, inside = of_groups[first], self._inside[at[first]]
        numbered = of_groups + _WIDE * _WIDE * np.arange(of_groups.shape[1])
        distinct, takes = np.unique(numbered, return_inverse=True)
        taken = [(one // (_WIDE * _WIDE), one // _WIDE % _WIDE, one % _WIDE) for one in map(int, distinct)]
        weights = np.array([weight for weight, _ in self._wholes], dtype=np.int64)
        sizes = np.array([mask.bit_count() for _, mask in self._wholes], dtype=np.int64)
        return _Sorts(sets, taken, takes.reshape(of_groups.shape), (inside > 0) * weights * (sizes - inside))


class _Sorts(NamedTuple):
    """Sets that take as many GPUs and NICs of every group stand together.

    A row per sort: `takes` numbers what it takes of each group (group, GPUs, NICs: `taken`), `inside` what breaking a whole one counts.
    """

    sets: list[Ints]
    taken: list[tuple[int, int, int]]
    takes: Ints
    inside: Ints


def claims(shape: MachineShape, spread: Spread, gpus: Ints, nics: Ints) -> Ints:
    """What each set (a row of zeros and ones per set) costs who gets it; smaller is better."""
    many = int(gpus[0].sum()) if len(gpus) else 0
    few = int(nics[0].sum()) if len(nics) else 0
    found = np.zeros(len(gpus), dtype=np.int64)
    if many and few:
        found += NEARNESS // WORTH * _steps(shape, gpus, nics, many=many, few=few)
    if many > 1:
        found += NVLINK // WORTH * _unlinked(shape, gpus, many)
        for weight, masks in spread:
            touched = (gpus @ _members(masks, shape.gpus) > 0).sum(axis=1)
            found += COMPACTNESS // WORTH * weight * np.maximum(touched - 1, 0)
    return found


def _steps(shape: MachineShape, gpus: Ints, nics: Ints, *, many: int, few: int) -> Ints:
    """PIX 1, PXB 2, PHB 3, NODE 4, SYS 5, summed over the GPUs; a NIC serves its part of them."""
    room = -(-many // few)
    total = np.full(len(gpus), many, dtype=np.int64)
    for groups in shape.classes:
        here = gpus @ _members([one.gpus for one in groups], shape.gpus)
        there = nics @ _members([one.nics for one in groups], shape.nics)
        total += np.maximum(here - room * there, 0).sum(axis=1)
    return total


def _unlinked(shape: MachineShape, gpus: Ints, many: int) -> Ints:
    links = np.array(shape.nvlinks, dtype=np.int64)
    widest = int(links.max()) if links.size else 0
    if not widest:
        return np.zeros(len(gpus), dtype=np.int64)
    lacks = np.where(links > 0, widest - links, UNLINKED)
    np.fill_diagonal(lacks, 0)
    total: Ints = ((gpus @ lacks) * gpus).sum(axis=1) // 2
    if any(mask.bit_count() == many for mask in shape.partitions):
        total = total + UNLINKED * ~np.isin(_masks(gpus), shape.partitions)
    return total


def _sets(count: int, size: int) -> Ints:
    """Rows of zeros and ones, in the order of positions."""
    chosen = list(combinations(range(count), size))
    found = np.zeros((len(chosen), count), dtype=np.int64)
    for row, positions in enumerate(chosen):
        found[row, list(positions)] = 1
    return found


def _masks(rows: Ints) -> Ints:
    found: Ints = rows @ (1 << np.arange(rows.shape[1], dtype=np.int64))
    return found


def _members(masks: Sequence[int], count: int) -> Ints:
    """A column per mask."""
    return np.array([[mask >> at & 1 for mask in masks] for at in range(count)], dtype=np.int64).reshape(
        count, len(masks)
    )


def _least(at: Ints, costs: Ints) -> Ints:
    found: Ints = at[costs == costs.min()]
    return found

"""Several GPUs or NICs of one machine: which of them, by the written cost and then by what is left for others.

Every set of k GPUs and j NICs is in a table (`allocator.device_table`) with what it costs who gets it. A question then is: of the sets
whose devices are all free, those that cost the claim least; of equal ones the least

    dA/2 - dT/50               usable GPU that will lack a NIC of its group, intact switch groups (`leftover`)
    broken groups              as in the written cost
    what is left on the NICs   best fit

and the first in device order, GPUs before NICs. Of more than MOST sets of a size, and of several devices of which one is shared,
nothing is said here: the search decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from koordra.allocator.device_table import DeviceTable, MachineTerms, least
from koordra.allocator.score import WORTH
from koordra.placement.columns.arrays import Ints
from koordra.placement.columns.state import WHOLE, Devices
from koordra.topology.machine_shape import Group, positions

MOST: Final = 20_000
"""Sets that are written down for one number of GPUs and NICs."""

_MOST_KNOWN: Final = 1 << 10
_WIDE: Final = 1 << 10


class ChosenSet(NamedTuple):
    """Positions; `claim` is what the devices cost who gets them, in units of `score.WORTH`."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    claim: int


class _Equal(NamedTuple):
    """The sets among some devices that cost the claim least: by row what each takes of every group (`taken`, by number: `takes`), and how
    many NICs of each kind.
    """

    at: Ints
    taken: list[tuple[int, int, int]]
    takes: Ints
    nics: Ints


class Sets:
    """All sets of one size, in device order. GPUs are the first bits of a mask, NICs follow."""

    def __init__(self, table: DeviceTable, machine: MachineTerms, groups: Sequence[Group]) -> None:
        self._table = table
        self._gpu_count = len(machine.gpus)
        self._kinds = [[nic - self._gpu_count for nic in kind] for kind in machine.nic_kinds]
        self._gpus = (1 << self._gpu_count) - 1
        self._groups = groups
        self._known: dict[tuple[int, int], _Equal] = {}

    def best(
        self, devices: Devices, gpus: int, nics: int, change: Callable[[int, int, int], int]
    ) -> ChosenSet | None:
        """The best set of these devices (masks of what can serve). `change`: dA and dT of a group, and how many GPUs and NICs of it."""
        free = [[nic for nic in kind if nics >> nic & 1] for kind in self._kinds]
        some = sum(
            [1 << nic for kind, here in zip(self._kinds, free, strict=True) for nic in kind[: len(here)]]
        )
        equal = self._equal(gpus, some)
        if not len(equal.at):
            return None
        rows = np.arange(len(equal.at))
        if len(rows) > 1:
            changes = [change(*taken) for taken in equal.taken]
            rows = least(rows, np.array(changes, dtype=np.int64)[equal.takes].sum(axis=1))
            untouched = sum([1 << gpu for gpu, left in enumerate(devices.gpus) if left == WHOLE])
            rows = least(rows, self._table.broken(equal.at[rows], untouched))
        left = devices.nics
        for here in free:
            # Of NICs that are alike those go first of which least is left.
            here.sort(key=left.__getitem__)
        if len(rows) > 1 and free:
            sums = [[0, *accumulate([left[nic] for nic in here])] for here in free]
            of_kinds = [np.array(one)[equal.nics[rows, at]] for at, one in enumerate(sums)]
            rows = least(rows, np.sum(of_kinds, axis=0))
        masks = self._table.sets[equal.at[rows]]
        gpus = int(masks[0]) & self._gpus
        same = rows[(masks & self._gpus) == gpus]
        chosen = min(
            tuple(sorted([nic for here, count in zip(free, counts, strict=True) for nic in here[:count]]))
            for counts in equal.nics[same].tolist()
        )
        return ChosenSet(positions(gpus), chosen, int(self._table.cost[equal.at[rows[0]]]) // WORTH)

    def _equal(self, gpus: int, nics: int) -> _Equal:
        found = self._known.get((gpus, nics))
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            at = self._table.fitting(gpus | nics << self._gpu_count)
            at = least(at, self._table.cost[at])
            sets = self._table.sets[at]
            counts = np.empty((len(at), len(self._kinds)), dtype=np.int64)
            for column, kind in enumerate(self._kinds):
                mask = sum([1 << nic for nic in kind]) << self._gpu_count
                counts[:, column] = np.bitwise_count(sets & mask)
            takes = np.empty((len(at), len(self._groups)), dtype=np.int64)
            for column, group in enumerate(self._groups):
                held = np.bitwise_count(sets & group.gpus).astype(np.int64)
                paired = np.bitwise_count(sets & (group.nics << self._gpu_count)).astype(np.int64)
                takes[:, column] = (column * _WIDE + held) * _WIDE + paired
            distinct, numbers = np.unique(takes, return_inverse=True)
            taken = [(one // _WIDE // _WIDE, one // _WIDE % _WIDE, one % _WIDE) for one in distinct.tolist()]
            found = self._known[gpus, nics] = _Equal(at, taken, numbers.reshape(takes.shape), counts)
        return found

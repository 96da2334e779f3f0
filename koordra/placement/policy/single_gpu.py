"""One GPU, or a share of one, without a NIC, on machines of known shape: many forms or many states at once.

It is what is asked for most, in more sizes than anything else, so that it is not looked up form by form like pairs and sets
(`joint`). The answer is the same: least dH + dA/2 - dT/50, then the smallest leftover on the GPU, the group with the fewest free NICs, the
first GPU. These are put one behind the other into a single whole number, of which the least is taken:

    cost | leftover (10 bits) | free bandwidth of the group (11 bits) | GPU (6 bits)

Machines whose numbers do not fit into the bits are `joint`'s.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from koordra.placement.columns.arrays import Bools, Ints, grown
from koordra.placement.columns.state import WHOLE
from koordra.placement.policy.device_value import BROKEN, LONE, Worth
from koordra.placement.policy.stranded_capacity import Lacking

_MICRO: Final = 1000
_LEFTOVER: Final = 10
_BANDWIDTH: Final = 11
_POSITION: Final = 6
_NO: Final = np.int64(1 << 62)


class Found(NamedTuple):
    """Element by element, as in `joint.Joint`; `fresh`: nobody used the GPU. Where it does not fit, the rest means nothing."""

    fits: Bools
    holes: Ints
    left: Ints
    extra: Ints
    fresh: Bools


class LoneGpus:
    """The GPUs of many states, by number: `width` of them at most."""

    def __init__(self, hole: Ints, nics: Lacking, *, width: int) -> None:
        self._hole, self._nics = hole, nics
        self._positions = np.arange(width, dtype=np.int64)
        self._free, self._usable, self._bandwidth, self._lone, self._broken = (
            np.zeros((64, width), dtype=np.int64) for _ in range(5)
        )

    def serves(self, worth: Worth) -> bool:
        """Whether the machine's numbers fit."""
        return len(worth.group_of_gpu) <= 1 << _POSITION and max(worth.bandwidth, default=0) < 1 << _BANDWIDTH

    def put(self, number: int, worth: Worth) -> None:
        """The state of this number."""
        for name in ("_free", "_usable", "_bandwidth", "_lone", "_broken"):
            setattr(self, name, grown(getattr(self, name), number + 1))
        groups = worth.group_of_gpu
        at = (number, slice(len(groups)))
        self._free[at] = worth.devices.gpus
        self._usable[at] = [worth.usable[group] for group in groups]
        self._bandwidth[at] = [worth.bandwidth[group] for group in groups]
        self._lone[at] = [worth.lone[group] for group in groups]
        self._broken[at] = [worth.intact[group] * BROKEN for group in groups]

    def of_forms(self, number: int, milli: Ints) -> Found:
        """One state, many sizes."""
        return self._best(np.array([number]), milli[:, np.newaxis])

    def of_states(self, numbers: Ints, milli: int) -> Found:
        """Many states, one size."""
        return self._best(numbers, np.array([[milli]], dtype=np.int64))

    def _best(self, numbers: Ints, milli: Ints) -> Found:
        free, bandwidth = self._free[numbers], self._bandwidth[numbers]
        rest = free - milli
        fits: Bools = np.greater_equal(rest, 0)
        left = np.maximum(rest, 0)
        drop = self._hole[left] - self._hole[free]
        taken = milli * _MICRO + drop
        usable = self._usable[numbers] - taken
        short = self._nics.many(usable, np.maximum(usable, 1), np.broadcast_to(bandwidth, usable.shape))
        extra = LONE * (short - self._lone[numbers]) + (taken > 0) * self._broken[numbers]
        order = (1000 * drop + extra << _LEFTOVER) + left
        order = (((order << _BANDWIDTH) + bandwidth) << _POSITION) + self._positions
        order = np.where(fits, order, _NO)
        at = order.argmin(axis=1)[:, np.newaxis]

        def chosen(values: Ints) -> Ints:
            found: Ints = np.take_along_axis(np.broadcast_to(values, order.shape), at, axis=1)[:, 0]
            return found

        return Found(
            fits=np.logical_or.reduce(fits, axis=1),
            holes=chosen(drop),
            left=chosen(left),
            extra=chosen(extra),
            fresh=chosen(free) == WHOLE,
        )

"""Every answer for a shape of up to eight GPUs and eight NICs, made once and looked up in about a microsecond.

The objective (see ``shapes``) falls into two halves: what is *inside* the set depends on the chosen masks alone, what is
*left* on the masks of the remaining devices alone. Each half is computed for all 256 x 256 masks and replaced by its rank,
a number below 65,536 that keeps the order. A choice then weighs

    key = inside[g, n] << 32 | left[G - g, N - n] << 16 | position of g among its size << 8 | position of n among its size

and the best choice of k and j devices from the eligible masks G and N is the smallest key over all subsets: 3^8 x 3^8 of
them, which numpy adds and reduces row by row. The last sixteen bits are the tie-break and, at the same time, the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from koordra.topology.levels import Level
from koordra.topology.shapes import NEAR, Choice, Group, Shape

_Numbers = npt.NDArray[np.int64]

_COUNT: Final[_Numbers] = np.array([mask.bit_count() for mask in range(256)], dtype=np.int64)
_LEVELS: Final = (None, *NEAR, Level.SYS)
_INSIDE, _LEFT, _FIRST = 32, 16, 8


class ShapeTables:
    """The answers of one shape. ``best`` is the look-up."""

    __slots__ = ("_column", "_columns", "_gpus", "_level", "_nics", "_row")

    def __init__(self, shape: Shape) -> None:
        gpu_order, nic_order = _Order(shape.gpus), _Order(shape.nics)
        self._row, self._column = gpu_order.segment, nic_order.segment
        self._columns = len(nic_order.starts)
        gpus, nics = _solve(shape, gpu_order, nic_order)
        self._gpus, self._nics = gpus.tobytes(), nics.tobytes()
        worst = _unpaired(shape).astype(bool).sum(axis=0) + 1
        worst[0, :] = worst[:, 0] = 0
        levels = np.zeros((256, 256), dtype=np.uint8)
        levels[: worst.shape[0], : worst.shape[1]] = worst
        self._level = levels.tobytes()

    def best(self, gpus: int, nics: int, k: int, j: int) -> Choice | None:
        """See ``shapes.Chooser``. Bits beyond the shape's devices are an IndexError."""
        if not (0 <= k <= gpus.bit_count() and 0 <= j <= nics.bit_count()):
            return None
        at = (self._row[gpus] + k) * self._columns + self._column[nics] + j
        chosen_gpus, chosen_nics = self._gpus[at], self._nics[at]
        return Choice(chosen_gpus, chosen_nics, _LEVELS[self._level[chosen_gpus << 8 | chosen_nics]])


class _Order:
    """All (mask, subset) pairs of up to eight devices, sorted by mask, then by the subset's size.

    ``segment[mask] + size`` numbers the runs of equal mask and size, ``starts`` says where they begin. ``position`` is a
    mask's place among those of its size in the order of ties; ``masks[size]`` is its inverse.
    """

    def __init__(self, devices: int) -> None:
        everything = range(1 << devices)
        self.devices = devices
        by_size: list[list[int]] = []
        self.position = np.zeros(1 << devices, dtype=np.int64)
        for size in range(devices + 1):
            of_size = sorted((mask for mask in everything if mask.bit_count() == size), key=_listed)
            self.position[of_size] = range(len(of_size))
            by_size.append(of_size)
        self.masks = [np.array(of_size, dtype=np.uint8) for of_size in by_size]
        self.segment: list[int] = []
        self.sizes: list[int] = []
        self.starts: list[int] = []
        subsets: list[int] = []
        left: list[int] = []
        for mask in everything:
            self.segment.append(len(self.starts))
            for size in range(mask.bit_count() + 1):
                self.starts.append(len(subsets))
                self.sizes.append(size)
                chosen = [one for one in by_size[size] if not one & ~mask]
                subsets += chosen
                left += [mask ^ one for one in chosen]
        self.subsets, self.left = np.array(subsets), np.array(left)


def _listed(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _solve(shape: Shape, gpus: _Order, nics: _Order) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The chosen masks by (segment of GPUs, segment of NICs)."""
    inside = (_inside(shape) << _INSIDE) + (gpus.position << _FIRST)[:, None] + nics.position[None, :]
    left = _left(shape) << _LEFT
    chosen_part, left_part = inside[:, nics.subsets], left[:, nics.left]
    ends = [*gpus.starts[1:], len(gpus.subsets)]
    found_gpus = np.empty((len(gpus.starts), len(nics.starts)), dtype=np.uint8)
    positions = np.empty_like(found_gpus)
    for segment, (start, end) in enumerate(zip(gpus.starts, ends, strict=True)):
        keys = chosen_part[gpus.subsets[start]] + left_part[gpus.left[start]]
        for at in range(start + 1, end):
            np.minimum(keys, chosen_part[gpus.subsets[at]] + left_part[gpus.left[at]], out=keys)
        least = np.minimum.reduceat(keys, nics.starts)
        found_gpus[segment] = gpus.masks[gpus.sizes[segment]][(least >> _FIRST) & 0xFF]
        positions[segment] = least & 0xFF
    found_nics = np.empty_like(found_gpus)
    for size, masks in enumerate(nics.masks):
        columns = np.flatnonzero(np.array(nics.sizes) == size)
        found_nics[:, columns] = masks[positions[:, columns]]
    return found_gpus, found_nics


def _inside(shape: Shape) -> _Numbers:
    """Rank of objectives 1 to 8 by (GPU mask, NIC mask)."""
    gpus, nics = np.arange(1 << shape.gpus), np.arange(1 << shape.nics)
    size = _COUNT[gpus]
    unlinked, links = np.zeros_like(gpus), np.zeros_like(gpus)
    for a in range(shape.gpus):
        for b in range(a):
            both = (gpus >> a) & (gpus >> b) & 1
            links += both * shape.nvlinks[a][b]
            unlinked += both * (shape.nvlinks[a][b] == 0)
    sizes = {mask.bit_count() for mask in shape.partitions}
    missed = np.isin(size, list(sizes)) & ~np.isin(gpus, shape.partitions)
    spread = np.where(
        size[:, None] > 0,
        _spread(shape, [group.gpus for groups in shape.classes for group in groups], gpus)[:, None],
        _spread(shape, [group.nics for groups in shape.classes for group in groups], nics)[None, :],
    )
    far_first = list(_unpaired(shape))[::-1]
    by_gpus = [missed.astype(np.int64), unlinked, -links]
    return _ranked([*far_first, *(part[:, None] for part in by_gpus), spread], (len(gpus), len(nics)))


def _left(shape: Shape) -> _Numbers:
    """Rank of objectives 9 to 12 by (mask of GPUs left, mask of NICs left)."""
    gpus, nics = np.arange(1 << shape.gpus), np.arange(1 << shape.nics)
    parts: list[_Numbers] = []
    for size in sorted({mask.bit_count() for mask in shape.partitions}, reverse=True):
        intact = sum((gpus & mask) == mask for mask in shape.partitions if mask.bit_count() == size)
        parts.append(-np.asarray(intact, dtype=np.int64)[:, None])
    lone = np.zeros((len(gpus), len(nics)), dtype=np.int64)
    for groups in shape.classes:
        for group in groups:
            lone += np.maximum(0, _COUNT[gpus & group.gpus][:, None] - _COUNT[nics & group.nics][None, :])
    parts.append(lone)
    for within in (Level.PXB, Level.NODE):
        whole = np.zeros_like(gpus)
        for group in shape.classes[NEAR.index(within)]:
            if group.gpus:
                whole += (gpus & group.gpus) == group.gpus
        parts.append(-whole[:, None])
    return _ranked(parts, (len(gpus), len(nics)))


def _unpaired(shape: Shape) -> _Numbers:
    """Objectives 4, 3, 2, 1: by (level of NEAR, GPU mask, NIC mask), the devices that no partner so near can serve."""
    gpus, nics = np.arange(1 << shape.gpus)[:, None], np.arange(1 << shape.nics)[None, :]
    k, j = _COUNT[gpus], _COUNT[nics]
    room_of_nic, room_of_gpu = -(-k // np.maximum(j, 1)), -(-j // np.maximum(k, 1))

    def lacking(group: Group) -> _Numbers:
        here, there = _COUNT[gpus & group.gpus], _COUNT[nics & group.nics]
        lack = np.where(k >= j, here - room_of_nic * there, there - room_of_gpu * here)
        return np.where((k > 0) & (j > 0), np.maximum(lack, 0), 0)

    nothing = np.zeros((gpus.size, nics.size), dtype=np.int64)
    return np.stack([nothing + sum(lacking(group) for group in groups) for groups in shape.classes])


def _spread(shape: Shape, classes: Sequence[int], masks: _Numbers) -> _Numbers:
    """Distance of a pair: one, and one more for each level within which the two are not."""
    size = _COUNT[masks]
    total = size * (size - 1) // 2 * (1 + len(shape.classes))
    for group in classes:
        inside = _COUNT[masks & group]
        total = total - inside * (inside - 1) // 2
    return total


def _ranked(parts: Sequence[_Numbers], extent: tuple[int, int]) -> _Numbers:
    """The parts compared in their order, as ranks. Ranking after each part keeps every number small."""
    ranks = np.zeros(extent, dtype=np.int64)
    for part in parts:
        lowest, highest = int(part.min()), int(part.max())
        joined = ranks * (highest - lowest + 1) + (part - lowest)
        ranks = np.unique(joined, return_inverse=True)[1].reshape(extent)
    return ranks.astype(np.int64)

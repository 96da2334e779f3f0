"""States that are the same but for which of two equal switches holds what: one of them stands for all.

A machine with four switch groups of two GPUs and two NICs has hundreds of states that differ only by the numbering of groups.
Groups of a NUMA node that can be exchanged without changing the shape (classes, NVLinks, fabric partitions) are put in order of
what is free in them, and then NUMA nodes that can be exchanged; what the fleet computes is computed once for that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from koordra.placement.columns.state import State
from koordra.placement.mig.layout import Layout
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, MachineShape

_Positions = tuple[tuple[int, ...], tuple[int, ...]]
"""GPUs and NICs of a group, ascending."""


class Order(NamedTuple):
    """Position in the ordered state -> position on the node."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...]


class CanonicalOrder:
    """The order for one shape; answers are kept, since states come again and again.

    `layouts`: how each GPU may be cut. Codes of cut cards are put in place of those that have the same future.
    """

    def __init__(self, shape: MachineShape, layouts: Sequence[Layout | None] = ()) -> None:
        self._layouts = tuple(layouts)
        self._blocks, self._inside, self._across = _blocks(shape, self._layouts)
        self._kept: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], _Ordered] = {}

    def ordered(self, state: State) -> tuple[State, Order | None]:
        """The state that stands for this one, and where its devices are; None where nothing was reordered."""
        if not self._inside and not self._across and not self._layouts:
            return state, None
        key = state.gpus, state.nics, state.cuts
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            found = self._kept[key] = self._order(*key)
        gpus, nics, cuts, order = found
        if order is None and cuts == state.cuts:
            return state, None
        return State(state.kind, state.cpu, state.memory, gpus, nics, state.tags, cuts), order

    def _order(self, gpus: tuple[int, ...], nics: tuple[int, ...], cuts: tuple[int, ...]) -> _Ordered:
        if self._layouts:
            cuts = tuple(
                [
                    code if layout is None else layout.stands_for(code)
                    for layout, code in zip(self._layouts, cuts, strict=True)
                ]
            )
        # A cut card has no free share: what is taken of it stands there instead.
        shown = gpus if not cuts else tuple(zip(gpus, cuts, strict=True))
        contents = [
            [
                (tuple([shown[at] for at in group[0]]), tuple([nics[at] for at in group[1]]), group)
                for group in block
            ]
            for block in self._blocks
        ]
        for number, members in self._inside:
            block = contents[number]
            for at_place, found in zip(members, sorted([block[at] for at in members]), strict=True):
                block[at_place] = found
        for members in self._across:
            for at_place, whole in zip(members, sorted([contents[at] for at in members]), strict=True):
                contents[at_place] = whole
        new_gpus, new_nics = list(range(len(gpus))), list(range(len(nics)))
        for places, now in zip(self._blocks, contents, strict=True):
            for place, (_, _, group) in zip(places, now, strict=True):
                for to, at in zip(place[0], group[0], strict=True):
                    new_gpus[to] = at
                for to, at in zip(place[1], group[1], strict=True):
                    new_nics[to] = at
        free = tuple([gpus[at] for at in new_gpus]), tuple([nics[at] for at in new_nics])
        codes = tuple([cuts[at] for at in new_gpus]) if cuts else ()
        same = free == (gpus, nics) and codes == cuts
        return (*free, codes, None if same else Order(tuple(new_gpus), tuple(new_nics)))


_Ordered = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Order | None]
_MOST = 1 << 16
_Blocks = tuple[list[tuple[_Positions, ...]], list[tuple[int, list[int]]], list[list[int]]]


def _blocks(shape: MachineShape, layouts: Sequence[Layout | None]) -> _Blocks:
    """Switch groups by NUMA node; groups of a node (by its number) that may be exchanged; nodes that may."""
    groups = shape.classes[NEAR.index(Level.PXB)]
    blocks = []
    for numa in shape.classes[NEAR.index(Level.NODE)]:
        inside = [
            (_bits(group.gpus), _bits(group.nics))
            for group in groups
            if group.gpus & numa.gpus or group.nics & numa.nics
        ]
        blocks.append(tuple(sorted(inside)))
    within = [
        (number, members)
        for number, block in enumerate(blocks)
        for members in _alike(shape, layouts, [[group] for group in block])
    ]
    return blocks, within, _alike(shape, layouts, blocks)


def _alike(
    shape: MachineShape, layouts: Sequence[Layout | None], parts: Sequence[Sequence[_Positions]]
) -> list[list[int]]:
    """Parts, by number, that may take each other's places; two or more together."""
    found: list[list[int]] = []
    for number, part in enumerate(parts):
        known = next((one for one in found if _exchangeable(shape, layouts, parts[one[0]], part)), None)
        if known is None:
            found.append([number])
        else:
            known.append(number)
    return [one for one in found if len(one) > 1]


def _exchangeable(
    shape: MachineShape,
    layouts: Sequence[Layout | None],
    some: Sequence[_Positions],
    others: Sequence[_Positions],
) -> bool:
    """Whether the shape stays the same, and how cards may be cut, when these groups change places, position by position."""
    gpus, nics = list(range(shape.gpus)), list(range(shape.nics))
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        if len(one[0]) != len(other[0]) or len(one[1]) != len(other[1]):
            return False
        for kind, places in ((0, gpus), (1, nics)):
            for a, b in zip(one[kind], other[kind], strict=True):
                places[a], places[b] = b, a
    if any(layouts[a] != layouts[b] for a, b in zip(gpus, range(len(layouts)), strict=False)):
        return False
    for groups in shape.classes:
        if {(_moved(g.gpus, gpus), _moved(g.nics, nics)) for g in groups} != {tuple(g) for g in groups}:
            return False
    if {_moved(mask, gpus) for mask in shape.partitions} != set(shape.partitions):
        return False
    return all(
        shape.nvlinks[a][b] == shape.nvlinks[gpus[a]][gpus[b]]
        for a in range(shape.gpus)
        for b in range(shape.gpus)
    )


def _moved(mask: int, places: Sequence[int]) -> int:
    return sum(1 << places[at] for at in _bits(mask))


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(at for at in range(mask.bit_length()) if mask >> at & 1)

"""Which GPU and which NIC of a machine of known shape, and what the choice does to what is left.

One GPU (or a share of it) with at most one NIC: every pair is looked at. The nearest level that is free on the node wins, always;
among pairs of that level the least

    dH + dA/2 - dT/50        (`leftover`: holes, usable GPU that will lack a NIC of its group, intact switch groups)

then the smallest leftover on the GPU, on the NIC, the group with the fewest free NICs, and the first in device order. Several
GPUs or NICs: the shape's own answer (`koordra.topology.shapes`), a table look-up, of the devices that can serve.

`apart` is what a pair that is not near loses, as GPU that might as well be idle: measured all-reduce bandwidth without a common
switch is half, so half a GPU per pair; a step further costs a little more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from koordra.allocator.fleet.lacking import Lacking
from koordra.allocator.fleet.states import FULL, WHOLE, Choice, Devices, Form
from koordra.topology.levels import Level
from koordra.topology.shapes import NEAR, Chooser, Group, Shape, chooser, pair_level

APART: Final = {Level.PIX: 0, Level.PXB: 10, Level.PHB: 500, Level.NODE: 600, Level.SYS: 700}
"""Thousandths of a GPU lost per pair, by level."""

_LONE: Final = 500
_INTACT: Final = 20
_MICRO: Final = 1000
_GROUPS: Final = NEAR.index(Level.PXB)


class Joint(NamedTuple):
    """`holes` is dH in thousandths of a milli-GPU, `left` on the chosen GPU, `extra` the other terms, weighted by 1000."""

    holes: int
    left: int
    extra: int
    choice: Choice


def best(worth: Worth, form: Form) -> Joint | None:
    """The best devices for the form among those free, None where they do not suffice."""
    if not form.gpus and not form.nics:
        return Joint(0, 0, 0, Choice(()))
    if form.gpus <= 1 and form.nics <= 1:
        return min(_pairs(worth, form), default=(None,), key=lambda entry: entry[1:])[0]
    return _several(worth, form)


class Places:
    """What is asked of a shape again and again: switch groups (within PXB), whose each device is, levels of all pairs."""

    def __init__(self, shape: Shape) -> None:
        self.groups: Sequence[Group] = shape.classes[_GROUPS]
        numbered = list(enumerate(self.groups))
        self.of_gpu = [next(n for n, one in numbered if one.gpus >> at & 1) for at in range(shape.gpus)]
        self.of_nic = [next(n for n, one in numbered if one.nics >> at & 1) for at in range(shape.nics)]
        self.levels = [
            tuple(int(pair_level(shape, 1 << gpu, 1 << nic) or 0) for nic in range(shape.nics))
            for gpu in range(shape.gpus)
        ]
        self._shape = shape

    @cached_property
    def chooser(self) -> Chooser:
        """Made when several devices are first asked for; the tables take some seconds."""
        return chooser(self._shape)


class Worth:
    """What the devices are worth together, by switch group, and how that changes."""

    def __init__(self, places: Places, devices: Devices, holes: Sequence[int], nics: Lacking) -> None:
        self.places, self.devices, self.holes, self.nics = places, devices, holes, nics
        self.groups, self.group_of_gpu, self.group_of_nic = places.groups, places.of_gpu, places.of_nic
        self.usable = [0] * len(self.groups)
        for gpu, free in enumerate(devices.gpus):
            self.usable[self.group_of_gpu[gpu]] += free * _MICRO - holes[free]
        self.bandwidth = [0] * len(self.groups)
        for nic, free in enumerate(devices.nics):
            self.bandwidth[self.group_of_nic[nic]] += free
        self.lone = [nics.one(gpu, nic) for gpu, nic in zip(self.usable, self.bandwidth, strict=True)]
        self.intact = [
            group.gpus.bit_count() > 1
            and all(free == WHOLE for gpu, free in enumerate(devices.gpus) if group.gpus >> gpu & 1)
            for group in self.groups
        ]

    def drop(self, gpu: int, milli: int) -> int:
        free = self.devices.gpus[gpu]
        return self.holes[free - milli] - self.holes[free]

    def change(self, gpus: Sequence[int], nics: Sequence[int], form: Form) -> int:
        """dA and dT, weighted."""
        usable: dict[int, int] = {}
        bandwidth: dict[int, int] = {}
        for gpu in gpus:
            group = self.group_of_gpu[gpu]
            used = form.milli * _MICRO + self.drop(gpu, form.milli)
            usable[group] = usable.get(group, 0) + used
        for nic in nics:
            group = self.group_of_nic[nic]
            bandwidth[group] = bandwidth.get(group, 0) + form.percent
        total = 0
        for group in usable.keys() | bandwidth.keys():
            left = self.usable[group] - usable.get(group, 0)
            total += _LONE * (
                self.nics.one(left, self.bandwidth[group] - bandwidth.get(group, 0)) - self.lone[group]
            )
            if group in usable and self.intact[group]:
                total += _INTACT * WHOLE * _MICRO
        return total


def _pairs(worth: Worth, form: Form) -> Iterator[tuple[Joint, int, int, int, int, int, int, int]]:
    """Candidates with what orders them; devices that are alike to everything are looked at once."""
    devices = worth.devices
    paired = bool(form.gpus and form.nics)
    levels = worth.places.levels
    gpus, nics = [-1], [-1]
    if form.gpus:
        free_gpus = [gpu for gpu, free in enumerate(devices.gpus) if free >= form.milli]
        gpus = _unlike(free_gpus, lambda gpu: (worth.group_of_gpu[gpu], devices.gpus[gpu], levels[gpu]))
    if form.nics:
        free_nics = [nic for nic, free in enumerate(devices.nics) if free >= form.percent]
        nics = _unlike(
            free_nics,
            lambda nic: (worth.group_of_nic[nic], devices.nics[nic], tuple(row[nic] for row in levels)),
        )
    for gpu in gpus:
        for nic in nics:
            level = levels[gpu][nic] if paired else 0
            drop = worth.drop(gpu, form.milli) if gpu >= 0 else 0
            left = devices.gpus[gpu] - form.milli if gpu >= 0 else 0
            chosen = ((gpu,) if gpu >= 0 else (), (nic,) if nic >= 0 else ())
            extra = worth.change(*chosen, form)
            left_nics = worth.bandwidth[worth.group_of_gpu[gpu]] if gpu >= 0 and nic < 0 else 0
            left_on_nic = devices.nics[nic] - form.percent if nic >= 0 else 0
            apart = APART[Level(level)] * WHOLE * _MICRO if level else 0
            found = Joint(drop, left, extra + apart, Choice(*chosen, level))
            yield found, level, 1000 * drop + extra, left, left_on_nic, left_nics, gpu, nic


def _several(worth: Worth, form: Form) -> Joint | None:
    devices = worth.devices
    gpus = _mask(free >= form.milli for free in devices.gpus)
    nics = _mask(free >= (form.percent if form.nics else FULL) for free in devices.nics)
    found = worth.places.chooser.best(gpus, nics, form.gpus, form.nics)
    if found is None:
        return None
    chosen = (_positions(found.gpus), _positions(found.nics))
    drop = sum(worth.drop(gpu, form.milli) for gpu in chosen[0])
    pairs = max(form.gpus, form.nics)
    extra = worth.change(*chosen, form)
    if found.level is not None:
        extra += APART[found.level] * WHOLE * _MICRO * pairs
    left = max((devices.gpus[gpu] - form.milli for gpu in chosen[0]), default=0)
    return Joint(drop, left, extra, Choice(*chosen, int(found.level or 0)))


def _unlike(devices: Sequence[int], likeness: Callable[[int], Hashable]) -> list[int]:
    """The first device of each sort."""
    found: dict[Hashable, int] = {}
    for device in devices:
        found.setdefault(likeness(device), device)
    return list(found.values())


def _mask(bits: Iterator[bool]) -> int:
    return sum(1 << position for position, bit in enumerate(bits) if bit)


def _positions(mask: int) -> tuple[int, ...]:
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)

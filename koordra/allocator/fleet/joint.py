"""Which GPU and which NIC of a machine of known shape, and what the choice does to what is left.

What the choice is worth to who gets it comes first, always, in the words of the written cost (`allocator.score`): the nearest
level that is free on the node; of several GPUs also NVLink and how far they are spread. Among equal ones the least

    dH + dA/2 - dT/50        (`leftover`: holes, usable GPU that will lack a NIC of its group, intact switch groups)

then the smallest leftover on the GPU, on the NIC, the group with the fewest free NICs, and the first in device order. For one GPU
(or a share of it) with at most one NIC every pair is looked at; for several GPUs or NICs every set (`sets`).

In the key of a node the worth comes before everything else too (CLAIM): a node that has a near pair is taken before one that has
only a far one, whatever either leaves. What that costs in allocation is measured by benchmarks/scale_alignment.py. The search of
`plan()` and of the controller, whose cost is ordered like that, agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from koordra.allocator.fleet.lacking import Lacking
from koordra.allocator.fleet.sets import Sets, claims, few_enough
from koordra.allocator.fleet.states import FULL, WHOLE, Choice, Devices, Form, Spread
from koordra.allocator.score import COMPACT, NEARNESS, WORTH
from koordra.topology.levels import Level
from koordra.topology.shapes import NEAR, Chooser, Group, Shape, chooser, pair_level

CLAIM: Final = (1 << 20) * 10**6
"""One unit of what a choice costs who gets it, beside the other terms of a key: more than they can ever sum up to."""

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


class Allowed(NamedTuple):
    """Masks of the GPUs and NICs that come into question; those of them that are too full do not."""

    gpus: int
    nics: int


ALL: Final = Allowed(-1, -1)


def best(worth: Worth, form: Form, allowed: Allowed = ALL) -> Joint | None:
    """The best devices for the form among those free, None where they do not suffice."""
    if not form.gpus and not form.nics:
        return Joint(0, 0, 0, Choice(()))
    if form.gpus <= 1 and form.nics <= 1:
        return min(_pairs(worth, form, allowed), default=(None,), key=lambda entry: entry[1:])[0]
    return _several(worth, form, allowed)


class Places:
    """What is asked of a shape again and again: switch groups (within PXB), whose each device is, levels of all pairs."""

    def __init__(self, shape: Shape, spread: Spread = ()) -> None:
        self.shape = shape
        self.spread = spread or _spread_of(shape)
        self.groups: Sequence[Group] = shape.classes[_GROUPS]
        numbered = list(enumerate(self.groups))
        self.of_gpu = [next(n for n, one in numbered if one.gpus >> at & 1) for at in range(shape.gpus)]
        self.of_nic = [next(n for n, one in numbered if one.nics >> at & 1) for at in range(shape.nics)]
        self.levels = [
            tuple(int(pair_level(shape, 1 << gpu, 1 << nic) or 0) for nic in range(shape.nics))
            for gpu in range(shape.gpus)
        ]
        self._sets: dict[tuple[int, int], Sets] = {}

    def sets(self, form: Form) -> Sets:
        """Made when so many devices are first asked for."""
        size = form.gpus, form.nics
        if size not in self._sets:
            self._sets[size] = Sets(self.shape, self.spread, gpus=form.gpus, nics=form.nics)
        return self._sets[size]

    @cached_property
    def chooser(self) -> Chooser:
        """For more sets than can be written down."""
        return chooser(self.shape)

    def worth(self, gpus: Sequence[int], nics: Sequence[int]) -> int:
        """What these devices cost who gets them."""
        some = np.array([[int(at in gpus) for at in range(self.shape.gpus)]], dtype=np.int64)
        others = np.array([[int(at in nics) for at in range(self.shape.nics)]], dtype=np.int64)
        return int(claims(self.shape, self.spread, some, others)[0])


@lru_cache(maxsize=256)
def places_of(shape: Shape, spread: Spread) -> Places:
    """Of one sort of machine; the sets of devices in it are written down once."""
    return Places(shape, spread)


def _spread_of(shape: Shape) -> Spread:
    """Switch groups, roots and NUMA nodes of a machine of which only the shape is known."""
    levels = (Level.PXB, Level.PHB, Level.NODE)
    weights = [weight for _, weight in COMPACT]
    return tuple(
        (weight, tuple(one.gpus for one in shape.classes[NEAR.index(level)] if one.gpus))
        for weight, level in zip(weights, levels, strict=True)
    )


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
        taken: dict[int, int] = {}
        paired: dict[int, int] = {}
        for gpu in gpus:
            group = self.group_of_gpu[gpu]
            taken[group] = taken.get(group, 0) + form.milli * _MICRO + self.drop(gpu, form.milli)
        for nic in nics:
            group = self.group_of_nic[nic]
            paired[group] = paired.get(group, 0) + form.percent
        return sum(
            self._change(group, taken.get(group, 0), paired.get(group, 0))
            for group in taken.keys() | paired.keys()
        )

    def change_of(self, group: int, gpus: int, nics: int, form: Form) -> int:
        """The same of one group, of which so many unused GPUs and so many NICs are taken."""
        whole = WHOLE * _MICRO + self.holes[0] - self.holes[WHOLE]
        return self._change(group, gpus * whole, nics * form.percent)

    def _change(self, group: int, usable: int, bandwidth: int) -> int:
        left = self.nics.one(self.usable[group] - usable, self.bandwidth[group] - bandwidth)
        broken = usable > 0 and self.intact[group]
        return _LONE * (left - self.lone[group]) + (_INTACT * WHOLE * _MICRO if broken else 0)


def _pairs(
    worth: Worth, form: Form, allowed: Allowed
) -> Iterator[tuple[Joint, int, int, int, int, int, int, int]]:
    """Candidates with what orders them; devices that are alike to everything are looked at once."""
    devices = worth.devices
    paired = bool(form.gpus and form.nics)
    levels = worth.places.levels
    gpus, nics = [-1], [-1]
    if form.gpus:
        free_gpus = [
            gpu for gpu, free in enumerate(devices.gpus) if free >= form.milli and allowed.gpus >> gpu & 1
        ]
        gpus = _unlike(free_gpus, lambda gpu: (worth.group_of_gpu[gpu], devices.gpus[gpu], levels[gpu]))
    if form.nics:
        free_nics = [
            nic for nic, free in enumerate(devices.nics) if free >= form.percent and allowed.nics >> nic & 1
        ]
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
            apart = CLAIM * (NEARNESS // WORTH) * (level // 10)
            found = Joint(drop, left, extra + apart, Choice(*chosen, level))
            yield found, level, 1000 * drop + extra, left, left_on_nic, left_nics, gpu, nic


def _several(worth: Worth, form: Form, allowed: Allowed) -> Joint | None:
    devices, places = worth.devices, worth.places
    gpus = allowed.gpus & _mask(free >= form.milli for free in devices.gpus)
    nics = allowed.nics & _mask(free >= (form.percent if form.nics else FULL) for free in devices.nics)
    if few_enough(places.shape, form):
        sets = places.sets(form)
        number = sets.best(worth, form, gpus, nics if form.nics else -1)
        if number is None:
            return None
        apart = int(sets.worth[number])
        chosen = (
            tuple(map(int, sets.gpus[number].nonzero()[0])),
            tuple(map(int, sets.nics[number].nonzero()[0])),
        )
    else:
        found = places.chooser.best(gpus, nics, form.gpus, form.nics)
        if found is None:
            return None
        chosen = (_positions(found.gpus), _positions(found.nics))
        apart = places.worth(*chosen)
    drop = sum(worth.drop(gpu, form.milli) for gpu in chosen[0])
    left = max((devices.gpus[gpu] - form.milli for gpu in chosen[0]), default=0)
    level = pair_level(places.shape, _bits(chosen[0]), _bits(chosen[1]))
    return Joint(drop, left, worth.change(*chosen, form) + CLAIM * apart, Choice(*chosen, int(level or 0)))


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


def _bits(positions: Sequence[int]) -> int:
    return sum(1 << position for position in positions)

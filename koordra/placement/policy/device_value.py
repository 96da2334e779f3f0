"""What the devices of a machine of known shape are worth, by switch group, and how a choice changes that.

`MachineDevices` is what is asked of a shape again and again, `DeviceSetValue` looks at one state of it: usable GPU and NIC
bandwidth of every group, which together say what usable GPU will lack a NIC beside it (A), and which groups are intact (T; both in `expected_waste`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from koordra.allocator.device_table import MachineTerms
from koordra.allocator.devices.nvlink_fabric import NO_FABRIC, Fabric
from koordra.allocator.score import COMPACT, SelectionTerms, whole_groups
from koordra.placement.columns.state import WHOLE, DeviceRequestShape, Devices, Spread
from koordra.placement.mig.layout import Layout
from koordra.placement.mig.mig_placement import UNKNOWN_MIX, GroupSpreadCost, MigCardValues, Taken
from koordra.placement.policy.device_sets import MOST, Sets
from koordra.placement.policy.stranded_capacity import StrandedCapacity
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, Group, MachineShape, pair_level, positions

LONE: Final = 500
_INTACT: Final = 20
_MICRO: Final = 1000
BROKEN: Final = _INTACT * WHOLE * _MICRO
"""What usable GPU that lacks a NIC counts, and what a group counts that was intact; in thousandths."""

_GROUPS: Final = NEAR.index(Level.PXB)


class Allowed(NamedTuple):
    """Masks of the GPUs and NICs that come into question; those of them that are too full do not.

    `places` are masks of the places of each cut card, where not all of them do.
    """

    gpus: int
    nics: int
    places: tuple[int, ...] = ()


ALL: Final = Allowed(-1, -1)


class MachineDevices:
    """What is asked of a shape again and again: switch groups (within PXB), whose each device is, levels of all pairs."""

    def __init__(self, shape: MachineShape, spread: Spread = ()) -> None:
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
        self._sets: dict[tuple[int, int], Sets | None] = {}

    def sets(self, form: DeviceRequestShape) -> Sets | None:
        """Made when so many devices are first asked for; None of more than can be written down, and where they are shared."""
        if form.milli not in (0, WHOLE):
            return None
        size = form.gpus, form.nics
        if size not in self._sets:
            masks = self.machine.sets(*size, most=MOST)
            self._sets[size] = (
                None if masks is None else Sets(self.machine.table(masks), self.machine, self.groups)
            )
        return self._sets[size]

    @cached_property
    def machine(self) -> MachineTerms:
        """What the written cost says of the devices: GPUs, then NICs."""
        shape, count = self.shape, self.shape.gpus
        groups = [(weight, [frozenset(positions(mask)) for mask in masks]) for weight, masks in self.spread]
        fabric = NO_FABRIC
        if any(map(any, shape.nvlinks)):
            fabric = Fabric.of(range(count), shape.nvlinks, shape.partitions)
        terms = SelectionTerms(lambda gpu, nic: Level(self.levels[gpu][nic - count]), fabric, groups)
        devices = range(count + shape.nics)
        return MachineTerms(
            terms,
            gpus=devices[:count],
            nics=devices[count:],
            bit={device: 1 << device for device in devices},
            whole=whole_groups(groups, fabric, devices[:count]),
        )

    @cached_property
    def grouped(self) -> tuple[list[int], GroupSpreadCost]:
        """The groups that each GPU is in, as bits, and what it costs to be in several (`mig_placement`)."""
        groups, levels, first = [0] * self.shape.gpus, [], 0
        for weight, masks in self.spread:
            for number, mask in enumerate(masks):
                for gpu in positions(mask):
                    groups[gpu] |= 1 << first + number
            levels.append((weight, ((1 << len(masks)) - 1) << first))
            first += len(masks)
        return groups, GroupSpreadCost(levels)


@lru_cache(maxsize=256)
def machine_devices(shape: MachineShape, spread: Spread) -> MachineDevices:
    """Of one sort of machine; the sets of devices in it are written down once."""
    return MachineDevices(shape, spread)


def _spread_of(shape: MachineShape) -> Spread:
    """Switch groups, roots and NUMA nodes of a machine of which only the shape is known."""
    levels = (Level.PXB, Level.PHB, Level.NODE)
    weights = [weight for _, weight in COMPACT]
    return tuple(
        (weight, tuple(one.gpus for one in shape.classes[NEAR.index(level)] if one.gpus))
        for weight, level in zip(weights, levels, strict=True)
    )


class DeviceSetValue:
    """What the devices are worth together, by switch group, and how that changes."""

    def __init__(
        self,
        places: MachineDevices,
        devices: Devices,
        holes: Sequence[int],
        nics: StrandedCapacity,
        *,
        cuts: MigCardValues = UNKNOWN_MIX,
        layouts: Sequence[Layout | None] = (),
    ) -> None:
        self.places, self.devices, self.holes, self.nics = places, devices, holes, nics
        self.cuts, self.layouts = cuts, layouts
        self.groups, self.group_of_gpu, self.group_of_nic = places.groups, places.of_gpu, places.of_nic
        self.usable = [0] * len(self.groups)
        for gpu, free in enumerate(devices.gpus):
            self.usable[self.group_of_gpu[gpu]] += free * _MICRO - holes[free]
        for gpu, layout in enumerate(layouts):
            if layout is not None:
                self.usable[self.group_of_gpu[gpu]] += cuts.usable(layout, devices.cuts[gpu])
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

    def cut(self, gpu: int, form: DeviceRequestShape, allowed: Allowed) -> Taken | None:
        """The place for the form's slice on this card."""
        layout = self.layouts[gpu] if self.layouts else None
        if layout is None or not allowed.gpus >> gpu & 1:
            return None
        places = allowed.places[gpu] if allowed.places else -1
        return self.cuts.best(layout, self.devices.cuts[gpu], form.slices[0], places)

    def change_by_cuts(
        self, losses: Sequence[tuple[int, int]], nics: Sequence[int], form: DeviceRequestShape
    ) -> int:
        """dA, weighted, where usable GPU (GPU and amount) is lost by slices."""
        taken: dict[int, int] = {}
        for gpu, loss in losses:
            group = self.group_of_gpu[gpu]
            taken[group] = taken.get(group, 0) + loss
        return self._of_groups(taken, nics, form)

    def change(self, gpus: Sequence[int], nics: Sequence[int], form: DeviceRequestShape) -> int:
        """dA and dT, weighted."""
        taken: dict[int, int] = {}
        for gpu in gpus:
            group = self.group_of_gpu[gpu]
            taken[group] = taken.get(group, 0) + form.milli * _MICRO + self.drop(gpu, form.milli)
        return self._of_groups(taken, nics, form)

    def _of_groups(self, taken: Mapping[int, int], nics: Sequence[int], form: DeviceRequestShape) -> int:
        """With usable GPU taken by group, and these NICs."""
        paired: dict[int, int] = {}
        for nic in nics:
            group = self.group_of_nic[nic]
            paired[group] = paired.get(group, 0) + form.percent
        return sum(
            self._change(group, taken.get(group, 0), paired.get(group, 0))
            for group in taken.keys() | paired.keys()
        )

    def change_of(self, form: DeviceRequestShape, group: int, gpus: int, nics: int) -> int:
        """The same of one group, of which so many unused GPUs and so many NICs are taken."""
        whole = WHOLE * _MICRO + self.holes[0] - self.holes[WHOLE]
        return self._change(group, gpus * whole, nics * form.percent)

    def _change(self, group: int, usable: int, bandwidth: int) -> int:
        left = self.nics.one(self.usable[group] - usable, self.bandwidth[group] - bandwidth)
        broken = usable > 0 and self.intact[group]
        return LONE * (left - self.lone[group]) + (BROKEN if broken else 0)

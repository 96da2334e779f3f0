"""What nodes of one kind have in common: how many GPUs and NICs, which of them are near each other, which
GPUs NVLink joins.

A shape is a value; nodes with equal shapes share the tables made from it.

**Near** means the published level. "Within PXB" is read as a set of classes: devices that a chain of such
levels connects. In a tree that is the same thing; where facts contradict each other (one root on two NUMA
nodes) the nearer fact wins.

**Partitions** are those of the NVSwitch fabric of eight Hopper GPUs, in order of their minor numbers: {01}
{23} {45} {67}, {0123} {4567}, all (Koordinator's built-in table for H100, H800 and H20). Other machines have
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from koordra.api import names
from koordra.topology.fabrics import links_between_published
from koordra.topology.levels import Level, attribute, level_between

NEAR: Final = (Level.PIX, Level.PXB, Level.PHB, Level.NODE)
"""The levels that have classes, near to far; ``MachineShape.classes`` is in this order."""

_HOPPER_PARTITIONS: Final = (
    0b11111111,
    0b00001111,
    0b11110000,
    0b00000011,
    0b00001100,
    0b00110000,
    0b11000000,
)
_HOPPER: Final = "Hopper"


class DeviceGroup(NamedTuple):
    """A class of devices: bit i of ``gpus`` is the i-th GPU of the shape, bit i of ``nics`` the i-th NIC."""

    gpus: int
    nics: int


@dataclass(frozen=True, slots=True)
class MachineShape:
    """Devices are numbered in published order.

    ``classes[i]`` divides all devices by ``NEAR[i]``; ``nvlinks[a][b]`` counts the links between two GPUs;
    ``partitions`` are GPU masks, largest first.
    """

    gpus: int
    nics: int
    classes: tuple[tuple[DeviceGroup, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    partitions: tuple[int, ...] = ()


def shape_of_devices(gpus: Sequence[Mapping[str, Any]], nics: Sequence[Mapping[str, Any]]) -> MachineShape:
    """The shape of published devices, each given as its attributes ``{"koordra.io/numaNode": 0, ...}``."""
    devices = [*gpus, *nics]
    links = tuple(tuple(0 if a is b else links_between_published(a, b) for b in gpus) for a in gpus)
    levels = [[level_between(a, b) for b in devices[:at]] for at, a in enumerate(devices)]
    kinds = [(attribute(gpu, names.ATTR_ARCHITECTURE), attribute(gpu, names.ATTR_MINOR)) for gpu in gpus]
    return MachineShape(len(gpus), len(nics), _classes(len(gpus), levels), links, _partitions(links, kinds))


def pair_level(shape: MachineShape, gpus: int, nics: int) -> Level | None:
    """The worst level of the best pairing of these GPUs and NICs."""
    if not gpus or not nics:
        return None
    for level, groups in zip(NEAR, shape.classes, strict=True):
        if not sum(_unpaired(group, gpus, nics) for group in groups):
            return level
    return Level.SYS


def positions(mask: int) -> tuple[int, ...]:
    """Of the bits that are set, ascending."""
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def _unpaired(group: DeviceGroup, gpus: int, nics: int) -> int:
    """Devices of the more numerous kind in this class that its partners cannot serve.

    Partners are exchangeable within a class, and no partner outside counts: so what the class has too many is
    what an assignment must leave out, in every class for itself.
    """
    k, j = gpus.bit_count(), nics.bit_count()
    here, there = (gpus & group.gpus).bit_count(), (nics & group.nics).bit_count()
    if k < j:
        k, j, here, there = j, k, there, here
    return max(0, here - -(-k // j) * there) if j else 0


def _classes(gpu_count: int, levels: Sequence[Sequence[Level]]) -> tuple[tuple[DeviceGroup, ...], ...]:
    """For each of NEAR, the connected sets of devices that are at most so far apart, by their first device;
    `levels` are those of each device to the ones before it."""
    found = []
    for within in NEAR:
        # Device by device, the sets that it is near to become one.
        masks: list[int] = []
        for device, row in enumerate(levels):
            near = sum(1 << other for other, distance in enumerate(row) if distance <= within)
            joined = sum(mask for mask in masks if mask & near) | 1 << device
            masks = [mask for mask in masks if not mask & near] + [joined]
        masks.sort(key=lambda mask: mask & -mask)
        gpus = (1 << gpu_count) - 1
        found.append(tuple(DeviceGroup(mask & gpus, mask >> gpu_count) for mask in masks))
    return tuple(found)


def _partitions(links: Sequence[Sequence[int]], kinds: Sequence[tuple[Any, Any]]) -> tuple[int, ...]:
    """The Hopper table in device order, for eight Hopper GPUs all of which NVLink joins alike; `kinds`:
    architecture and minor."""
    widths = {links[a][b] for a in range(len(links)) for b in range(a)}
    if len(links) != 8 or len(widths) != 1 or 0 in widths or any(kind != _HOPPER for kind, _ in kinds):
        return ()
    minors = {minor for _, minor in kinds}
    numbered = None not in minors and len(minors) == 8
    order = sorted(range(8), key=lambda device: int(kinds[device][1]) if numbered else device)
    return tuple(
        sum(1 << device for place, device in enumerate(order) if mask >> place & 1)
        for mask in _HOPPER_PARTITIONS
    )

"""A node's published devices as kind and state.

A node's GPUs and NICs are those its pools publish, in that order; its kind is the GPUs' model and the shape
that their published places make, and how those in MIG mode may be cut (`mig/layout`). A MIG slice is a place
of its card, a VF one of its port's functions. What is free follows from what the allocated claims hold
(`Usage`), from taints on single devices, and from the pods' requests.

The view is for ranking: it may be coarser than the search (selectors, constraints and counters are the
search's business), never the last word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from math import ceil
from typing import Final, NamedTuple

from koordra.allocator.devices.capacity import measured
from koordra.allocator.devices.inventory import Usage
from koordra.allocator.devices.pools import Pool, PublishedDevice, kept_with_pools, shape_of
from koordra.allocator.predicates import Amounts, total_of
from koordra.api import names, objects
from koordra.api.devices import Device, DeviceID, Taint
from koordra.api.objects import Fields
from koordra.errors import InvalidQuantity
from koordra.placement.free_amounts.state import (
    FULL,
    PLENTY,
    WHOLE,
    Choice,
    FreeAmounts,
    MachineType,
    mebi_of,
    milli_of,
)
from koordra.placement.mig.profiles import NO_PROFILES, MigCard, Profiles, mig_card_of
from koordra.quantity import parse
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, positions

_MOST_PLACED: Final = 16
"""GPUs, and NICs, of a machine whose shape is looked at."""

ROOMY: Final = PLENTY, PLENTY
"""Thousandths of cores and MiB of memory of a node that does not say."""


class Place(NamedTuple):
    """The card that a device takes from, thousandths of a GPU or percent of a NIC at most, and the place of a
    card that may be cut (-1: none)."""

    is_gpu: bool
    card: int
    most: int
    cut: int = -1


@dataclass(frozen=True)
class NodeDevices:
    """The devices of a node's pools. `memory` is a GPU's; `parts` says of every device of GPUs and NICs where
    it takes what it takes; `unusable` are those that a taint keeps from everybody."""

    kind: MachineType
    gpus: tuple[DeviceID, ...]
    nics: tuple[DeviceID, ...]
    memory: Decimal
    parts: Mapping[DeviceID, Place]
    devices: Mapping[DeviceID, Device]
    unusable: frozenset[DeviceID]
    profiles: Profiles
    pools: Sequence[Pool]

    @cached_property
    def groups(self) -> tuple[Choice, ...]:
        """Devices that one switch joins; all GPUs where that is not known."""
        shape = self.kind.shape
        if shape is None:
            return (Choice(tuple(range(len(self.gpus)))),)
        within = shape.classes[NEAR.index(Level.PXB)]
        return tuple(Choice(positions(one.gpus), positions(one.nics)) for one in within)

    @cached_property
    def places(self) -> tuple[Place | None, ...]:
        """By position among all devices of the pools."""
        devices = [one.id for pool in self.pools for one in pool.devices]
        return tuple(None if one in self.unusable else self.parts.get(one) for one in devices)

    def closed(self) -> NodeDevices:
        """The same with every taint keeping everybody away, for who does not ask by request."""
        devices = [one for pool in self.pools for one in pool.devices]
        tainted = {one.id for one in devices if any(taint.keeps_out for taint in one.taints)}
        return replace(self, unusable=self.unusable | tainted) if tainted else self

    def state(self, kind: int, taken: Usage, load: Amounts, size: tuple[int, int] = ROOMY) -> FreeAmounts:
        """What is free, given what claims and pods hold of a node of this size (`size_of`)."""
        gpus, nics = [WHOLE] * len(self.gpus), [FULL] * len(self.nics)
        for position, layout in enumerate(self.kind.layouts):
            gpus[position] = WHOLE if layout is None else 0
        cuts = [0] * len(self.kind.layouts)
        in_use = [device for pool in self.pools for device in taken.of_pool.get(pool.id, ())]
        for device in {*in_use, *self.unusable} & self.parts.keys():
            is_gpu, card, _, cut = self.parts[device]
            free = gpus if is_gpu else nics
            free[card] = max(0, free[card] - self.used(device, taken))
            layout = self.kind.layouts[card] if cut >= 0 else None
            if layout is not None:
                # What is taken of a card that may be cut, and what of it nobody may have (`layout`).
                cuts[card] |= taken.in_use(device) << cut
                cuts[card] |= (device in self.unusable) << len(layout.places) + cut
        return FreeAmounts(
            kind,
            size[0] - milli_of(load.get("cpu", Decimal(0))),
            size[1] - mebi_of(load.get("memory", Decimal(0))),
            tuple(gpus),
            tuple(nics),
            tuple(cuts),
        )

    def used(self, device: DeviceID, taken: Usage) -> int:
        """Thousandths of the GPU, or percent of the NIC, that is taken of the device."""
        use, most = taken.of(device), self.parts[device].most
        if device in self.unusable or use.holder or (use.shares and not use.consumed):
            return most
        return self._part(device, use.consumed) if use.consumed else 0

    def added(self, device: DeviceID, taken: Usage, amounts: Amounts) -> int:
        """By how much that grows with a share of these amounts: the other capacities may be hardly used."""
        if not self.devices[device].allow_multiple_allocations:
            return self.parts[device].most
        consumed = taken.of(device).consumed
        together = total_of((consumed, amounts)) if consumed else amounts
        return self._part(device, together) - self.used(device, taken)

    def _part(self, device: DeviceID, amounts: Amounts) -> int:
        most, part = self.parts[device].most, measured(amounts, self.devices[device])
        return most if part is None else min(most, ceil(part * most))


def size_of(node: Fields) -> tuple[int, int]:
    """Thousandths of cores and MiB of memory that the node has; plenty where it does not say."""
    allocatable = objects.status_of(node).get("allocatable") or {}
    return (
        milli_of(_read(allocatable["cpu"])) if "cpu" in allocatable else PLENTY,
        mebi_of(_read(allocatable["memory"])) if "memory" in allocatable else PLENTY,
    )


def _read(amount: object) -> Decimal:
    """What cannot be read is not there, as for the predicates."""
    try:
        return parse(amount)
    except InvalidQuantity:
        return Decimal(0)


@kept_with_pools
def devices_of_pools(pools: Sequence[Pool]) -> NodeDevices:
    """The GPUs and NICs of a node, by its pools."""
    offered = [one for pool in pools if not pool.trouble for one in pool.devices if one.here]
    of_type: dict[str, list[PublishedDevice]] = {}
    for one in offered:
        of_type.setdefault(one.type, []).append(one)
    gpus = _gpus(offered)
    nics = of_type.get(names.TYPE_NIC, []) or _cards(of_type.get(names.TYPE_VF, []))
    known = max(len(gpus), len(nics)) <= _MOST_PLACED
    nics = nics if known else []
    cuts = _cuts(gpus, of_type.get(names.TYPE_MIG, ()), pools) if known else {}
    return NodeDevices(
        kind=MachineType(
            model=str(gpus[0].plain.get(names.ATTR_MODEL, "")) if gpus else "",
            gpus=len(gpus),
            shape=shape_of(gpus, nics) if known else None,
            layouts=tuple(cuts[at].layout if at in cuts else None for at in range(len(gpus))) if cuts else (),
        ),
        gpus=tuple(one.id for one in gpus),
        nics=tuple(one.id for one in nics),
        memory=_memory(of_type.get(names.TYPE_GPU, ())),
        parts=_parts(of_type, gpus, nics, cuts.values()),
        devices={one.id: one.device for one in offered},
        unusable=_unusable(offered),
        profiles=Profiles(sample for cut in cuts.values() for sample in cut.samples())
        if cuts
        else NO_PROFILES,
        pools=pools,
    )


def _gpus(offered: Sequence[PublishedDevice]) -> list[PublishedDevice]:
    """One device for each card, the card itself if it is given out as a whole, in the order in which cards
    are first named."""
    found: dict[str, PublishedDevice] = {}
    for one in offered:
        if one.type == names.TYPE_GPU:
            found[_card_of(one)] = one
        elif one.type == names.TYPE_MIG:
            found.setdefault(_card_of(one), one)
    return list(found.values())


def _cuts(
    gpus: Sequence[PublishedDevice], slices: Sequence[PublishedDevice], pools: Sequence[Pool]
) -> dict[int, MigCard]:
    """By position: cards that are only given out in parts, where their counters tell how."""
    if not slices:
        return {}
    counters = {pool.id: pool.counters for pool in pools}
    by_card: dict[str, list[PublishedDevice]] = {}
    for one in slices:
        by_card.setdefault(_card_of(one), []).append(one)
    found = {
        at: mig_card_of(by_card[_card_of(one)], counters)
        for at, one in enumerate(gpus)
        if one.type == names.TYPE_MIG
    }
    return {at: cut for at, cut in found.items() if cut is not None}


def _unusable(offered: Sequence[PublishedDevice]) -> frozenset[DeviceID]:
    """Devices with taints of their own. Those that all of a type on the node have keep requests off the
    node."""
    if not any(one.taints for one in offered):
        return frozenset()
    common: dict[str, set[Taint]] = {}
    for one in offered:
        own = {taint for taint in one.taints if taint.keeps_out}
        common[one.type] = common.get(one.type, own) & own
    return frozenset(
        one.id
        for one in offered
        if any(taint.keeps_out and taint not in common[one.type] for taint in one.taints)
    )


def _parts(
    of_type: Mapping[str, Sequence[PublishedDevice]],
    gpus: Sequence[PublishedDevice],
    nics: Sequence[PublishedDevice],
    cuts: Iterable[MigCard],
) -> dict[DeviceID, Place]:
    cut = {one.id: place for card in cuts for place, one in enumerate(card.devices)}
    parts: dict[DeviceID, Place] = {}
    for is_gpu, cards, most in ((True, gpus, WHOLE), (False, nics, FULL)):
        position_of = {_card_of(one): position for position, one in enumerate(cards)}
        parts |= {one.id: Place(is_gpu, position, most) for position, one in enumerate(cards)}
        slices = of_type.get(names.TYPE_MIG if is_gpu else names.TYPE_VF, ())
        siblings = Counter(map(_card_of, slices))
        parts |= {
            one.id: Place(is_gpu, position_of[card], max(1, most // siblings[card]), cut.get(one.id, -1))
            for one in slices
            if (card := _card_of(one)) in position_of
        }
    return parts


def _cards(slices: Sequence[PublishedDevice]) -> list[PublishedDevice]:
    """One of each card of which only parts are published."""
    return list({_card_of(one): one for one in reversed(slices)}.values())[::-1]


def _card_of(one: PublishedDevice) -> str:
    """The card's PCI address; of a VF its parent's name."""
    if one.type == names.TYPE_VF:
        return str(one.plain.get(names.ATTR_PARENT))
    if one.type == names.TYPE_NIC:
        return one.id.device
    return str(one.plain.get(names.STANDARD_PCI_BUS_ID, one.id.device))


def _memory(gpus: Sequence[PublishedDevice]) -> Decimal:
    for one in gpus:
        for name, entry in one.device.capacity.items():
            if name.rpartition("/")[2] == names.CAPACITY_MEMORY:
                return entry.value
    return Decimal(0)

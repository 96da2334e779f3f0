"""A node's published devices as kind and state.

A node's GPUs and NICs are those its pools publish, in that order; its kind is the GPUs' model and the shape that their published
places make, and how those in MIG mode may be cut (`slices`). A MIG slice is a place of its card, a VF one of its port's functions. What is free follows from what the
allocated claims hold (`Usage`), from taints on single devices, and from the pods' requests.

The view is for ranking: it may be coarser than the search (selectors, constraints and counters are the search's business), never
the last word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from koordra.allocator.devices.inventory import Inventory, Pool, PoolID, PublishedDevice, Usage
from koordra.api import names, objects
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE, DeviceID, Taint
from koordra.errors import InvalidQuantity
from koordra.placement.free_amounts.state import FULL, PLENTY, WHOLE, Kind, State, mebi_of, milli_of
from koordra.placement.mig.profiles import NO_PROFILES, MigCard, Profiles, mig_card_of
from koordra.quantity import parse
from koordra.topology.levels import Level
from koordra.topology.machine_shape import NEAR, MachineShape, positions, shape_of_devices

_READ: Final = "view"

_MOST_PLACED: Final = 16
"""GPUs, and NICs, of a machine whose shape is looked at."""


class DeviceGroup(NamedTuple):
    """Positions of the GPUs and NICs."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()


class Place(NamedTuple):
    """The card that a device takes from, thousandths of a GPU or percent of a NIC, and the place of a card that is cut (-1: none)."""

    is_gpu: bool
    card: int
    most: int
    cut: int


@dataclass(frozen=True)
class NodeDevices:
    """`parts` says for every device which GPU (or NIC) it takes from, and how many thousandths (or percent) at most.

    `cuts` says for the slices of cards with a layout which GPU and which place of it they are.
    """

    name: str
    kind: Kind
    gpus: tuple[DeviceID, ...]
    nics: tuple[DeviceID, ...]
    memory: Decimal
    parts: Mapping[DeviceID, tuple[bool, int, int]]
    capacity: Mapping[DeviceID, Mapping[str, Decimal]]
    unusable: frozenset[DeviceID]
    pools: frozenset[PoolID]
    cpu: int
    host_memory: int
    cuts: Mapping[DeviceID, tuple[int, int]] = field(default_factory=dict)
    profiles: Profiles = field(default=NO_PROFILES, compare=False)
    sources: tuple[Pool, ...] = field(default=(), compare=False)

    @cached_property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """Devices that one switch joins; all GPUs where that is not known."""
        shape = self.kind.shape
        if shape is None:
            return (DeviceGroup(tuple(range(len(self.gpus)))),)
        within = shape.classes[NEAR.index(Level.PXB)]
        return tuple([DeviceGroup(positions(one.gpus), positions(one.nics)) for one in within])

    @cached_property
    def places(self) -> tuple[Place | None, ...]:
        """By position among all devices of the pools."""
        devices = [one.id for pool in self.sources for one in pool.devices]
        return tuple([self._place(one) for one in devices])

    def _place(self, device: DeviceID) -> Place | None:
        if device not in self.parts or device in self.unusable:
            return None
        is_gpu, card, most = self.parts[device]
        return Place(is_gpu, card, most, self.cuts.get(device, (card, -1))[1])

    def closed(self) -> NodeDevices:
        """The same with every taint keeping everybody away, for who does not ask by request."""
        tainted = {one.id for pool in self.sources for one in pool.devices if any(map(keeps_out, one.taints))}
        return replace(self, unusable=self.unusable | tainted) if tainted else self

    def state(self, kind: int, taken: Usage, load: Mapping[str, Decimal]) -> State:
        """What is free, given what claims and pods hold."""
        gpus, nics = [WHOLE] * len(self.gpus), [FULL] * len(self.nics)
        for position, layout in enumerate(self.kind.layouts):
            gpus[position] = WHOLE if layout is None else 0
        for device in self.parts if self.unusable else self._in_use(taken):
            is_gpu, position, most = self.parts[device]
            used = self._used(device, most, taken)
            if used:
                free = gpus if is_gpu else nics
                free[position] = max(0, free[position] - used)
        return State(
            kind,
            self.cpu - milli_of(load.get("cpu", Decimal(0))),
            self.host_memory - mebi_of(load.get("memory", Decimal(0))),
            tuple(gpus),
            tuple(nics),
            self._codes(taken) if self.kind.layouts else (),
        )

    def _in_use(self, taken: Usage) -> Iterator[DeviceID]:
        return (
            device for pool in self.pools for device in taken.of_pool.get(pool, ()) if device in self.parts
        )

    def _codes(self, taken: Usage) -> tuple[int, ...]:
        """What is taken of each card that may be cut, and what of it nobody may have (`layouts`)."""
        codes = [0] * len(self.gpus)
        if self.unusable or not self.pools.isdisjoint(taken.of_pool):
            for device, (position, place) in self.cuts.items():
                if taken.in_use(device):
                    codes[position] |= 1 << place
                if device in self.unusable:
                    layout = self.kind.layouts[position]
                    assert layout is not None
                    codes[position] |= 1 << len(layout.places) + place
        return tuple(codes)

    def used(self, device: DeviceID, taken: Usage) -> int:
        """Thousandths of the GPU, or percent of the NIC, that is taken of the device."""
        return self._used(device, self.parts[device][2], taken)

    def _used(self, device: DeviceID, most: int, taken: Usage) -> int:
        if device in self.unusable or device in taken.dedicated:
            return most
        amounts = taken.consumed.get(device)
        if not amounts:
            return most if device in taken.shares else 0
        capacity = self.capacity[device]
        parts = [
            amount / capacity[name]
            for name, amount in amounts.items()
            if capacity.get(name) and name.rpartition("/")[2] != names.CAPACITY_SLOTS
        ]
        return min(most, -int(-max(parts, default=Decimal(1)) * most // 1))


def nodes_of(nodes: Mapping[str, Mapping[str, Any]], inventory: Inventory) -> list[NodeDevices]:
    """The nodes by name, with their devices."""
    return [node_devices(name, nodes[name], inventory) for name in sorted(nodes)]


def node_devices(name: str, node: Mapping[str, Any], inventory: Inventory) -> NodeDevices:
    cpu, memory = size_of(node)
    return replace(devices_of_pools(tuple(inventory.pools(node))), name=name, cpu=cpu, host_memory=memory)


def size_of(node: Mapping[str, Any]) -> tuple[int, int]:
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


def devices_of_pools(pools: tuple[Pool, ...]) -> NodeDevices:
    """All but the node's own name and size. Pools are the inventory's, which makes new ones when something changes."""
    kept = pools[0].read if pools else {}
    known: tuple[tuple[Pool, ...], NodeDevices] | None = kept.get(_READ)
    if known is None or known[0] != pools:
        known = kept[_READ] = pools, _devices_of(pools)
    return known[1]


def _devices_of(pools: tuple[Pool, ...]) -> NodeDevices:
    offered = [one for pool in pools if not pool.trouble for one in pool.devices if one.here]
    of_type: dict[str, list[PublishedDevice]] = {}
    for one in offered:
        of_type.setdefault(type_of(one), []).append(one)
    gpus = _gpus(offered)
    nics = of_type.get(names.TYPE_NIC, []) or _cards(of_type.get(names.TYPE_VF, []))
    shape = _shape(tuple(map(_where, gpus)), tuple(map(_where, nics)))
    known = max(shape.gpus, shape.nics) <= _MOST_PLACED
    cuts = _cuts(gpus, of_type.get(names.TYPE_MIG, ()), pools) if known else {}
    return NodeDevices(
        name="",
        kind=Kind(
            model=str(gpus[0].plain.get(names.ATTR_MODEL, "")) if gpus else "",
            gpus=len(gpus),
            shape=shape if known else None,
            layouts=tuple(cuts[at].layout if at in cuts else None for at in range(len(gpus))) if cuts else (),
        ),
        gpus=tuple(one.id for one in gpus),
        nics=tuple(one.id for one in nics) if known else (),
        memory=_memory(of_type.get(names.TYPE_GPU, ())),
        parts=_parts(of_type, gpus, nics if known else []),
        capacity={
            one.id: {key: entry.value for key, entry in one.device.capacity.items()} for one in offered
        },
        unusable=_unusable(offered),
        pools=frozenset(pool.id for pool in pools),
        cpu=PLENTY,
        host_memory=PLENTY,
        cuts={one.id: (at, place) for at, cut in cuts.items() for place, one in enumerate(cut.devices)},
        profiles=Profiles(sample for cut in cuts.values() for sample in cut.samples())
        if cuts
        else NO_PROFILES,
        sources=pools,
    )


def _gpus(offered: Sequence[PublishedDevice]) -> list[PublishedDevice]:
    """One device for each card, the card itself if it is given out as a whole, in the order in which cards are first named."""
    found: dict[str, PublishedDevice] = {}
    for one in offered:
        kind = one.plain.get(names.ATTR_TYPE)
        if kind == names.TYPE_GPU:
            found[_card_of(one)] = one
        elif kind == names.TYPE_MIG:
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
        if one.plain.get(names.ATTR_TYPE) == names.TYPE_MIG
    }
    return {at: cut for at, cut in found.items() if cut is not None}


def _unusable(offered: Sequence[PublishedDevice]) -> frozenset[DeviceID]:
    """Devices with taints of their own. Those that all of a type on the node have keep requests off the node."""
    if not any(one.taints for one in offered):
        return frozenset()
    common: dict[str, set[Taint]] = {}
    for one in offered:
        own = set(filter(keeps_out, one.taints))
        common[type_of(one)] = common.get(type_of(one), own) & own
    return frozenset(
        one.id
        for one in offered
        if any(keeps_out(taint) and taint not in common[type_of(one)] for taint in one.taints)
    )


def keeps_out(taint: Taint) -> bool:
    """Whether the taint keeps requests away that do not tolerate it."""
    return taint.effect in (NO_SCHEDULE, NO_EXECUTE)


def type_of(one: PublishedDevice) -> str:
    return str(one.plain.get(names.ATTR_TYPE))


def _parts(
    of_type: Mapping[str, Sequence[PublishedDevice]],
    gpus: Sequence[PublishedDevice],
    nics: Sequence[PublishedDevice],
) -> dict[DeviceID, tuple[bool, int, int]]:
    parts: dict[DeviceID, tuple[bool, int, int]] = {}
    for is_gpu, cards, most in ((True, gpus, WHOLE), (False, nics, FULL)):
        position_of = {_card_of(one): position for position, one in enumerate(cards)}
        parts |= {one.id: (is_gpu, position, most) for position, one in enumerate(cards)}
        slices = of_type.get(names.TYPE_MIG if is_gpu else names.TYPE_VF, ())
        siblings = Counter(map(_card_of, slices))
        for one in slices:
            position = position_of.get(_card_of(one), -1)
            if position >= 0:
                parts[one.id] = (is_gpu, position, max(1, most // siblings[_card_of(one)]))
    return parts


def _cards(slices: Sequence[PublishedDevice]) -> list[PublishedDevice]:
    """One of each card of which only parts are published."""
    return list({_card_of(one): one for one in reversed(slices)}.values())[::-1]


def _card_of(one: PublishedDevice) -> str:
    """The card's PCI address; of a VF its parent's name."""
    if one.plain.get(names.ATTR_TYPE) == names.TYPE_VF:
        return str(one.plain.get(names.ATTR_PARENT))
    if one.plain.get(names.ATTR_TYPE) == names.TYPE_NIC:
        return one.id.device
    return str(one.plain.get(names.STANDARD_PCI_BUS_ID, one.id.device))


_IDENTITY: Final = frozenset(
    {
        names.ATTR_UUID,
        names.ATTR_IB_DEVICE,
        names.ATTR_NETDEV,
        names.ATTR_PRODUCT_NAME,
        names.ATTR_TYPE,
        names.ATTR_PROFILE,
        names.ATTR_PLACEMENT_START,
    }
)
"""Attributes that say who a device is, not where."""

_Where = tuple[tuple[str, Any], ...]


def _where(one: PublishedDevice) -> _Where:
    return tuple(sorted((name, value) for name, value in one.plain.items() if name not in _IDENTITY))


@lru_cache(maxsize=1024)
def _shape(gpus: tuple[_Where, ...], nics: tuple[_Where, ...]) -> MachineShape:
    """Nodes of one sort have devices at the same places: their shape is made once."""
    return shape_of_devices([dict(place) for place in gpus], [dict(place) for place in nics])


def _memory(gpus: Sequence[PublishedDevice]) -> Decimal:
    for one in gpus:
        for name, entry in one.device.capacity.items():
            if name.rpartition("/")[2] == names.CAPACITY_MEMORY:
                return entry.value
    return Decimal(0)

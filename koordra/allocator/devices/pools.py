"""Pools: what a node sees of a driver's devices, gathered from ResourceSlices (source: dra.md 1.4 and
upstream's pool gathering).

- A slice counts for a node when its node name, selector or `allNodes` says so, when one of its devices does
  (`perDeviceNodeSelection`); one of shared counters when another slice of its pool does.
- Of a pool only the highest generation counts. When the slices for the node are not the whole pool, all
  slices of the pool are consulted: a newer generation elsewhere makes the node's slices obsolete (the pool is
  not there), fewer slices than `resourceSliceCount` make the pool incomplete (no device of it may be
  allocated).
- A pool with a device name twice, a counter set twice, or a consumed counter that no set has, is invalid; so
  is one with a slice that cannot be read. Other pools are not affected.
- Order: slices by name; devices as listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeVar

from koordra.allocator import features as gates
from koordra.allocator.features import Features
from koordra.allocator.predicates import selector_matches
from koordra.api import names, objects
from koordra.api.devices import (
    Attribute,
    Device,
    DeviceID,
    DeviceTaintRule,
    NodeSelection,
    ResourceSlice,
    Taint,
)
from koordra.api.objects import Fields
from koordra.cel.selectors import DeviceFacts
from koordra.topology.machine_shape import MachineShape, shape_of_devices

PoolID = tuple[str, str]
_Found = TypeVar("_Found")

GPU: Final = "gpu"
NIC: Final = "nic"
_KINDS: Final = {names.TYPE_GPU: GPU, names.TYPE_MIG: GPU, names.TYPE_NIC: NIC, names.TYPE_VF: NIC}


@dataclass(frozen=True, slots=True, eq=False)
class PublishedDevice:
    """A device as one node sees it. `taints` are the slice's and the rules', without koordra's joint taint.

    `type` is as published; `kind` is `gpu` (also for a MIG slice), `nic` (also for a VF), or "" for a device
    that is neither.
    """

    id: DeviceID
    device: Device
    facts: DeviceFacts
    class_facts: DeviceFacts
    plain: Mapping[str, Any]
    selection: NodeSelection
    here: bool
    taints: tuple[Taint, ...]
    type: str
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """`counters` are the amounts published, by (set, counter); `trouble` says why nothing may be taken from
    the pool. `switchable`: what the node's cards have in the MIG mode that they are not in; nobody can have
    it before koordra has switched the card.

    `read` is what was made of a node's pools of which this is the first (`kept_with_pools`).
    """

    id: PoolID
    devices: tuple[PublishedDevice, ...] = ()
    others: tuple[tuple[DeviceID, Device], ...] = ()
    counters: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    incomplete: bool = False
    trouble: str = ""
    switchable: tuple[PublishedDevice, ...] = ()
    read: dict[object, tuple[Sequence[Pool], Any]] = field(default_factory=dict, init=False, repr=False)

    def __str__(self) -> str:
        return "/".join(self.id)

    @property
    def is_shared(self) -> bool:
        """Whether it has devices that are on no node, which other nodes see too."""
        return any(not one.selection.node_name for one in self.devices)

    def switched(self, cards: Collection[str] | None = None) -> Pool:
        """As if these cards (all) could be had in either mode; counters keep one from being had in both."""
        found = [_without_mode(one) for one in self.switchable if cards is None or card_of(one) in cards]
        return replace(self, devices=(*self.devices, *found), switchable=())

    def only(self, devices: Collection[DeviceID]) -> Pool:
        """As if nothing else could be taken. The others are not forgotten: what they take of the counters is
        gone."""
        dropped = [(one.id, one.device) for one in self.devices if one.id not in devices]
        kept = tuple(one for one in self.devices if one.id in devices)
        return replace(self, devices=kept, others=(*self.others, *dropped))


def kept_with_pools(make: Callable[[Sequence[Pool]], _Found]) -> Callable[[Sequence[Pool]], _Found]:
    """What is made of a node's pools is kept with them, and goes when they go: the inventory makes new ones
    when something changes."""

    def kept(pools: Sequence[Pool]) -> _Found:
        if not pools:
            return make(pools)
        own = tuple(pools)
        known = own[0].read.get(make)
        if known is None or known[0] != own:
            known = own[0].read[make] = own, make(own)
        found: _Found = known[1]
        return found

    return kept


def pool_of(
    key: PoolID,
    kept: Sequence[ResourceSlice],
    of_pool: Sequence[ResourceSlice],
    node: Fields,
    *,
    features: Features,
    rules: Sequence[DeviceTaintRule],
) -> Pool | None:
    """The pool as the node sees it, from the slices that concern the node (`kept`, of one generation) among
    all of the pool.

    None where a newer generation made the node's slices obsolete.
    """
    kept = sorted(kept, key=lambda entry: entry.name)
    everywhere = kept
    if len(kept) != kept[0].slice_count:
        if any(entry.generation > kept[0].generation for entry in of_pool):
            return None
        everywhere = [entry for entry in of_pool if entry.generation == kept[0].generation]
        if len(everywhere) != kept[0].slice_count:
            return Pool(
                key,
                incomplete=True,
                trouble=f"generation {kept[0].generation} has {len(everywhere)} of {kept[0].slice_count} slices",
            )
    trouble = _invalid(kept, everywhere, counters=gates.PARTITIONABLE_DEVICES in features)
    if trouble:
        return Pool(key, trouble=trouble)
    offered = tuple(
        _offered(entry, device, node, rules)
        for entry in kept
        if not entry.shared_counters
        for device in entry.devices
    )
    here = {device.id for device in offered} if everywhere is not kept else set()
    switchable = tuple(one for one in offered if _is_switchable(one))
    if any(taint.is_other_mode for one in offered for taint in one.taints):
        # What else keeps everybody away says more than that the card is in the other mode.
        offered = tuple(_without_mode(one) for one in offered if not _is_switchable(one))
    return Pool(
        key,
        devices=offered,
        switchable=switchable,
        others=tuple(
            (identity, device)
            for entry in everywhere
            if entry.shared_counters or everywhere is not kept
            for device in entry.devices
            if (identity := DeviceID(entry.driver, entry.pool, device.name)) not in here
        ),
        counters={
            (set_name, counter): amount
            for entry in kept
            for set_name, counters in entry.shared_counters.items()
            for counter, amount in counters.items()
        },
    )


def _is_switchable(one: PublishedDevice) -> bool:
    """Whether nothing but the card's mode keeps everybody away."""
    keeping = [taint for taint in one.taints if taint.keeps_out]
    return one.id.driver == names.DRIVER and len(keeping) == 1 and keeping[0].is_other_mode


def _without_mode(one: PublishedDevice) -> PublishedDevice:
    return replace(one, taints=tuple(taint for taint in one.taints if not taint.is_other_mode))


def card_of(one: PublishedDevice) -> str:
    """The name of the card: of a MIG instance its parent's, of a card its own."""
    return str(one.plain.get(names.ATTR_PARENT) or one.id.device)


def _offered(
    entry: ResourceSlice, device: Device, node: Fields, rules: Sequence[DeviceTaintRule]
) -> PublishedDevice:
    identity = DeviceID(entry.driver, entry.pool, device.name)
    selection = device.selection if entry.per_device_selection else entry.selection
    facts, class_facts, plain = facts_of(entry.driver, device)
    taints = device.taints
    if rules:
        selects = {"driver": entry.driver, "pool": entry.pool, "device": device.name}
        taints += tuple([one.taint for one in rules if one.selects(**selects)])
    if taints and entry.driver == names.DRIVER:
        taints = tuple([taint for taint in taints if taint.key != names.JOINT_TAINT])
    here = not entry.per_device_selection or _selected(selection, node)
    of = str(plain.get(names.ATTR_TYPE))
    kind = _KINDS.get(of, "")
    return PublishedDevice(identity, device, facts, class_facts, plain, selection, here, taints, of, kind)


def concerns(entry: ResourceSlice, node: Fields) -> bool:
    """Whether the slice says anything about the node."""
    if entry.per_device_selection:
        return any(_selected(device.selection, node) for device in entry.devices)
    return _selected(entry.selection, node)


def _selected(selection: NodeSelection, node: Fields) -> bool:
    if selection.node_name:
        return selection.node_name == objects.name(node)
    return selection.all_nodes or (
        selection.selector is not None and selector_matches(selection.selector, node)
    )


def _invalid(kept: Sequence[ResourceSlice], everywhere: Sequence[ResourceSlice], *, counters: bool) -> str:
    """Why the pool cannot be trusted; empty when it can."""
    for name, times in Counter(device.name for entry in kept for device in entry.devices).items():
        if times > 1:
            return f"duplicate device name {name}"
    if not counters:
        return ""
    sets: dict[str, Mapping[str, Decimal]] = {}
    for entry in kept:
        twice = [*entry.duplicate_counter_sets, *(name for name in entry.shared_counters if name in sets)]
        if twice:
            return f"duplicate counter set name {twice[0]}"
        sets |= entry.shared_counters
    for entry in everywhere:
        for device in entry.devices:
            for set_name, consumed in device.consumes_counters.items():
                if set_name not in sets:
                    return f"counter set {set_name} not found"
                unknown = sorted(consumed.keys() - sets[set_name].keys())
                if unknown:
                    return f"counter {unknown[0]} not found in counter set {set_name}"
    return ""


@lru_cache(maxsize=1 << 12)
def facts_of(driver: str, device: Device) -> tuple[DeviceFacts, DeviceFacts, Mapping[str, Any]]:
    """What selectors read, what class selectors read, and plain attributes for the topology functions."""
    if device.alike is not None:
        own = {names.ATTR_UUID: device.attributes[names.ATTR_UUID]}
        facts, class_facts, plain = facts_of(driver, device.alike)
        plain = {**plain, names.ATTR_UUID: own[names.ATTR_UUID].value}
        mine = facts._replace(attributes={**facts.attributes, **own})
        if class_facts is facts:
            return mine, mine, plain
        return mine, class_facts._replace(attributes={**class_facts.attributes, **own}), plain
    attributes, capacity = _qualified(driver, device.attributes), _qualified(driver, device.capacity)
    facts = DeviceFacts(driver, device.allow_multiple_allocations, attributes, capacity)
    plain = {name: attribute.value for name, attribute in attributes.items()}
    if driver != names.DRIVER or names.ATTR_ALLOCATOR not in attributes:
        return facts, facts, plain
    # koordra allocates its joint devices itself: the clause of its classes that keeps the scheduler away is
    # met.
    open_to_us = attributes | {names.ATTR_ALLOCATOR: _SCHEDULER}
    return facts, facts._replace(attributes=open_to_us), plain


def _qualified(driver: str, named: Mapping[str, _Found]) -> dict[str, _Found]:
    """By full names; one with the driver's own domain written out wins over the bare one."""
    bare = {f"{driver}/{name}": found for name, found in named.items() if "/" not in name}
    return bare | {name: found for name, found in named.items() if "/" in name}


_SCHEDULER = Attribute("string", names.ALLOCATOR_SCHEDULER)


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


def shape_of(gpus: Sequence[PublishedDevice], nics: Sequence[PublishedDevice]) -> MachineShape:
    """The shape that the published places make; nodes of one sort have devices at the same places, and it is
    made once."""
    return _shape(tuple(map(_where, gpus)), tuple(map(_where, nics)))


def _where(one: PublishedDevice) -> _Where:
    return tuple(sorted((name, value) for name, value in one.plain.items() if name not in _IDENTITY))


@lru_cache(maxsize=1024)
def _shape(gpus: tuple[_Where, ...], nics: tuple[_Where, ...]) -> MachineShape:
    return shape_of_devices([dict(place) for place in gpus], [dict(place) for place in nics])

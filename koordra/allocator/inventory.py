"""What there is: devices as a node sees them, and how much of each is taken.

Pools (source: dra.md 1.4 and upstream's pool gathering):

- A slice counts for a node when its node name, selector or `allNodes` says so, when one of its devices does
  (`perDeviceNodeSelection`), or when it holds shared counters.
- Of a pool only the highest generation counts. When the slices for the node are not the whole pool, all slices of the
  pool are consulted: a newer generation elsewhere makes the node's slices obsolete (the pool is not there), fewer slices than
  `resourceSliceCount` make the pool incomplete (no device of it may be allocated).
- A pool with a device name twice, a counter set twice, or a consumed counter that no set has, is invalid; so is one with a
  slice that cannot be read. Other pools are not affected.
- Order: pools by driver and name, those with binding conditions last; slices by name; devices as listed. First fit
  means this order.

Taken is what the claims with an allocation say: dedicated devices, shares with their consumed capacity, and the
counters of every device in use (once per device, however many shares it has). adminAccess takes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.allocator import features as gates
from koordra.allocator.features import Features
from koordra.allocator.predicates import selector_matches
from koordra.allocator.selectors import DeviceFacts
from koordra.api import names, objects
from koordra.api.allocation import DeviceResult
from koordra.api.devices import Attribute, Capacity, Device, DeviceID, NodeSelection, Taint
from koordra.api.slices import DeviceTaintRule, ResourceSlice
from koordra.errors import InvalidManifest

PoolID = tuple[str, str]

GPU: Final = "gpu"
NIC: Final = "nic"
_KINDS: Final = {names.TYPE_GPU: GPU, names.TYPE_MIG: GPU, names.TYPE_NIC: NIC, names.TYPE_VF: NIC}


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """A device as one node sees it. `taints` are the slice's and the rules', without koordra's joint taint.

    `kind` is `gpu` (also for a MIG slice), `nic` (also for a VF), or "" for a device that is neither.
    """

    id: DeviceID
    device: Device
    facts: DeviceFacts
    class_facts: DeviceFacts
    plain: Mapping[str, Any]
    selection: NodeSelection
    here: bool
    taints: tuple[Taint, ...]
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """`counters` are the amounts published, by (set, counter); `trouble` says why nothing may be taken from the pool."""

    id: PoolID
    devices: tuple[Offered, ...] = ()
    others: tuple[tuple[DeviceID, Device], ...] = ()
    counters: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    incomplete: bool = False
    trouble: str = ""

    def __str__(self) -> str:
        return "/".join(self.id)


@dataclass(slots=True)
class Taken:
    """What is in use. Grows while groups are planned one after the other."""

    dedicated: dict[DeviceID, str] = field(default_factory=dict)
    shares: dict[DeviceID, int] = field(default_factory=dict)
    consumed: dict[DeviceID, dict[str, Decimal]] = field(default_factory=dict)
    pools: set[PoolID] = field(default_factory=set)

    def add(self, results: Iterable[DeviceResult], *, holder: str) -> None:
        """Count an allocation's results. `holder` is the claim, for messages."""
        for result in results:
            if result.admin_access:
                continue
            self.pools.add((result.device.driver, result.device.pool))
            if result.share_id is None:
                self.dedicated.setdefault(result.device, holder)
                continue
            self.shares[result.device] = self.shares.get(result.device, 0) + 1
            amounts = self.consumed.setdefault(result.device, {})
            for name, amount in result.consumed.items():
                amounts[name] = amounts.get(name, Decimal(0)) + amount

    def in_use(self, device: DeviceID) -> bool:
        return device in self.dedicated or device in self.shares


@dataclass(slots=True)
class Inventory:
    """ResourceSlices by pool and by the node they are for, with the taint rules; unreadable ones make their pool invalid.

    Reading slices is most of the work of planning one small claim. Who plans often over the same slices reads them once
    (`read_inventory`) and gives the value to each `plan()`.
    """

    features: Features
    rules: tuple[DeviceTaintRule, ...] = ()
    by_pool: dict[PoolID, list[ResourceSlice]] = field(default_factory=lambda: defaultdict(list))
    by_node: dict[str, list[ResourceSlice]] = field(default_factory=lambda: defaultdict(list))
    anywhere: list[ResourceSlice] = field(default_factory=list)
    unreadable: dict[PoolID, str] = field(default_factory=dict)
    likes: dict[Hashable, int] = field(default_factory=dict)
    _pools: dict[tuple[object, ...], list[Pool]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, slices: Iterable[Mapping[str, Any]], *, features: Features, rules: Iterable[DeviceTaintRule] = ()
    ) -> Inventory:
        index = cls(features, tuple(rules))
        for obj in slices:
            try:
                index.add(ResourceSlice.from_dict(obj))
            except InvalidManifest as error:
                spec = objects.spec_of(obj)
                pool = spec.get("pool")
                name = pool.get("name") if isinstance(pool, Mapping) else None
                index.unreadable.setdefault((str(spec.get("driver")), str(name)), str(error))
        return index

    def add(self, entry: ResourceSlice) -> None:
        if gates.PARTITIONABLE_DEVICES not in self.features and (
            entry.per_device_selection or entry.shared_counters
        ):
            # Still counted for completeness, never relevant for a node.
            self.by_pool[entry.driver, entry.pool].append(entry)
            return
        self.by_pool[entry.driver, entry.pool].append(entry)
        if entry.shared_counters or not entry.selection.node_name:
            self.anywhere.append(entry)
        else:
            self.by_node[entry.selection.node_name].append(entry)

    def node_names(self) -> list[str]:
        """Nodes that slices name, for input without Node objects."""
        named = set(self.by_node)
        for entry in self.anywhere:
            named |= {device.selection.node_name for device in entry.devices if device.selection.node_name}
        return sorted(named)

    def pools(self, node: Mapping[str, Any]) -> list[Pool]:
        """All pools that are accessible from the node, in search order; gathered once per node (and its labels)."""
        name = objects.name(node)
        labels = objects.metadata(node).get("labels") if self.anywhere else None
        key = (name, *sorted((labels or {}).items()))
        if key in self._pools:
            return self._pools[key]
        relevant: dict[PoolID, list[ResourceSlice]] = {}
        for entry in (*self.anywhere, *self.by_node.get(name, ())):
            if not _concerns(entry, node):
                continue
            pool = (entry.driver, entry.pool)
            kept = relevant.get(pool)
            if kept is None or entry.generation > kept[0].generation:
                relevant[pool] = [entry]
            elif entry.generation == kept[0].generation:
                kept.append(entry)
        found = [self._pool(key, of_pool, node) for key, of_pool in sorted(relevant.items())]
        built = [pool for pool in found if pool is not None]
        self._pools[key] = sorted(built, key=lambda pool: (_has_binding_conditions(pool), pool.id))
        return self._pools[key]

    def plain_devices(self, entry: ResourceSlice) -> list[tuple[DeviceID, Mapping[str, Any]]]:
        """The slice's devices with plain attribute values, wherever they are usable."""
        return [
            (DeviceID(entry.driver, entry.pool, device.name), _facts(entry.driver, device)[2])
            for device in entry.devices
        ]

    def _pool(self, key: PoolID, kept: list[ResourceSlice], node: Mapping[str, Any]) -> Pool | None:
        if key in self.unreadable:
            return Pool(key, trouble=self.unreadable[key])
        everywhere = kept
        if len(kept) != kept[0].slice_count:
            of_pool = self.by_pool[key]
            if any(entry.generation > kept[0].generation for entry in of_pool):
                return None
            everywhere = [entry for entry in of_pool if entry.generation == kept[0].generation]
            if len(everywhere) != kept[0].slice_count:
                return Pool(
                    key,
                    incomplete=True,
                    trouble=f"generation {kept[0].generation} has {len(everywhere)} of {kept[0].slice_count} slices",
                )
        ordered = sorted(kept, key=lambda entry: entry.name)
        trouble = _invalid(ordered, everywhere, counters=gates.PARTITIONABLE_DEVICES in self.features)
        if trouble:
            return Pool(key, trouble=trouble)
        offered = tuple(
            self._offered(entry, device, node)
            for entry in ordered
            if not entry.shared_counters
            for device in entry.devices
        )
        here = {device.id for device in offered}
        return Pool(
            key,
            devices=offered,
            others=tuple(
                (identity, device)
                for entry in everywhere
                for device in entry.devices
                if (identity := DeviceID(entry.driver, entry.pool, device.name)) not in here
            ),
            counters={
                (set_name, counter): amount
                for entry in ordered
                for set_name, counters in entry.shared_counters.items()
                for counter, amount in counters.items()
            },
        )

    def _offered(self, entry: ResourceSlice, device: Device, node: Mapping[str, Any]) -> Offered:
        identity = DeviceID(entry.driver, entry.pool, device.name)
        selection = device.selection if entry.per_device_selection else entry.selection
        facts, class_facts, plain = _facts(entry.driver, device)
        added = tuple(
            rule.taint
            for rule in self.rules
            if rule.selects(driver=entry.driver, pool=entry.pool, device=device.name)
        )
        own = entry.driver == names.DRIVER
        taints = tuple(
            taint for taint in device.taints + added if not (own and taint.key == names.JOINT_TAINT)
        )
        here = not entry.per_device_selection or _selected(selection, node)
        kind = _KINDS.get(str(plain.get(names.ATTR_TYPE)), "")
        return Offered(identity, device, facts, class_facts, plain, selection, here, taints, kind)


def available_counters(pool: Pool, taken: Taken) -> dict[tuple[str, str], Decimal]:
    """What is left of the pool's counters; may be negative where more was given out than is published now."""
    left = dict(pool.counters)
    for identity, device in (*((entry.id, entry.device) for entry in pool.devices), *pool.others):
        if device.consumes_counters and taken.in_use(identity):
            for set_name, counters in device.consumes_counters.items():
                for counter, amount in counters.items():
                    if (set_name, counter) in left:
                        left[set_name, counter] -= amount
    return left


def _concerns(entry: ResourceSlice, node: Mapping[str, Any]) -> bool:
    if entry.shared_counters:
        return True
    if entry.per_device_selection:
        return any(_selected(device.selection, node) for device in entry.devices)
    return _selected(entry.selection, node)


def _selected(selection: NodeSelection, node: Mapping[str, Any]) -> bool:
    if selection.node_name:
        return selection.node_name == objects.name(node)
    if selection.all_nodes:
        return True
    return selection.selector is not None and selector_matches(selection.selector, node)


def _has_binding_conditions(pool: Pool) -> bool:
    return any(entry.device.binding_conditions for entry in pool.devices)


def _invalid(kept: list[ResourceSlice], everywhere: list[ResourceSlice], *, counters: bool) -> str:
    """Why the pool cannot be trusted; empty when it can."""
    seen: set[str] = set()
    for entry in kept:
        for device in entry.devices:
            if device.name in seen:
                return f"duplicate device name {device.name}"
            seen.add(device.name)
    if not counters:
        return ""
    sets: dict[str, frozenset[str]] = {}
    for entry in kept:
        if entry.duplicate_counter_sets:
            return f"duplicate counter set name {entry.duplicate_counter_sets[0]}"
        for name, counter in entry.shared_counters.items():
            if name in sets:
                return f"duplicate counter set name {name}"
            sets[name] = frozenset(counter)
    known = {id(entry) for entry in kept}
    for entry in (*kept, *(other for other in everywhere if id(other) not in known)):
        for device in entry.devices:
            for set_name, consumed in device.consumes_counters.items():
                if set_name not in sets:
                    return f"counter set {set_name} not found"
                unknown = sorted(set(consumed) - sets[set_name])
                if unknown:
                    return f"counter {unknown[0]} not found in counter set {set_name}"
    return ""


def _facts(driver: str, device: Device) -> tuple[DeviceFacts, DeviceFacts, Mapping[str, Any]]:
    """What selectors read, what class selectors read, and plain attribute values for the topology functions."""
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, Capacity] = {}
    for bare in (True, False):
        # A name with the driver's own domain written out wins over the bare one.
        for name, attribute in device.attributes.items():
            if ("/" not in name) == bare:
                attributes[f"{driver}/{name}" if bare else name] = attribute
        for name, entry in device.capacity.items():
            if ("/" not in name) == bare:
                capacity[f"{driver}/{name}" if bare else name] = entry
    facts = DeviceFacts(driver, device.allow_multiple_allocations, attributes, capacity)
    plain = {name: attribute.value for name, attribute in attributes.items()}
    if driver != names.DRIVER or names.ATTR_ALLOCATOR not in attributes:
        return facts, facts, plain
    # koordra allocates its joint devices itself: the clause of its classes that keeps the scheduler away is met.
    open_to_us = {**attributes, names.ATTR_ALLOCATOR: _SCHEDULER}
    return facts, DeviceFacts(driver, device.allow_multiple_allocations, open_to_us, capacity), plain


_SCHEDULER = Attribute("string", names.ALLOCATOR_SCHEDULER)

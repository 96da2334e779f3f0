"""What there is, and how much of it is taken.

The inventory holds every ResourceSlice, read once, and gives each node its pools (`pools.py`), in upstream's order: by driver
and name, those with binding conditions last. First fit means this order.

Usage is what the claims with an allocation say: dedicated devices, shares with their consumed capacity, and the
counters of every device in use (once per device, however many shares it has). adminAccess takes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from koordra.allocator import features as gates
from koordra.allocator.devices.pools import (
    GPU,
    NIC,
    Pool,
    PoolID,
    PublishedDevice,
    concerns,
    facts_of,
    pool_of,
)
from koordra.allocator.features import TAINT_RULES, Features
from koordra.api import objects
from koordra.api.allocation import DeviceResult
from koordra.api.devices import DeviceID
from koordra.api.slices import DeviceTaintRule, ResourceSlice
from koordra.errors import InvalidManifest, PlanError

__all__ = ["GPU", "NIC", "Inventory", "Pool", "PoolID", "PublishedDevice", "Usage", "available_counters"]

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")


@dataclass(slots=True)
class Usage:
    """What is in use. Grows while groups are planned one after the other."""

    dedicated: dict[DeviceID, str] = field(default_factory=dict)
    shares: dict[DeviceID, int] = field(default_factory=dict)
    consumed: dict[DeviceID, dict[str, Decimal]] = field(default_factory=dict)
    sharers: dict[DeviceID, dict[str, set[str]]] = field(default_factory=dict)
    """Of shared devices: the claims that have shares, each with the capacities that it takes something of."""
    pools: set[PoolID] = field(default_factory=set)
    of_pool: dict[PoolID, set[DeviceID]] = field(default_factory=dict)
    _of_device: dict[DeviceID, Hashable] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for device in (*self.dedicated, *self.shares):
            self._uses(device)

    def _uses(self, device: DeviceID) -> None:
        pool = (device.driver, device.pool)
        self.pools.add(pool)
        self.of_pool.setdefault(pool, set()).add(device)

    def add(self, results: Iterable[DeviceResult], *, holder: str) -> None:
        """Count an allocation's results. `holder` is the claim, for messages."""
        for result in results:
            if result.admin_access:
                continue
            self._uses(result.device)
            self._of_device.pop(result.device, None)
            if result.share_id is None:
                self.dedicated.setdefault(result.device, holder)
                continue
            self.shares[result.device] = self.shares.get(result.device, 0) + 1
            amounts = self.consumed.setdefault(result.device, {})
            takes = self.sharers.setdefault(result.device, {}).setdefault(holder, set())
            for name, amount in result.consumed.items():
                amounts[name] = amounts.get(name, Decimal(0)) + amount
                if amount > 0:
                    takes.add(name)

    def clear(self, pool: PoolID) -> None:
        """Nothing of the pool is in use."""
        for device in self.of_pool.pop(pool, ()):
            self.dedicated.pop(device, None)
            self.shares.pop(device, None)
            self.consumed.pop(device, None)
            self.sharers.pop(device, None)
            self._of_device.pop(device, None)
        self.pools.discard(pool)

    def in_use(self, device: DeviceID) -> bool:
        return device in self.dedicated or device in self.shares

    def of_device(self, device: DeviceID) -> Hashable:
        """What is in use of the device, whoever holds it."""
        found = self._of_device.get(device)
        if found is None:
            amounts = tuple(sorted(self.consumed.get(device, {}).items()))
            found = self._of_device[device] = device in self.dedicated, self.shares.get(device, 0), amounts
        return found


@dataclass(slots=True)
class Inventory:
    """ResourceSlices by pool and by the node they are for, with the taint rules; unreadable ones make their pool invalid.

    It is told what changes (`put`, `remove`: what a watch delivers). What was gathered for a node is kept until one of its pools
    changes. Not thread-safe.
    """

    features: Features
    rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    by_pool: dict[PoolID, list[ResourceSlice]] = field(default_factory=dict)
    by_node: dict[str, list[ResourceSlice]] = field(default_factory=dict)
    anywhere: list[ResourceSlice] = field(default_factory=list)
    unreadable: dict[PoolID, dict[str, str]] = field(default_factory=dict)
    _named: dict[str, list[PoolID]] = field(default_factory=dict)
    _pools: dict[str, tuple[Hashable, list[Pool]]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifests: Iterable[Mapping[str, Any]], *, features: Features) -> Inventory:
        """Of ResourceSlices and DeviceTaintRules in a fixed order. Raises PlanError for a rule that cannot be read."""
        index = cls(features)
        for manifest in manifests:
            index._add(manifest)
        return index

    def put(self, manifest: Mapping[str, Any]) -> None:
        """A ResourceSlice or DeviceTaintRule that is new or has changed. Objects are told apart by kind and name.

        Raises PlanError for another kind, and for a taint rule that cannot be read (which then taints what it did before).
        """
        if manifest.get("kind") == "ResourceSlice":
            self.remove(manifest)
        self._add(manifest)
        self._forget(manifest)

    def remove(self, manifest: Mapping[str, Any]) -> set[str]:
        """A ResourceSlice or DeviceTaintRule that is gone; only kind and name are looked at. Unknown ones change nothing.

        Returns the nodes that may see another pool.
        """
        name = objects.name(manifest)
        if manifest.get("kind") == "DeviceTaintRule":
            self.rules.pop(name, None)
            touched = set(self._pools)
            self._pools.clear()
            return touched
        touched = self._forget(manifest)
        nodes: set[str] = set()
        for pool in self._named.pop(name, ()):
            of_pool = self.by_pool.get(pool, [])
            nodes |= {entry.selection.node_name for entry in of_pool if entry.name == name}
            _keep(self.by_pool, pool, [entry for entry in of_pool if entry.name != name])
            texts = self.unreadable.get(pool, {})
            _keep(self.unreadable, pool, {of: text for of, text in texts.items() if of != name})
        self.anywhere = [entry for entry in self.anywhere if entry.name != name]
        for node in nodes & self.by_node.keys():
            _keep(self.by_node, node, [entry for entry in self.by_node[node] if entry.name != name])
        return touched

    def replace(
        self, name: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
    ) -> set[str]:
        """The ResourceSlices of this name are `after` now; they were `before`. Returns the nodes that may see another pool."""
        touched = self.remove({"kind": "ResourceSlice", "metadata": {"name": name}}) if before else set()
        for manifest in after:
            self._add(manifest)
            touched |= self._forget(manifest)
        return touched

    def _add(self, manifest: Mapping[str, Any]) -> None:
        name = objects.name(manifest)
        if manifest.get("kind") == "DeviceTaintRule":
            try:
                if TAINT_RULES in self.features:
                    self.rules[name] = DeviceTaintRule.from_dict(manifest)
            except InvalidManifest as error:
                # A rule that cannot be read might taint anything; planning on without it would ignore an administrator.
                raise PlanError(str(error)) from error
            return
        if manifest.get("kind") != "ResourceSlice":
            raise PlanError(f"{objects.describe(manifest)} is neither a ResourceSlice nor a DeviceTaintRule")
        try:
            entry = ResourceSlice.from_dict(manifest)
        except InvalidManifest as error:
            spec = objects.spec_of(manifest)
            given = spec.get("pool")
            pool = (
                str(spec.get("driver")),
                str(given.get("name") if isinstance(given, Mapping) else None),
            )
            self.unreadable.setdefault(pool, {})[name] = str(error)
            self._named.setdefault(name, []).append(pool)
            return
        self._named.setdefault(name, []).append((entry.driver, entry.pool))
        self.by_pool.setdefault((entry.driver, entry.pool), []).append(entry)
        if gates.PARTITIONABLE_DEVICES not in self.features and (
            entry.per_device_selection or entry.shared_counters
        ):
            # Counted for completeness, never relevant for a node.
            return
        if entry.shared_counters or not entry.selection.node_name:
            self.anywhere.append(entry)
        else:
            self.by_node.setdefault(entry.selection.node_name, []).append(entry)

    def _forget(self, manifest: Mapping[str, Any]) -> set[str]:
        """What was gathered from pools that the object is, or was, a part of; a rule may be about any."""
        pools = self._named.get(objects.name(manifest), ())
        parts = [entry for pool in pools for entry in self.by_pool.get(pool, ())]
        if manifest.get("kind") == "DeviceTaintRule" or any(not part.selection.node_name for part in parts):
            nodes = set(self._pools)
        else:
            nodes = {part.selection.node_name for part in parts}
        for node in nodes:
            self._pools.pop(node, None)
        return nodes

    def node_names(self) -> list[str]:
        """Nodes that slices name, for input without Node objects."""
        named = {node for node, entries in self.by_node.items() if entries}
        for entry in self.anywhere:
            named |= {device.selection.node_name for device in entry.devices if device.selection.node_name}
        return sorted(named)

    def pools(self, node: Mapping[str, Any]) -> list[Pool]:
        """All pools that are accessible from the node, in search order; gathered once per node (and its labels)."""
        name = objects.name(node)
        labels = objects.metadata(node).get("labels") if self.anywhere else None
        seen = tuple(sorted((labels or {}).items()))
        known = self._pools.get(name)
        if known is not None and known[0] == seen:
            return known[1]
        relevant: dict[PoolID, list[ResourceSlice]] = {}
        for entry in (*self.anywhere, *self.by_node.get(name, ())):
            if not concerns(entry, node):
                continue
            pool = (entry.driver, entry.pool)
            kept = relevant.get(pool)
            if kept is None or entry.generation > kept[0].generation:
                relevant[pool] = [entry]
            elif entry.generation == kept[0].generation:
                kept.append(entry)
        found = [self._pool(key, of_pool, node) for key, of_pool in sorted(relevant.items())]
        built = [pool for pool in found if pool is not None]
        ordered = sorted(built, key=lambda pool: (_has_binding_conditions(pool), pool.id))
        self._pools[name] = seen, ordered
        return ordered

    def _pool(self, key: PoolID, kept: list[ResourceSlice], node: Mapping[str, Any]) -> Pool | None:
        unreadable = self.unreadable.get(key)
        if unreadable:
            return Pool(key, trouble=unreadable[min(unreadable)])
        rules = [self.rules[name] for name in sorted(self.rules)]
        return pool_of(key, kept, self.by_pool[key], node, features=self.features, rules=rules)

    def plain_devices(self, entry: ResourceSlice) -> list[tuple[DeviceID, Mapping[str, Any]]]:
        """The slice's devices with plain attribute values, wherever they are usable."""
        return [
            (DeviceID(entry.driver, entry.pool, device.name), facts_of(entry.driver, device)[2])
            for device in entry.devices
        ]


def _keep(table: dict[_Key, _Found], key: _Key, found: _Found) -> None:
    """Nodes and pools come and go under names of their own: what is empty is not kept."""
    if found:
        table[key] = found
    else:
        table.pop(key, None)


def available_counters(pool: Pool, taken: Usage) -> dict[tuple[str, str], Decimal]:
    """What is left of the pool's counters; may be negative where more was given out than is published now."""
    left = dict(pool.counters)
    for identity, device in (*((entry.id, entry.device) for entry in pool.devices), *pool.others):
        if device.consumes_counters and taken.in_use(identity):
            for set_name, counters in device.consumes_counters.items():
                for counter, amount in counters.items():
                    if (set_name, counter) in left:
                        left[set_name, counter] -= amount
    return left


def _has_binding_conditions(pool: Pool) -> bool:
    return any(entry.device.binding_conditions for entry in pool.devices)

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
    pool_of,
)
from koordra.allocator.features import TAINT_RULES, Features
from koordra.api import objects
from koordra.api.allocation import DeviceResult
from koordra.api.devices import DeviceID, DeviceTaintRule, ResourceSlice
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
    of_pool: dict[PoolID, set[DeviceID]] = field(default_factory=dict)
    _of_device: dict[DeviceID, Hashable] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for device in (*self.dedicated, *self.shares):
            self._uses(device)

    def _uses(self, device: DeviceID) -> None:
        self.of_pool.setdefault((device.driver, device.pool), set()).add(device)

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
            for table in (self.dedicated, self.shares, self.consumed, self.sharers, self._of_device):
                table.pop(device, None)

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
    """ResourceSlices by pool and by the node they are for ("" for several), with the taint rules; unreadable ones make their
    pool invalid.

    It is told what changes (`put`, `remove`: what a watch delivers). What was gathered for a node is kept until one of its pools
    changes. Not thread-safe.
    """

    features: Features
    rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    by_pool: dict[PoolID, list[ResourceSlice]] = field(default_factory=dict)
    by_node: dict[str, list[ResourceSlice]] = field(default_factory=dict)
    unreadable: dict[PoolID, dict[str, str]] = field(default_factory=dict)
    _named: dict[str, list[tuple[PoolID, str]]] = field(default_factory=dict)
    """Of the slices of a name: pool, and node or ""."""
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
        touched = self._forget(manifest)
        name = objects.name(manifest)
        if manifest.get("kind") == "DeviceTaintRule":
            self.rules.pop(name, None)
            return touched
        for pool, node in self._named.pop(name, ()):
            _keep(self.by_pool, pool, [entry for entry in self.by_pool.get(pool, ()) if entry.name != name])
            _keep(self.by_node, node, [entry for entry in self.by_node.get(node, ()) if entry.name != name])
            texts = self.unreadable.get(pool, {})
            _keep(self.unreadable, pool, {of: text for of, text in texts.items() if of != name})
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
            pool = str(spec.get("driver")), str(given.get("name") if isinstance(given, Mapping) else None)
            self.unreadable.setdefault(pool, {})[name] = str(error)
            self._named.setdefault(name, []).append((pool, ""))
            return
        pool, node = (entry.driver, entry.pool), entry.selection.node_name
        self._named.setdefault(name, []).append((pool, node))
        self.by_pool.setdefault(pool, []).append(entry)
        # Without the gate, per-device selection is counted for completeness, but never relevant for a node; nor are counters alone.
        if not entry.shared_counters and (
            gates.PARTITIONABLE_DEVICES in self.features or not entry.per_device_selection
        ):
            self.by_node.setdefault(node, []).append(entry)

    def _forget(self, manifest: Mapping[str, Any]) -> set[str]:
        """What was gathered from pools that the object is, or was, a part of; a rule may be about any."""
        named = self._named.get(objects.name(manifest), ())
        nodes = {part.selection.node_name for pool, _ in named for part in self.by_pool.get(pool, ())}
        if manifest.get("kind") == "DeviceTaintRule" or "" in nodes:
            nodes = set(self._pools)
        for node in nodes:
            self._pools.pop(node, None)
        return nodes

    def node_names(self) -> list[str]:
        """Nodes that slices name, for input without Node objects."""
        named = {device.selection.node_name for entry in self.by_node.get("", ()) for device in entry.devices}
        return sorted((named | self.by_node.keys()) - {""})

    def pools(self, node: Mapping[str, Any]) -> list[Pool]:
        """All pools that are accessible from the node, in search order; gathered once per node (and its labels)."""
        name = objects.name(node)
        anywhere = self.by_node.get("", ())
        seen = tuple(sorted(objects.labels_of(node).items())) if anywhere else ()
        known = self._pools.get(name)
        if known is not None and known[0] == seen:
            return known[1]
        relevant: dict[PoolID, list[ResourceSlice]] = {}
        for entry in (*anywhere, *self.by_node.get(name, ())):
            if concerns(entry, node):
                relevant.setdefault((entry.driver, entry.pool), []).append(entry)
        rules = [self.rules[name] for name in sorted(self.rules)]
        found = []
        for pool, entries in sorted(relevant.items()):
            if gates.PARTITIONABLE_DEVICES in self.features:
                # Counters matter wherever devices of their pool do, and nowhere else: other nodes' pools stay out.
                entries += [entry for entry in self.by_pool[pool] if entry.shared_counters]
            newest = max(entry.generation for entry in entries)
            kept = [entry for entry in entries if entry.generation == newest]
            if texts := self.unreadable.get(pool):
                found.append(Pool(pool, trouble=texts[min(texts)]))
            elif built := pool_of(pool, kept, self.by_pool[pool], node, features=self.features, rules=rules):
                found.append(built)
        found.sort(key=lambda pool: any(entry.device.binding_conditions for entry in pool.devices))
        self._pools[name] = seen, found
        return found


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

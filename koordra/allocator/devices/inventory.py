"""What there is, and how much of it is taken.

The inventory holds every ResourceSlice, read once, and gives each node its pools (`pools.py`), in upstream's
order: by driver and name, those with binding conditions last. First fit means this order.

Usage is what the claims with an allocation say: dedicated devices, shares with their consumed capacity, and
the counters of every device in use (once per device, however many shares it has). adminAccess takes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from koordra.allocator import features as gates
from koordra.allocator.devices.pools import (
    GPU,
    NIC,
    Pool,
    PoolID,
    PublishedDevice,
    concerns,
    facts_of,
    kept_with_pools,
    pool_of,
)
from koordra.allocator.features import Features
from koordra.api import names, objects
from koordra.api.allocation import DeviceResult
from koordra.api.devices import Device, DeviceID, DeviceTaintRule, ResourceSlice
from koordra.api.objects import Fields
from koordra.api.opaque.isolation import attribute, of_one_namespace
from koordra.api.tables import set_or_drop
from koordra.errors import InvalidManifest, PlanError

__all__ = ["GPU", "NIC", "Inventory", "Pool", "PoolID", "PublishedDevice"]


@dataclass(slots=True)
class DeviceUse:
    """What is in use of one device. `holder`: the claim that has all of it; `sharers`: the claims that have
    shares, each with the capacities that it takes something of; `namespaces`: theirs."""

    holder: str = ""
    shares: int = 0
    consumed: dict[str, Decimal] = field(default_factory=dict)
    sharers: dict[str, set[str]] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)
    _amounts: Hashable = field(default=None, compare=False)

    def add(self, result: DeviceResult, holder: str, namespace: str) -> None:
        self._amounts = None
        if result.share_id is None:
            self.holder = self.holder or holder
            return
        self.shares += 1
        self.namespaces.add(namespace)
        takes = self.sharers.setdefault(holder, set())
        for name, amount in result.consumed.items():
            self.consumed[name] = self.consumed.get(name, Decimal(0)) + amount
            if amount > 0:
                takes.add(name)

    @property
    def amounts(self) -> Hashable:
        """What is in use, whoever holds it."""
        if self._amounts is None:
            self._amounts = bool(self.holder), self.shares, tuple(sorted(self.consumed.items()))
        return self._amounts


UNUSED: Final = DeviceUse()


@dataclass(slots=True)
class Usage:
    """What is in use, by pool. Grows while groups are planned one after the other."""

    of_pool: dict[PoolID, dict[DeviceID, DeviceUse]] = field(default_factory=dict)

    def add(self, results: Iterable[DeviceResult], *, holder: str, namespace: str) -> None:
        """Count an allocation's results. `holder` is the claim, for messages."""
        for result in results:
            if not result.admin_access:
                of_pool = self.of_pool.setdefault(result.device[:2], {})
                of_pool.setdefault(result.device, DeviceUse()).add(result, holder, namespace)

    def of(self, device: DeviceID) -> DeviceUse:
        """What is in use of the device."""
        return self.of_pool.get(device[:2], {}).get(device, UNUSED)

    def in_use(self, device: DeviceID) -> bool:
        return device in self.of_pool.get(device[:2], ())


@dataclass(slots=True)
class Inventory:
    """ResourceSlices by pool and by the node they are for ("" for several), with the taint rules; unreadable
    ones make their pool invalid.

    It is told what changes (what a watch delivers). What was gathered for a node is kept until one of its
    pools changes. Not thread-safe.
    """

    features: Features
    rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    by_pool: dict[PoolID, list[ResourceSlice]] = field(default_factory=dict)
    by_node: dict[str, list[ResourceSlice]] = field(default_factory=dict)
    unreadable: dict[PoolID, dict[str, str]] = field(default_factory=dict)
    switchable: set[str] = field(default_factory=set)
    """Nodes with cards that could be had in the other MIG mode."""
    kept_apart: set[str] = field(default_factory=set)
    """Names of slices with cards that are for claims of one namespace each."""
    _named: dict[str, list[tuple[PoolID, str]]] = field(default_factory=dict)
    """Of the slices of a name: pool, and node or ""."""
    _pools: dict[str, tuple[Hashable, list[Pool]]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifests: Iterable[Fields], *, features: Features) -> Inventory:
        """Of the ResourceSlices and DeviceTaintRules among the objects, in their order. Raises PlanError for
        a rule that cannot be read."""
        index = cls(features)
        for manifest in manifests:
            match manifest.get("kind"):
                case "ResourceSlice":
                    index._add(manifest)
                case "DeviceTaintRule":
                    index.put_rule(objects.name(manifest), manifest)
        return index

    def put_rule(self, name: str, manifest: Fields | None) -> None:
        """The DeviceTaintRule of this name is this one now, or gone. Raises PlanError for one that cannot be
        read (which then taints what it did before)."""
        if manifest is None:
            self.rules.pop(name, None)
        elif gates.TAINT_RULES in self.features:
            try:
                self.rules[name] = DeviceTaintRule.from_dict(manifest)
            except InvalidManifest as error:
                # A rule that cannot be read might taint anything; planning on without it would ignore an
                # administrator.
                raise PlanError(str(error)) from error
        self._pools.clear()

    def put_slices(self, name: str, manifests: Iterable[Fields]) -> set[str]:
        """The ResourceSlices of this name are these now. Returns the nodes that may see another pool."""
        touched = self._forget(name)
        self.kept_apart.discard(name)
        for pool, node in self._named.pop(name, ()):
            set_or_drop(
                self.by_pool, pool, [entry for entry in self.by_pool.get(pool, ()) if entry.name != name]
            )
            set_or_drop(
                self.by_node, node, [entry for entry in self.by_node.get(node, ()) if entry.name != name]
            )
            texts = self.unreadable.get(pool, {})
            set_or_drop(self.unreadable, pool, {of: text for of, text in texts.items() if of != name})
        for manifest in manifests:
            self._add(manifest)
        return touched | self._forget(name)

    def _add(self, manifest: Fields) -> None:
        name = objects.name(manifest)
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
        if entry.driver == names.DRIVER and any(map(_is_kept_apart, entry.devices)):
            self.kept_apart.add(name)
        self.by_pool.setdefault(pool, []).append(entry)
        # Without the gate, per-device selection is counted for completeness, but never relevant for a node;
        # nor are counters alone.
        if not entry.shared_counters and (
            gates.PARTITIONABLE_DEVICES in self.features or not entry.per_device_selection
        ):
            self.by_node.setdefault(node, []).append(entry)

    def _forget(self, name: str) -> set[str]:
        """What was gathered from pools that slices of the name are, or were, a part of."""
        pools = [pool for pool, _ in self._named.get(name, ())]
        nodes = {part.selection.node_name for pool in pools for part in self.by_pool.get(pool, ())}
        if "" in nodes:
            nodes = set(self._pools)
        for node in nodes:
            self._pools.pop(node, None)
        return nodes

    def node_names(self) -> list[str]:
        """Nodes that slices name, for input without Node objects."""
        named = {device.selection.node_name for entry in self.by_node.get("", ()) for device in entry.devices}
        return sorted((named | self.by_node.keys()) - {""})

    def as_if(self, pools: Mapping[str, list[Pool]]) -> dict[str, list[Pool]]:
        """These nodes have these pools until something of theirs changes; returns those that they had. Of
        nodes whose pools were gathered."""
        before = {name: self._pools[name] for name in pools if name in self._pools}
        self._pools |= {name: (seen, pools[name]) for name, (seen, _) in before.items()}
        return {name: kept for name, (_, kept) in before.items()}

    def pools(self, node: Fields) -> list[Pool]:
        """All pools that are accessible from the node, in search order; gathered once per node (and its
        labels)."""
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
                # Counters matter wherever devices of their pool do, and nowhere else: other nodes' pools stay
                # out.
                entries += [entry for entry in self.by_pool[pool] if entry.shared_counters]
            newest = max(entry.generation for entry in entries)
            kept = [entry for entry in entries if entry.generation == newest]
            if texts := self.unreadable.get(pool):
                found.append(Pool(pool, trouble=texts[min(texts)]))
            elif built := pool_of(pool, kept, self.by_pool[pool], node, features=self.features, rules=rules):
                found.append(built)
        found.sort(key=lambda pool: any(entry.device.binding_conditions for entry in pool.devices))
        self._pools[name] = seen, found
        (self.switchable.add if any(pool.switchable for pool in found) else self.switchable.discard)(name)
        return found


_BY_MPS: Final = {attribute("mps"), attribute("mps").rpartition("/")[2]}


def _is_kept_apart(device: Device) -> bool:
    named = device.attributes.keys() & _BY_MPS
    return bool(named) and of_one_namespace(facts_of(names.DRIVER, device.alike or device)[2])


@kept_with_pools
def devices_kept_apart(pools: Sequence[Pool]) -> frozenset[DeviceID]:
    """Those whose shares are for claims of one namespace only."""
    own = (one for pool in pools if pool.id[0] == names.DRIVER for one in pool.devices)
    return frozenset(one.id for one in own if of_one_namespace(one.plain))


def available_counters(pool: Pool, taken: Usage) -> dict[tuple[str, str], Decimal]:
    """What is left of the pool's counters; may be negative where more was given out than is published now."""
    if not pool.counters:
        return {}
    left = dict(pool.counters)
    for identity, device in (*((entry.id, entry.device) for entry in pool.devices), *pool.others):
        if device.consumes_counters and taken.in_use(identity):
            for counter, amount in device.counters.items():
                if counter in left:
                    left[counter] -= amount
    return left

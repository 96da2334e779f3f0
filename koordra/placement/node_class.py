"""Which nodes are the same to a request: what is published, and what is taken of it, without the names of
single devices.

    NodeClass         the devices of a node as published; attributes that only identify a device count by who
                      shares a value, names of devices as they are
    NodeClassUsage    a NodeClass and what is taken of each device (where that is for claims of one
                      namespace, also by which): the key under which results of the search are kept
    EquivalentNodes   a NodeClassUsage, what the predicates read of a node, and what its pods ask for: nodes
                      that no request can tell apart unless it reads labels, names or identities

A constraint cannot see more of a serial number than which devices share it, so nodes that differ in nothing
else are one. What a selector reads is another matter: `identities` are the names that a class does not keep
by value, and a request that reads others is answered node by node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Usage, devices_kept_apart
from koordra.allocator.devices.pools import Pool, PublishedDevice, facts_of, kept_with_pools
from koordra.api import names, objects
from koordra.api.devices import Attribute, Device, DeviceID
from koordra.api.objects import Fields
from koordra.api.tables import BoundedCache
from koordra.placement.free_amounts.capacity import NodeCapacity
from koordra.placement.free_amounts.node_devices import NodeDevices
from koordra.placement.free_amounts.state import FreeAmounts

_IDENTITIES: Final = frozenset({names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV, names.ATTR_CLIQUE})
_UUID: Final = names.ATTR_UUID.rpartition("/")[2]
_TOPOLOGY: Final = (names.DOMAIN, "resource.kubernetes.io/")


@dataclass(slots=True, eq=False)
class NodeClass:
    """Nodes that publish the same devices, position by position. `pools` are the first such node's."""

    pools: tuple[Pool, ...] = ()


@dataclass(slots=True, eq=False)
class NodeClassUsage:
    """`node_class` None: the devices of one node alone, which hold for no other and for no other moment.
    Once somebody has read them: `capacity` (`controller/reporting/capacity`), and `most_free`, of each
    capacity what a single device has left (`cost_bound`)."""

    node_class: NodeClass | None
    honors_partitions: bool
    capacity: NodeCapacity | None = None
    most_free: Mapping[str, Decimal] | None = None


@dataclass(slots=True, eq=False)
class EquivalentNodes:
    """Its nodes by name. Once somebody has read them: `free`, the devices and what is free of them
    (`learned_order`), and `rooms`, what is taken and there of weighted resources (`node_scoring`)."""

    devices: NodeClassUsage
    predicate_inputs: Hashable
    nodes: list[str] = field(default_factory=list)
    free: tuple[NodeDevices, FreeAmounts] | None = None
    rooms: Sequence[tuple[int, int]] | None = None

    @property
    def first(self) -> str | None:
        return self.nodes[0] if self.nodes else None

    def enter(self, name: str) -> None:
        insort(self.nodes, name)

    def leave(self, name: str) -> None:
        at = bisect_left(self.nodes, name)
        if at < len(self.nodes) and self.nodes[at] == name:
            del self.nodes[at]

    def without(self, excluded: Mapping[str, Any]) -> str | None:
        """The first node that is not excluded."""
        return next((name for name in self.nodes if name not in excluded), None)


class NodeClasses:
    """Interns all three. Those without nodes are forgotten when there are many."""

    def __init__(self) -> None:
        self.identities: set[str] = set()
        """Names, without their domain, of attributes that classes do not keep by value."""
        self._classes: dict[Hashable, NodeClass] = {}
        self._usages: dict[Hashable, NodeClassUsage] = {}
        self._alike: dict[Hashable, EquivalentNodes] = {}
        self._sorts = BoundedCache[tuple[str, Device], tuple[int, _Identifying]](1 << 14)
        self._contents: dict[Hashable, int] = {}
        self.class_of = kept_with_pools(self._class_of)
        """None for pools that are invalid, or have devices elsewhere: what is taken there matters too."""

    def _class_of(self, pools: Sequence[Pool]) -> NodeClass | None:
        if any(pool.others or pool.trouble for pool in pools):
            return None
        return self._classes.setdefault(self._published(pools), NodeClass(tuple(pools)))

    def _published(self, pools: Sequence[Pool]) -> Hashable:
        numbers: dict[tuple[str, Hashable], int] = {}
        devices = [tuple([self._device(offered, numbers) for offered in pool.devices]) for pool in pools]
        return tuple([tuple(sorted(pool.counters.items())) for pool in pools]), tuple(devices)

    def _device(self, offered: PublishedDevice, numbers: dict[tuple[str, Hashable], int]) -> Hashable:
        """What is published, as a number, and which of the devices share a value that only identifies."""
        device = offered.device
        key = offered.id.driver, device.alike or device
        sort = self._sorts.get(key)
        if sort is None:
            content, identifying = _content(offered.id, key[1])
            self.identities.update([name.rpartition("/")[2] for name, _ in identifying])
            sort = self._sorts[key] = self._contents.setdefault(content, len(self._contents)), identifying
        number, identifying = sort
        kind = ""
        if device.alike is not None:
            self.identities.add(_UUID)
            uuid = device.attributes[names.ATTR_UUID]
            kind, identifying = uuid.kind, (*identifying, _identifying(names.ATTR_UUID, uuid))
        shared = [
            tuple([numbers.setdefault((name, value), len(numbers)) for value in values])
            for name, values in identifying
        ]
        return number, kind, offered.here, offered.taints, tuple(shared)

    def usage_of(self, pools: Sequence[Pool], taken: Usage, *, honors_partitions: bool) -> NodeClassUsage:
        of = self.class_of(pools)
        if of is None:
            return NodeClassUsage(None, honors_partitions)
        position = positions_in(pools)
        in_use = [entry for pool in pools for entry in taken.of_pool.get(pool.id, {}).items()]
        apart = devices_kept_apart(pools)
        used = tuple(
            sorted(
                [
                    (position[one], (use.amounts, tuple(sorted(use.namespaces)) if one in apart else ()))
                    for one, use in in_use
                    if one in position
                ]
            )
        )
        return self._usages.setdefault((of, honors_partitions, used), NodeClassUsage(of, honors_partitions))

    def nodes_alike(self, devices: NodeClassUsage, predicate_inputs: Hashable) -> EquivalentNodes:
        new = EquivalentNodes(devices, predicate_inputs)
        return new if devices.node_class is None else self._alike.setdefault((devices, predicate_inputs), new)

    def retain(self, nodes: int) -> None:
        """Forget sets that no node is in, where they are many more than nodes."""
        if len(self._alike) <= 4 * nodes + 4096:
            return
        self._alike = {key: alike for key, alike in self._alike.items() if alike.nodes}
        used = {id(alike.devices) for alike in self._alike.values()}
        self._usages = {key: state for key, state in self._usages.items() if id(state) in used}
        classes = {id(state.node_class) for state in self._usages.values()}
        self._classes = {key: one for key, one in self._classes.items() if id(one) in classes}


_Identifying = tuple[tuple[str, tuple[Hashable, ...]], ...]
"""Attributes that only identify a device, with their values."""


def node_predicate_inputs(node: Fields) -> tuple[Hashable, ...]:
    """What the predicates read of a node besides its name and labels: taints first."""
    spec, status = objects.spec_of(node), objects.status_of(node)
    ready = [entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"]
    return (
        tuple([(one.get("key"), one.get("value"), one.get("effect")) for one in spec.get("taints") or ()]),
        bool(spec.get("unschedulable")),
        tuple(ready),
        tuple(sorted([(name, str(amount)) for name, amount in (status.get("allocatable") or {}).items()])),
    )


@kept_with_pools
def positions_in(pools: Sequence[Pool]) -> Mapping[DeviceID, int]:
    """Where the pools' devices stand on the node."""
    return {one.id: at for at, one in enumerate(device for pool in pools for device in pool.devices)}


def _identifying(name: str, attribute: Attribute) -> tuple[str, tuple[Hashable, ...]]:
    values = attribute.value if attribute.is_list else (attribute.value,)
    return name, tuple([(attribute.kind, value) for value in values])


def _content(of: DeviceID, device: Device) -> tuple[Hashable, _Identifying]:
    """All of the device that classes keep by value, and the rest."""
    facts, _, _ = facts_of(of.driver, device)
    identifying, attributes = list[tuple[str, tuple[Hashable, ...]]](), list[Hashable]()
    for name, attribute in sorted(facts.attributes.items()):
        if name.startswith(_TOPOLOGY) and name not in _IDENTITIES:
            attributes.append((name, attribute))
            continue
        attributes.append((name, attribute.kind))
        identifying.append(_identifying(name, attribute))
    content = (
        of.driver,
        of.device,
        device.allow_multiple_allocations,
        device.binding_conditions,
        device.binding_failure_conditions,
        tuple(attributes),
        tuple(sorted(facts.capacity.items())),
        tuple(sorted(device.counters.items())),
    )
    return content, tuple(identifying)

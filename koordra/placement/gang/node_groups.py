"""Nodes of one kind give one answer, so only one of them, the example, is asked.

    devices   what the node publishes and what of it is taken (its likeness)
    room      CPU, memory, pods and the like: how many members they leave room for
    refusals  what the node predicates refuse, class by class

The fewer kinds, the fewer questions. So what makes no difference to this gang makes no kind: room beyond what all its members could
use, resources that none of them asks for, devices where the node is refused anyhow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.likeness import likeness
from koordra.api import objects
from koordra.errors import InvalidQuantity
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.node_devices import Devices
from koordra.placement.gang.predicates import Predicates
from koordra.placement.gang.result_cache import Remembered
from koordra.placement.gang.score import Count
from koordra.placement.gang.types import GangNode
from koordra.quantity import parse


@dataclass(frozen=True, slots=True)
class Kind:
    """`devices` None: no class asks for devices. `room` is what is free of what is asked (None: not judged), `suits` says which
    classes the node's predicates admit."""

    devices: Hashable
    room: tuple[Decimal | None, ...]
    suits: tuple[bool, ...]
    fixed: bool


@dataclass(slots=True)
class Kinds:
    """`of` is the kind of every node, `example` the first node by name of every kind, `refusals` a node's words to each class."""

    classes: Sequence[MemberClass]
    nodes: Mapping[str, GangNode]
    devices: Devices
    memory: Remembered
    of: dict[str, Kind] = field(default_factory=dict)
    example: dict[Kind, str] = field(default_factory=dict)
    refusals: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _rooms: dict[Hashable, tuple[Decimal | None, ...]] = field(default_factory=dict)
    _resources: list[str] = field(default_factory=list)

    def look(self, fixed: frozenset[str]) -> None:
        """The kind of every node."""
        self.memory.begin(len(self.nodes))
        self._resources = sorted(
            {name for one in self.classes for name, amount in one.room.items() if amount}
        )
        most = {
            name: sum((one.room.get(name, Decimal(0)) * len(one.members) for one in self.classes), Decimal(0))
            for name in self._resources
        }
        with_devices = any(one.claims for one in self.classes)
        refused = Predicates(self.classes)
        for name in sorted(self.nodes):
            node = self.nodes[name]
            self.refusals[name] = refusals = refused.of(name, node)
            kind = Kind(
                devices=self._likeness(name, node) if with_devices and not all(refusals) else None,
                room=self._room(node, most),
                suits=tuple(not texts for texts in refusals),
                fixed=name in fixed,
            )
            self.of[name] = kind
            self.example.setdefault(kind, name)

    def _room(self, node: GangNode, most: Mapping[str, Decimal]) -> tuple[Decimal | None, ...]:
        """What is free of what is asked, as far as the gang could use it; with one class in whole members."""
        allocatable = objects.status_of(node.node).get("allocatable") or {}
        key = (tuple(allocatable.items()), tuple(node.load.items()))
        found = self._rooms.get(key)
        if found is None:
            free = dict(_parsed(allocatable)) if allocatable else None
            found = self._rooms[key] = tuple(
                None if free is None else self._left(free, node, resource, most[resource])
                for resource in self._resources
            )
        return found

    def _left(self, free: Mapping[str, Decimal], node: GangNode, resource: str, most: Decimal) -> Decimal:
        left = free.get(resource, Decimal(0)) - node.load.get(resource, Decimal(0))
        left = max(Decimal(0), min(left, most))
        if len(self.classes) == 1:
            each = self.classes[0].room[resource]
            left = left // each * each
        return left

    def _likeness(self, name: str, node: GangNode) -> Hashable:
        if node.likeness is not None:
            return ("told", node.likeness, honors_partitions(objects.labels_of(node.node)))
        pools, inventory = self.devices.pools(name), self.devices.inventory(name)
        alike = likeness(inventory, pools, self.devices.taken(name), None)
        if alike is None or any(pool.id[1] != name for pool in pools):
            holders = sorted((objects.key(claim), objects.uid(claim)) for claim in node.holders)
            return ("alone", name, self.memory.number(inventory), tuple(holders))
        called = tuple(offered.id.device for pool in pools for offered in pool.devices)
        return (
            "seen",
            self.memory.number(inventory),
            alike,
            called,
            honors_partitions(objects.labels_of(node.node)),
        )

    def roomy(self, kind: Kind, count: Count) -> bool:
        """Whether CPU, memory and the like suffice."""
        return all(
            left is None
            or sum(number * one.room.get(name, 0) for number, one in zip(count, self.classes, strict=True))
            <= left
            for name, left in zip(self._resources, kind.room, strict=True)
        )


def _parsed(amounts: Mapping[str, Any]) -> Iterator[tuple[str, Decimal]]:
    for name, amount in amounts.items():
        try:
            yield name, parse(amount)
        except InvalidQuantity:
            continue

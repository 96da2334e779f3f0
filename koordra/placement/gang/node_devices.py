"""What a node has: the devices it publishes and those taken from them, read once per gang.

With a set of rails, a node is shown as if its NICs on other rails were not there. They are not forgotten: what refers to them
by name still finds them among the others of the pool.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from koordra.allocator.devices.inventory import NIC, Inventory, Pool, Usage
from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.node_state import NodeState
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.devices import DeviceID
from koordra.placement.gang.types import GangNode

Rails = frozenset[str]


@dataclass(slots=True)
class Devices:
    """Of every node, by its name."""

    nodes: Mapping[str, GangNode]
    features: Features
    _stand_ins: dict[Hashable, str] = field(default_factory=dict)
    _pools: dict[tuple[str, Rails | None], list[Pool]] = field(default_factory=dict)
    _taken: dict[str, Usage] = field(default_factory=dict)

    def inventory(self, name: str) -> Inventory:
        inventory = self.nodes[name].inventory
        return inventory if isinstance(inventory, Inventory) else inventory()

    def stand_in(self, name: str) -> str:
        """A node that publishes the same, so that only one of them is read."""
        node = self.nodes[name]
        if node.published is None:
            return name
        key = (node.published, honors_partitions(objects.labels_of(node.node)))
        return self._stand_ins.setdefault(key, name)

    def pools(self, name: str, rails: Rails | None = None) -> list[Pool]:
        """The node's pools; with `rails` without the NICs that are on others."""
        found = self._pools.get((name, rails))
        if found is None:
            found = self.inventory(name).pools(self.nodes[name].node)
            if rails is not None:
                found = [_on_rails(pool, rails) for pool in found]
            self._pools[name, rails] = found
        return found

    def taken(self, name: str) -> Usage:
        found = self._taken.get(name)
        if found is None:
            found = self._taken[name] = taken_by(self.nodes[name])
        return found

    def taken_as(self, name: str, stand_in: str) -> Usage:
        """What is taken of the node, as if it were taken of its stand-in."""
        taken = self.taken(name)
        if name == stand_in:
            return taken
        return Usage(
            {_moved(device, name, stand_in): holder for device, holder in taken.dedicated.items()},
            {_moved(device, name, stand_in): shares for device, shares in taken.shares.items()},
            {_moved(device, name, stand_in): amounts for device, amounts in taken.consumed.items()},
        )

    def free_rails(self, name: str) -> Rails:
        """Rails with a NIC that is not given out whole."""
        stand_in = self.stand_in(name)
        taken = self.taken_as(name, stand_in)
        state = NodeState(self.pools(stand_in), taken, self.features)
        return frozenset(
            rail_of(offered.plain)
            for device, offered in enumerate(state.devices)
            if offered.kind == NIC and not state.busy[device]
        )


def _moved(device: DeviceID, node: str, stand_in: str) -> DeviceID:
    return replace(device, pool=stand_in) if device.pool == node else device


def rail_of(plain: Mapping[str, Any]) -> str:
    """NICs whose rail is not known are together on one without a name."""
    return str(plain.get(names.ATTR_RAIL, ""))


def _on_rails(pool: Pool, rails: Rails) -> Pool:
    kept, dropped = [], []
    for offered in pool.devices:
        if offered.kind != NIC or rail_of(offered.plain) in rails:
            kept.append(offered)
        else:
            dropped.append((offered.id, offered.device))
    return pool if not dropped else replace(pool, devices=tuple(kept), others=(*pool.others, *dropped))


def taken_by(node: GangNode) -> Usage:
    taken = Usage()
    for claim in node.holders:
        allocation = Allocation.of_claim(claim)
        if allocation is not None:
            taken.add(allocation.results, holder=objects.key(claim))
    return taken

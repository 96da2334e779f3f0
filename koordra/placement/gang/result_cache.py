"""Answers of nodes are kept: most nodes of a cluster, and most gangs that come one after the other, are like earlier ones.

An answer is found again by what was asked and by the likeness of the node that was asked. Likenesses are numbers that one inventory
gives out, so every inventory has a number of its own here, as long as its numbers mean the same.

An answer that was sought in vain is kept with the budget it was sought with; only with a larger one it is sought again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.allocator.devices.inventory import Inventory
from koordra.api import objects
from koordra.placement.gang.device_table import Table
from koordra.placement.gang.member_assignment import Fit
from koordra.placement.gang.types import GangNode
from koordra.topology.network_topology import NetworkLevels

_MOST_REMEMBERED: Final = 50_000
_INVENTORIES: Final = 64


@dataclass(slots=True)
class Remembered:
    """Answers of nodes by what was asked and by the nodes' likeness, kept from gang to gang by who plans often.

    `unknown`: the budget with which an answer was sought in vain. `tables` and what they say of a likeness, `numbers`, are None
    where only a search can tell. `forget` when DeviceClasses or features change.
    """

    fits: dict[Hashable, Fit | None] = field(default_factory=dict)
    unknown: dict[Hashable, int] = field(default_factory=dict)
    tables: dict[Hashable, Table | None] = field(default_factory=dict)
    numbers: dict[Hashable, tuple[tuple[tuple[int, int], ...], bool] | None] = field(default_factory=dict)
    free_rails: dict[Hashable, frozenset[str]] = field(default_factory=dict)
    asked: int = 0
    _places: dict[str, tuple[Any, tuple[str, ...]]] = field(default_factory=dict)
    _fabric: Any = None
    _inventories: dict[int, tuple[int, Inventory, Any]] = field(default_factory=dict)
    _numbered: int = 0

    def forget(self) -> None:
        self.fits.clear()
        self.unknown.clear()
        self.tables.clear()
        self.numbers.clear()
        self.free_rails.clear()

    def make_room(self, kept: dict[Hashable, Any]) -> None:
        """Before something is added."""
        if len(kept) >= _MOST_REMEMBERED:
            kept.clear()

    def begin(self, nodes: int) -> None:
        """Before a gang is looked at: inventories that are long gone are not held for ever. Their numbers are not given again."""
        if len(self._inventories) > 2 * nodes + _INVENTORIES:
            self._inventories.clear()
            self.forget()

    def places(self, nodes: Mapping[str, GangNode], fabric: NetworkLevels) -> dict[str, tuple[str, ...]]:
        """Every node's place in the fabric; read anew only of nodes that are other objects than they were."""
        known = self._places if self._fabric == fabric else {}
        found: dict[str, tuple[Any, tuple[str, ...]]] = {}
        for name, node in nodes.items():
            before = known.get(name)
            if before is None or before[0] is not node.node:
                before = (node.node, fabric.place(objects.labels_of(node.node)))
            found[name] = before
        self._places, self._fabric = found, fabric
        return {name: place for name, (_, place) in found.items()}

    def number(self, inventory: Inventory) -> int:
        """Which inventory it is, as long as its numbers of likenesses mean the same."""
        known = self._inventories.get(id(inventory))
        if known is None or known[2] is not inventory.kinds:
            self._numbered += 1
            known = self._inventories[id(inventory)] = (self._numbered, inventory, inventory.kinds)
        return known[0]

    def answer(
        self, key: Hashable, search: Callable[[], tuple[Fit | None, bool]], *, budget: int
    ) -> tuple[Fit | None, bool]:
        """The answer to the question `key`, and whether the search for it ran out of budget; sought if it is not known yet."""
        if key not in self.fits or self.unknown.get(key, budget) < budget:
            if len(self.fits) >= _MOST_REMEMBERED:
                self.forget()
            self.asked += 1
            fit, unknown = search()
            self.unknown.pop(key, None)
            if unknown:
                self.unknown[key] = budget
            self.fits[key] = fit
        return self.fits[key], key in self.unknown

"""Which node to try first: the fleet asked by `plan()` and by the controller.

    NodeRanking.of(nodes, inventory)          once per set of slices: devices, kinds, shapes
    ranking.settle(taken, loads)              what claims and pods hold now; only nodes that differ move
    ranking.order(asked, pods)                names of nodes, best first; None where the fleet cannot tell
    ranking.changed(name, taken, load)        one node, after something was placed there

The fleet sees devices and amounts; selectors, constraints, counters and taints of a claim are the search's to judge, so that the
first node in the order may still refuse, and a node that is not in the order may still fit: who asks goes on until one does. What
is known of the workload is a table, by default learned at once from the claims that are there (`learn`), if they are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.fleet.columns import INFEASIBLE
from koordra.allocator.fleet.fleet import Fleet
from koordra.allocator.fleet.learning import capacity_of, expected
from koordra.allocator.fleet.leftover import ExpectedLeftover
from koordra.allocator.fleet.states import Kind, Request, State
from koordra.allocator.fleet.table import Table
from koordra.allocator.fleet.view import NodeDevices, node_devices, nodes_of, request_of
from koordra.allocator.fleet.workload import Workload
from koordra.allocator.inventory import Inventory, Taken
from koordra.allocator.requests import AskedClaim

_ENOUGH: Final = 32
"""Claims from which on a workload is worth learning from."""

_Loads = Mapping[str, Mapping[str, Decimal]]


class NodeRanking:
    """The nodes of a cluster as a fleet. Ties go to the node whose name is first."""

    def __init__(self, devices: Sequence[NodeDevices], table: Table | None = None) -> None:
        self.devices = sorted(devices, key=lambda one: one.name)
        self.number = {one.name: at for at, one in enumerate(self.devices)}
        kinds: dict[Kind, int] = {}
        self._kind = [kinds.setdefault(one.kind, len(kinds)) for one in self.devices]
        self.policy = ExpectedLeftover(table)
        self.fleet = Fleet(tuple(kinds), [None] * len(self.devices), self.policy)
        usual = Counter(one.memory for one in self.devices if one.memory)
        self.memory = min(usual, key=lambda size: (-usual[size], size)) if usual else Decimal(0)

    @classmethod
    def of(
        cls, nodes: Mapping[str, Mapping[str, Any]], inventory: Inventory, table: Table | None = None
    ) -> NodeRanking:
        return cls(nodes_of(nodes, inventory), table)

    def settle(self, taken: Taken, loads: _Loads) -> None:
        """All nodes as they are now."""
        for at, one in enumerate(self.devices):
            self.fleet.set_node(at, one.state(self._kind[at], taken, loads.get(one.name, {})))

    def changed(self, name: str, taken: Taken, load: Mapping[str, Decimal]) -> None:
        """One node as it is now."""
        at = self.number.get(name)
        if at is not None:
            self.fleet.set_node(at, self.devices[at].state(self._kind[at], taken, load))

    def gone(self, name: str) -> None:
        """The node is not there any more (or not to be used)."""
        at = self.number.get(name)
        if at is not None:
            self.fleet.set_node(at, None)

    def learn(self, groups: Iterable[tuple[Sequence[AskedClaim], Sequence[Mapping[str, Any]]]]) -> None:
        """The table from these claims with their pods, if they are enough."""
        workload = Workload.of(
            request for asked, pods in groups if (request := self.request(asked, pods)) is not None
        )
        if workload.count >= _ENOUGH:
            self.know(expected(workload, self._capacity()))

    def know(self, table: Table) -> None:
        """Use this table from now on."""
        self.policy.learn(table)
        self.fleet.tables_changed()

    def request(self, asked: Sequence[AskedClaim], pods: Sequence[Mapping[str, Any]]) -> Request | None:
        """The class of a claim group; None where counting devices does not describe it."""
        return request_of(asked, pods, self.memory)

    def order(self, asked: Sequence[AskedClaim], pods: Sequence[Mapping[str, Any]]) -> Iterator[str] | None:
        """Names of nodes that have what is asked for, best first."""
        request = self.request(asked, pods)
        return None if request is None else self.order_of(request)

    def order_of(self, request: Request) -> Iterator[str]:
        """The best at once; the others are only sorted if somebody asks for them."""
        best = self.fleet.find(request)
        if best is None:
            return
        yield self.devices[best.node].name
        for node, _ in self.fleet.ranked(request)[1:]:
            yield self.devices[node].name

    def key(self, name: str, request: Request) -> int | None:
        """The request's key on one node, None where it does not fit."""
        at = self.number.get(name)
        if at is None:
            return None
        key = int(self.fleet.keys_of_nodes(request)[at])
        return None if key >= INFEASIBLE else key

    def _capacity(self) -> dict[str, int]:
        full = [State(kind, 0, 0, (), ()) for kind in self._kind]
        return capacity_of(self.fleet.kinds, full)


def read_node(name: str, node: Mapping[str, Any], inventory: Inventory) -> NodeDevices:
    """One node's devices, for who keeps them."""
    return node_devices(name, node, inventory)

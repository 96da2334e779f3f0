"""Which node to try first: the fleet asked by `plan()` and by the controller.

    NodeRanking.of(nodes, inventory)          once per set of slices: devices, kinds, shapes
    ranking.settle(taken, loads)              what claims and pods hold now; only nodes that differ move
    ranking.order(asked, pods)                names of nodes, best first; None where the fleet cannot tell
    ranking.changed(name, taken, load)        one node, after something was placed there
    ranking.put(devices, taken, load)         one node that is new, or publishes something else now
    ranking.heard(request)                    one more claim of this class: what the table is learned from
    ranking.begin_with(requests)              the claims that were there before

The fleet sees devices and amounts, and which nodes a request may use at all (`node_sets`: selectors and taints of its devices, what
its pods say of nodes); constraints and counters are the search's to judge, so that the first node in the order may still refuse,
and a node that is not in the order may still fit: who asks goes on until one does. What is known of the workload is a table: a given
one, or learned from the claims that are there and those that arrive, if they are enough. It knows models, never sets of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Inventory, Usage
from koordra.allocator.features import Features
from koordra.allocator.request.requests import ResolvedClaim
from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.node_devices import NodeDevices, node_devices, nodes_of
from koordra.placement.columns.request_mapping import request_of
from koordra.placement.columns.state import Kind, Request, State
from koordra.placement.mig.profiles import NO_PROFILES, Profiles
from koordra.placement.node_filter.node_sets import NodeSets
from koordra.placement.policy.expected_waste import ExpectedLeftover
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import Online, capacity_of, expected
from koordra.placement.policy.workload_table import Table

_ENOUGH: Final = 32
"""Claims from which on a workload is worth learning from."""

_Loads = Mapping[str, Mapping[str, Decimal]]


class NodeRanking:
    """The nodes of a cluster as a fleet. Ties go to the node whose name is first."""

    def __init__(
        self, devices: Sequence[NodeDevices], table: Table | None = None, *, features: Features | None = None
    ) -> None:
        self.policy = ExpectedLeftover(table)
        self.sets = NodeSets(features or Features.of(None))
        self.online = Online(self.policy, {})
        self._late: dict[str, tuple[NodeDevices, State | None]] = {one.name: (one, None) for one in devices}
        self._gone: set[str] = set()
        self.devices: list[NodeDevices] = []
        self.number: dict[str, int] = {}
        self._kind: list[int] = []
        self._kinds: dict[Kind, int] = {}
        self._memory = Decimal(0)
        self._profiles = NO_PROFILES
        self._fleet = Fleet((), (), self.policy)
        self._version = self._added = 0
        for one in devices:
            self.sets.put(one)
        self._take_in()

    @classmethod
    def of(
        cls, nodes: Mapping[str, Mapping[str, Any]], inventory: Inventory, table: Table | None = None
    ) -> NodeRanking:
        return cls(nodes_of(nodes, inventory), table, features=inventory.features)

    @property
    def fleet(self) -> Fleet:
        """With all nodes that were put."""
        anew = self._late or self._version != self.sets.version
        if anew or (self._added != self.sets.added and not self._name_sets()):
            self._take_in()
        return self._fleet

    @property
    def memory(self) -> Decimal:
        """The usual memory of a GPU here, against which an amount is a share; 0 without GPUs."""
        if self._late:
            self._take_in()
        return self._memory

    @property
    def measures(self) -> tuple[Decimal, Profiles]:
        """What requests are measured by: the usual memory of a GPU, and the profiles that cards are cut into."""
        return self.memory, self._profiles

    def settle(self, taken: Usage, loads: _Loads) -> None:
        """All nodes as they are now."""
        for one in list(self.devices):
            self.changed(one.name, taken, loads.get(one.name, {}))

    def put(self, devices: NodeDevices, taken: Usage, load: Mapping[str, Decimal]) -> None:
        """A node that is new, or whose devices or size are new, as it is now.

        Nodes of a new name or kind are gathered and taken in together, when the fleet is asked next.
        """
        at = self.number.get(devices.name)
        self._gone.discard(devices.name)
        self.sets.put(devices)
        kind = self._kinds.get(self._kind_of(devices))
        if at is None or kind is None or devices.name in self._late:
            self._late[devices.name] = (devices, devices.state(0, taken, load))
            return
        self.devices[at], self._kind[at] = devices, kind
        self.changed(devices.name, taken, load)

    def changed(self, name: str, taken: Usage, load: Mapping[str, Decimal]) -> None:
        """One node as it is now."""
        late, at = self._late.get(name), self.number.get(name)
        if late is not None:
            self._late[name] = (late[0], late[0].state(0, taken, load))
        elif at is not None:
            self._fleet.set_node(at, self.devices[at].state(self._kind[at], taken, load))

    def gone(self, name: str) -> None:
        """The node is not there any more (or not to be used)."""
        self._late.pop(name, None)
        self.sets.gone(name)
        at = self.number.get(name)
        if at is not None:
            self._gone.add(name)
            self._fleet.set_node(at, None)

    def _take_in(self) -> None:
        """The fleet anew, with the nodes that came; those that went lose their numbers."""
        known = {
            one.name: (one, state)
            for one, state in zip(self.devices, self._fleet.nodes, strict=True)
            if one.name not in self._gone
        } | self._late
        self._late, self._gone = {}, set()
        self._version, self._added = self.sets.version, self.sets.added
        self.devices = [known[name][0] for name in sorted(known)]
        self.number = {one.name: at for at, one in enumerate(self.devices)}
        self._kinds = {}
        self._kind = [self._kinds.setdefault(self._kind_of(one), len(self._kinds)) for one in self.devices]
        states = [
            None if state is None else state._replace(kind=kind)
            for kind, state in zip(self._kind, (known[one.name][1] for one in self.devices), strict=True)
        ]
        self._fleet = Fleet(tuple(self._kinds), states, self.policy)
        self.online.capacity = self._capacity()
        if {key for one in self.devices for key in one.profiles.known} != self._profiles.known:
            self._profiles = Profiles(sample for one in self.devices for sample in one.profiles.samples)
        usual = Counter(one.memory for one in self.devices if one.memory)
        self._memory = min(usual, key=lambda size: (-usual[size], size)) if usual else Decimal(0)

    def _kind_of(self, devices: NodeDevices) -> Kind:
        bits = self.sets.bits(devices.name)
        return devices.kind._replace(sets=bits) if bits else devices.kind

    def _name_sets(self) -> bool:
        """Tell the kinds of the sets that came, where no kind is divided by them. False where one is."""
        kinds: list[Kind | None] = [None] * len(self._kinds)
        for one, number in zip(self.devices, self._kind, strict=True):
            if one.name in self._gone:
                continue
            kind = kinds[number]
            bits = self.sets.bits(one.name)
            if kind is None:
                kinds[number] = one.kind._replace(sets=bits)
            elif kind.sets != bits:
                return False
        self._added = self.sets.added
        named = [kind or old for kind, old in zip(kinds, self._kinds, strict=True)]
        if len(set(named)) < len(named):
            return False
        self._kinds = {kind: number for number, kind in enumerate(named)}
        self._fleet.name_sets(named)
        return True

    def begin_with(self, requests: Iterable[Request]) -> bool:
        """Count on from these, which were there before anybody counted. True when they were enough for a table."""
        workload = Workload.of(map(_learnable, requests))
        self.online.resume(workload)
        if workload.count < _ENOUGH:
            return False
        self.know(expected(workload, self._capacity()))
        return True

    def heard(self, request: Request) -> bool:
        """One more claim of this class arrived. True when the table was made anew by it, and with it every key."""
        if not self.online.heard(_learnable(request)):
            return False
        self.fleet.tables_changed()
        return True

    def know(self, table: Table) -> None:
        """Use this table from now on."""
        self.policy.learn(table)
        self.fleet.tables_changed()

    def request(self, asked: Sequence[ResolvedClaim], pods: Sequence[Mapping[str, Any]]) -> Request | None:
        """The class of a claim group; None where counting devices does not describe it.

        Good until `sets.epoch` goes up.
        """
        found = request_of(self.sets.shipped(asked), pods, *self.measures)
        return None if found is None else self.sets.request(asked, pods, found)

    def order(
        self,
        asked: Sequence[ResolvedClaim],
        pods: Sequence[Mapping[str, Any]],
        *,
        among: Iterable[str] | None = None,
    ) -> Iterator[str] | None:
        """Names of nodes (of those `among`, or that the pods call by name) that have what is asked for, best first."""
        request = self.request(asked, pods)
        if request is None:
            return None
        named = self.sets.named(pods) if among is None else among
        return self.order_of(request) if named is None else self.order_among(named, request)

    def order_among(self, names: Iterable[str], request: Request) -> Iterator[str]:
        """Those of the nodes that have it, best first."""
        keys = {name: key for name in names if (key := self.key(name, request)) is not None}
        return iter(sorted(keys, key=lambda name: (keys[name], self.number[name])))

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
        fleet, at = self.fleet, self.number.get(name)
        return None if at is None else fleet.key_on(at, request)

    def _capacity(self) -> dict[str, int]:
        full = [State(kind, 0, 0, (), ()) for kind in self._kind]
        return capacity_of(tuple(self._kinds), full)


def _learnable(request: Request) -> Request:
    """Numbers of node sets mean nothing elsewhere, or later."""
    return request if request.nodes < 0 else request._replace(nodes=-1)


def read_node(name: str, node: Mapping[str, Any], inventory: Inventory) -> NodeDevices:
    """One node's devices, for who keeps them."""
    return node_devices(name, node, inventory)

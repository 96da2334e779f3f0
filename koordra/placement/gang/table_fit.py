"""Answers of nodes from tables (`device_table`), where tables can tell.

    node ─▶ its shape ─▶ the table for what is asked ─▶ what is in use here, as bits ─▶ numbers for every count
                                                                                     └▶ seats, for the counts that are chosen

Of all nodes that publish the same (`GangNode.published`) only one is read, the *stand-in*; of the others only what is in use counts.
The tables are remembered from gang to gang, and so are the numbers of a node's likeness: a node that did not change costs nothing.

`numbers` and `fit` say None where the search has to be asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import NIC, Usage
from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.likeness import likeness
from koordra.allocator.node_state import NodeState
from koordra.allocator.offer import Offer
from koordra.allocator.placement import Placement
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.search.solution import Placed
from koordra.api import objects
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.placement.gang.device_table import Table, table_of
from koordra.placement.gang.member_assignment import Fit, fit_of
from koordra.placement.gang.node_devices import Devices, Rails, rail_of
from koordra.placement.gang.node_groups import Kind
from koordra.placement.gang.node_search import Searching
from koordra.placement.gang.result_cache import Remembered
from koordra.placement.gang.types import Member

Numbers = tuple[tuple[int, int], ...]
"""(apart, spare) for 1, 2, … members, as many as fit."""


@dataclass(frozen=True, slots=True)
class _Free:
    """What may be taken on a node, and what nobody uses, as bits of a table."""

    takeable: int
    untouched: int


@dataclass(slots=True)
class _Shape:
    """Nodes that publish the same: the state of one of them as if nothing were in use."""

    stand_in: str
    state: NodeState
    positions: dict[DeviceID, int]


@dataclass(slots=True)
class Tabled:
    """Of one gang. Not thread-safe."""

    devices: Devices
    features: Features
    policy: PlacementPolicy | None
    memory: Remembered
    searching: Searching
    _shapes: dict[Hashable, _Shape] = field(default_factory=dict)

    def numbers(
        self, name: str, kind: Kind, asks: str, members: Sequence[Member], rails: Rails | None
    ) -> tuple[Numbers, bool] | None:
        """What the node says to 1, 2, … members, and whether more than that do not fit for sure."""
        key = (kind.devices, asks, rails, self.policy)
        known = self.memory.numbers
        if key not in known:
            self.memory.make_room(known)
            found = self._table(name, kind, asks, members)
            known[key] = None if found is None else self._counted(name, *found, rails)
        return known[key]

    def fit(
        self, name: str, kind: Kind, asks: str, members: Sequence[Member], rails: Rails | None
    ) -> Fit | None:
        """The seats of members that fit by the numbers; None where the table does not know."""
        found = self._table(name, kind, asks, members)
        if found is None:
            return None
        shape, table = found
        free = self._free(name, shape, table, rails)
        if free is None:
            return None
        best = table.best(len(members), takeable=free.takeable, untouched=free.untouched)
        if not best.size:
            return None
        asked, _ = self.searching.together(members)
        each = len(asked) // len(members)
        placed: list[Placed] = []
        spare = free.untouched & table.gpus
        for number, own in enumerate(table.divided(best, len(members))):
            spare &= ~own
            requests = [
                request for claim in asked[number * each : (number + 1) * each] for request in claim.requests
            ]
            for request, taken in zip(requests, table.own[own], strict=True):
                placed += [_placed(shape.state, asked, request.alternatives[0], device) for device in taken]
        offer = Offer(shape.stand_in, asked, shape.state, tuple(placed))
        return replace(fit_of(shape.stand_in, [(asks, members)], [offer]), spare=spare.bit_count())

    def _counted(
        self, name: str, shape: _Shape, table: Table, rails: Rails | None
    ) -> tuple[Numbers, bool] | None:
        free = self._free(name, shape, table, rails)
        if free is None:
            return None
        found: list[tuple[int, int]] = []
        for number in range(1, len(table.sets)):
            best = table.best(number, takeable=free.takeable, untouched=free.untouched)
            if not best.size:
                break
            cards = {(one & table.gpus).bit_count() for one in best.tolist()}
            apart = 0
            if len(cards) > 1 or not table.everywhere_near:
                divided = table.divided(best, number)
                apart = sum(table.apart[own] for own in divided)
                cards = {sum((own & table.gpus).bit_count() for own in divided)}
            found.append((apart, (free.untouched & table.gpus).bit_count() - cards.pop()))
        return tuple(found), not table.preferred

    def _table(
        self, name: str, kind: Kind, asks: str, members: Sequence[Member]
    ) -> tuple[_Shape, Table] | None:
        key = self._shape_key(name, kind) if self.policy is not None else None
        if key is None:
            return None
        tables = self.memory.tables
        asked_key = (key, asks, self.policy)
        if asked_key in tables and tables[asked_key] is None:
            return None
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape(name)
        if asked_key not in tables:
            self.memory.make_room(tables)
            tables[asked_key] = self._made(shape, members[0])
        table = tables[asked_key]
        return None if table is None else (shape, table)

    def _shape_key(self, name: str, kind: Kind) -> Hashable:
        """Equal for nodes that publish the same; None where that is not known."""
        node = self.devices.nodes[name]
        honors = honors_partitions(objects.labels_of(node.node))
        if node.published is not None:
            return ("published", node.published, honors)
        if node.likeness is not None:
            return None
        pools, inventory = self.devices.pools(name), self.devices.inventory(name)
        alike = likeness(inventory, pools, Usage(), None)
        if alike is None or any(pool.id[1] != name for pool in pools):
            return None
        called = tuple(offered.id.device for pool in pools for offered in pool.devices)
        return ("seen", self.memory.number(inventory), alike, called, honors)

    def _shape(self, name: str) -> _Shape:
        stand_in = self.devices.stand_in(name)
        node = self.devices.nodes[stand_in].node
        honors = honors_partitions(objects.labels_of(node))
        state = NodeState(self.devices.pools(stand_in), Usage(), self.features, honors_partitions=honors)
        return _Shape(
            stand_in, state, {offered.id: position for position, offered in enumerate(state.devices)}
        )

    def _made(self, shape: _Shape, member: Member) -> Table | None:
        asked, siblings = self.searching.together([member])
        inventory = self.devices.inventory(shape.stand_in)
        policy = Placement(
            asked, siblings, policy=self.policy, features=inventory.features, several=False
        ).policy
        return None if policy is None else table_of(asked, siblings, shape.state, policy=policy)

    def _free(self, name: str, shape: _Shape, table: Table, rails: Rails | None) -> _Free | None:
        """None where a device is in use and yet whole."""
        bit = {device: 1 << at for at, device in enumerate(table.devices)}
        taken = self.devices.taken_as(name, shape.stand_in)
        blocked = used = 0
        for identity in (*taken.dedicated, *taken.shares):
            device = shape.positions.get(identity)
            if device is None:
                continue
            capacity = table.whole.get(device)
            if (
                capacity is not None
                and identity not in taken.dedicated
                and not taken.consumed.get(identity, {}).get(capacity)
            ):
                return None
            used |= bit.get(device, 0)
            blocked |= table.blocks.get(device, 0)
        if rails is not None:
            for device, at in bit.items():
                offered = shape.state.devices[device]
                if offered.kind == NIC and rail_of(offered.plain) not in rails:
                    blocked |= at
        whole = (1 << len(table.devices)) - 1
        return _Free(whole & ~blocked, whole & ~used)


def _placed(
    state: NodeState, asked: Sequence[ResolvedClaim], wanted: RequestAlternative, device: int
) -> Placed:
    verdict = state.verdict(wanted, device, own_driver_only=asked[wanted.claim].own_driver_only)
    assert verdict.demand is not None
    shared = state.shared[device]
    return Placed(wanted, device, verdict.demand if shared else Demand({}), shared)

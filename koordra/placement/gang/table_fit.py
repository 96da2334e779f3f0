"""Answers of nodes from tables (`device_table`), where tables can tell.

    node ─▶ its NodeClass ─▶ the table for what is asked ─▶ what is in use here, as bits ─▶ numbers for every count
                                                                                         └▶ assignments, for the counts that are chosen

A table is made once for all nodes of a NodeClass; of each node only what is in use counts. Tables are kept with the request class,
and so are the numbers of a DeviceState: a node that did not change costs nothing.

`numbers` and `fit` say None where the search has to be asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import NIC, Usage
from koordra.allocator.node_state import NodeState
from koordra.allocator.offer import Offer
from koordra.allocator.placement import Placement
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.solution import Placed
from koordra.placement.decide import Engine
from koordra.placement.gang.device_table import Table, table_of
from koordra.placement.gang.member_assignment import Fit, Rails, fit_of, rail_of
from koordra.placement.gang.node_kinds import Where
from koordra.placement.gang.node_search import NodeSearch
from koordra.placement.index import NodeInfo
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

Numbers = tuple[tuple[int, int], ...]
"""(apart, spare) for 1, 2, … members, as many as fit."""

_MOST_KEPT: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class _Free:
    """What may be taken on a node, and what nobody uses, as bits of a table."""

    takeable: int
    untouched: int


@dataclass(slots=True)
class _ClassTable:
    """`state`: a node of the class as if nothing were in use."""

    state: NodeState
    table: Table


@dataclass(slots=True)
class TableFit:
    """Of one gang. Not thread-safe."""

    engine: Engine
    searching: NodeSearch

    def numbers(
        self,
        name: str,
        where: Where | None,
        asks: RequestClass,
        members: Sequence[ResolvedGroup],
        rails: Rails | None,
    ) -> tuple[Numbers, bool] | None:
        """What the node says to 1, 2, … members, and whether more than that do not fit for sure."""
        known = _kept(asks, "numbers")
        key = (where, rails)
        if key not in known:
            info = self.engine.index.nodes[name]
            table = self._table(info, where, asks, members[0])
            known[key] = None if table is None else self._counted(info, table, rails)
        found: tuple[Numbers, bool] | None = known[key]
        return found

    def fit(
        self,
        name: str,
        where: Where | None,
        asks: RequestClass,
        members: Sequence[ResolvedGroup],
        rails: Rails | None,
    ) -> Fit | None:
        """The assignments of members that fit by the numbers; None where the table does not know."""
        info = self.engine.index.nodes[name]
        found = self._table(info, where, asks, members[0])
        free = None if found is None else self._free(info, found, rails)
        if found is None or free is None:
            return None
        table, state = found.table, found.state
        best = table.best(len(members), takeable=free.takeable, untouched=free.untouched)
        if not best.size:
            return None
        asked = self.searching.together(members).asked
        each = len(asked) // len(members)
        placed: list[Placed] = []
        spare = free.untouched & table.gpus
        for number, own in enumerate(table.divided(best, len(members))):
            spare &= ~own
            requests = [
                request for claim in asked[number * each : (number + 1) * each] for request in claim.requests
            ]
            for request, taken in zip(requests, table.own[own], strict=True):
                placed += [_placed(state, request.alternatives[0], device) for device in taken]
        offer = Offer(name, asked, state.devices, tuple(placed))
        return replace(
            fit_of([(asks, members)], [offer], taken=self.engine.index.taken), spare=spare.bit_count()
        )

    def _counted(
        self, info: NodeInfo, found: _ClassTable, rails: Rails | None
    ) -> tuple[Numbers, bool] | None:
        free, table = self._free(info, found, rails), found.table
        if free is None:
            return None
        numbers: list[tuple[int, int]] = []
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
            numbers.append((apart, (free.untouched & table.gpus).bit_count() - cards.pop()))
        return tuple(numbers), not table.preferred

    def _table(
        self, info: NodeInfo, where: Where | None, asks: RequestClass, member: ResolvedGroup
    ) -> _ClassTable | None:
        devices = info.devices
        if where is None or devices.node_class is None or self.engine.policy is None:
            return None
        tables = _kept(asks, "tables")
        key = where if where[0] is info else (devices.node_class, devices.honors_partitions)
        if key not in tables:
            tables[key] = self._made(info, member)
        found: _ClassTable | None = tables[key]
        return found

    def _made(self, info: NodeInfo, member: ResolvedGroup) -> _ClassTable | None:
        engine = self.engine
        policy = Placement(
            member.asked, member.siblings, policy=engine.policy, features=engine.features
        ).policy
        if policy is None:
            return None
        honors = info.devices.honors_partitions
        state = NodeState(info.pools, Usage(), engine.features, honors_partitions=honors)
        table = table_of(member.asked, member.siblings, state, policy=policy)
        return None if table is None else _ClassTable(state, table)

    def _free(self, info: NodeInfo, found: _ClassTable, rails: Rails | None) -> _Free | None:
        """None where a device is in use and yet whole."""
        table, taken = found.table, self.engine.index.taken
        bit = {device: 1 << at for at, device in enumerate(table.devices)}
        blocked = used = 0
        for device, offered in enumerate(offered for pool in info.pools for offered in pool.devices):
            if not taken.in_use(offered.id):
                continue
            capacity = table.whole.get(device)
            if (
                capacity is not None
                and offered.id not in taken.dedicated
                and not taken.consumed.get(offered.id, {}).get(capacity)
            ):
                return None
            used |= bit.get(device, 0)
            blocked |= table.blocks.get(device, 0)
        if rails is not None:
            for device, at in bit.items():
                offered = found.state.devices[device]
                if offered.kind == NIC and rail_of(offered.plain) not in rails:
                    blocked |= at
        whole = (1 << len(table.devices)) - 1
        return _Free(whole & ~blocked, whole & ~used)


def _kept(asks: RequestClass, name: str) -> dict[Hashable, Any]:
    """What is kept with a request class, with room for more."""
    found: dict[Hashable, Any] = asks.kept.setdefault(name, {})
    if len(found) >= _MOST_KEPT:
        found.clear()
    return found


def _placed(state: NodeState, wanted: RequestAlternative, device: int) -> Placed:
    verdict = state.verdict(wanted, device)
    assert verdict.demand is not None
    shared = state.shared[device]
    return Placed(wanted, device, verdict.demand if shared else Demand({}), shared)

"""Answers of nodes from tables (`device_table`), where tables can tell.

    node ─▶ its NodeClass ─▶ the table for what is asked ─▶ what is in use here, as bits ─▶ numbers for every count
                                                                                         └▶ assignments, for the counts that are chosen

A table is made once for all nodes of a NodeClass; of each node only what is in use counts. Tables are kept with the request class,
and so are the numbers of a DeviceState: a node that did not change costs nothing.

None means that the search has to be asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import NIC, Usage
from koordra.allocator.node_state import NodeState
from koordra.allocator.offer import Offer
from koordra.allocator.placement import Placement
from koordra.allocator.search.solution import Placed
from koordra.placement.decide import Engine
from koordra.placement.gang.device_table import Free, Table, table_of
from koordra.placement.gang.member_assignment import Fit, Rails, fit_of, rail_of
from koordra.placement.gang.node_kinds import NodeKind
from koordra.placement.gang.node_search import together
from koordra.placement.index import NodeInfo
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_MOST_KEPT: Final = 1 << 14


class Numbers(NamedTuple):
    """(apart, spare) for 1, 2, … members; `complete`: more than that do not fit for sure."""

    numbers: tuple[tuple[int, int], ...]
    complete: bool


def numbers_by_table(
    engine: Engine, kind: NodeKind, asks: RequestClass, member: ResolvedGroup, rails: Rails | None
) -> Numbers | None:
    """What nodes of the kind say to members that ask this."""
    known, key = kept_with(asks, "numbers"), (kind.where, rails)
    if key not in known:
        table = _table(engine, kind, asks, member)
        free = None if table is None else _free(engine, kind.info, table, rails)
        known[key] = None if table is None or free is None else _counted(table, free)
    found: Numbers | None = known[key]
    return found


def fit_by_table(
    engine: Engine,
    kind: NodeKind,
    asks: RequestClass,
    members: Sequence[ResolvedGroup],
    rails: Rails | None,
) -> Fit | None:
    """The assignments of members that fit by the numbers."""
    table = _table(engine, kind, asks, members[0])
    free = None if table is None else _free(engine, kind.info, table, rails)
    if table is None or free is None:
        return None
    best = table.best(len(members), free)
    if not best.size:
        return None
    asked = together(engine, members).asked
    requests = iter([request for claim in asked for request in claim.requests])
    state, spare, placed = table.state, free.untouched & table.gpus, list[Placed]()
    for own in table.divided(best, len(members)):
        spare &= ~own
        for taken, request in zip(table.own[own], requests, strict=False):
            wanted = request.alternatives[0]
            for device in taken:
                verdict = state.verdict(wanted, device)
                assert verdict.demand is not None
                shared = state.shared[device]
                placed.append(Placed(wanted, device, verdict.demand if shared else Demand({}), shared))
    offer = Offer(kind.info.name, asked, state.devices, tuple(placed))
    fit = fit_of([(asks, members)], [offer], taken=engine.index.taken)
    return replace(fit, spare=spare.bit_count())


def _counted(table: Table, free: Free) -> Numbers:
    numbers: list[tuple[int, int]] = []
    for number in range(1, len(table.sets)):
        best = table.best(number, free)
        if not best.size:
            break
        cards = {(one & table.gpus).bit_count() for one in best.tolist()}
        apart = 0
        if len(cards) > 1 or any(table.apart.values()):
            divided = table.divided(best, number)
            apart = sum(table.apart[own] for own in divided)
            cards = {sum((own & table.gpus).bit_count() for own in divided)}
        numbers.append((apart, (free.untouched & table.gpus).bit_count() - cards.pop()))
    return Numbers(tuple(numbers), complete=not table.preferred)


def _table(engine: Engine, kind: NodeKind, asks: RequestClass, member: ResolvedGroup) -> Table | None:
    info, where = kind.info, kind.where
    devices = info.devices
    if where is None or devices.node_class is None or engine.policy is None:
        return None
    tables = kept_with(asks, "tables")
    key = where if where[0] is info else (devices.node_class, devices.honors_partitions)
    if key not in tables:
        policy = Placement(
            member.asked, member.siblings, policy=engine.policy, features=engine.features
        ).policy
        state = NodeState(info.pools, Usage(), engine.features, honors_partitions=devices.honors_partitions)
        tables[key] = policy and table_of(member.asked, member.siblings, state, policy=policy)
    found: Table | None = tables[key]
    return found


def _free(engine: Engine, info: NodeInfo, table: Table, rails: Rails | None) -> Free | None:
    """None where a device is in use and yet whole."""
    taken = engine.index.taken
    bit = {device: 1 << at for at, device in enumerate(table.devices)}
    blocked = used = 0
    for device, offered in enumerate(offered for pool in info.pools for offered in pool.devices):
        if rails is not None and offered.kind == NIC and rail_of(offered.plain) not in rails:
            blocked |= bit.get(device, 0)
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
    whole = (1 << len(table.devices)) - 1
    return Free(whole & ~blocked, whole & ~used)


def kept_with(asks: RequestClass, name: str) -> dict[Hashable, Any]:
    """What is kept with a request class, with room for more."""
    found: dict[Hashable, Any] = asks.kept.setdefault(name, {})
    if len(found) >= _MOST_KEPT:
        found.clear()
    return found

"""Counting before searching: which devices can matter at all, and whether there are enough of them.

Two steps, both of which only ever remove what no solution can contain:

1. Values. A matchAttribute over some requests needs one value (of a list: one element) that every one of those requests finds
   on enough of its devices. Devices without such a value are left out for these requests, and that is repeated until nothing changes, since
   leaving a device out for one constraint can take a value away from another. A JointAllocation of pairing PerDevice or
   Together is treated alike: a GPU in a scope without any eligible NIC is left out.
2. Matching. Every device wanted by a request with a fixed count is a place to fill; a place may be filled by the devices
   left for the request; a dedicated device fills one place, a shared one as many as its room allows. If the largest matching
   leaves a place empty, nothing fits: eight pairs over seven complete switch groups are refused here, not after 8! tries.

Only requests with one alternative, a fixed count and no admin access take part; the others are left to the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from koordra.allocator import constraints as rules
from koordra.allocator.constraints import Values
from koordra.allocator.inventory import GPU, NIC
from koordra.allocator.joint import Rule, Tally
from koordra.allocator.node_state import NodeState
from koordra.allocator.requests import AskedClaim, Wanted
from koordra.api.claims import MAX_RESULTS, Constraint
from koordra.api.parameters import Pairing

Candidates = dict[Wanted, list[int]]


def candidates_of(claims: Sequence[AskedClaim], state: NodeState) -> Candidates | None:
    """Devices that can serve each fixed request as things stand, in search order; None if a selector fails on one."""
    found: Candidates = {}
    of_kind: dict[tuple[object, bool], list[int]] = {}
    for claim in claims:
        for request in claim.requests:
            wanted = request.alternatives[0]
            if len(request.alternatives) > 1 or wanted.takes_all or wanted.spec.admin_access:
                continue
            kind = (wanted.kind, claim.own_driver_only)
            if kind not in of_kind:
                devices = _serving(wanted, state, own_driver_only=claim.own_driver_only)
                if devices is None:
                    return None
                of_kind[kind] = devices
            found[wanted] = of_kind[kind]
    return found


def _serving(wanted: Wanted, state: NodeState, *, own_driver_only: bool) -> list[int] | None:
    devices = []
    for device, busy in enumerate(state.busy):
        if busy:
            continue
        verdict = state.verdict(wanted, device, own_driver_only=own_driver_only)
        if verdict.error:
            return None
        demand = verdict.demand
        if demand is not None and verdict.cause is None and state.has_room(device, demand):
            devices.append(device)
    return devices


def narrow(
    claims: Sequence[AskedClaim],
    state: NodeState,
    found: Candidates,
    *,
    joint_rules: Sequence[Rule],
    lists: bool,
    with_constraints: bool = True,
) -> Candidates:
    """The candidates without those that no constraint can accept."""
    left = {wanted: list(devices) for wanted, devices in found.items()}
    changed = True
    while changed:
        changed = False
        if with_constraints:
            for claim in claims:
                for constraint in claim.constraints:
                    if constraint.match_attribute:
                        changed |= _keep_common_values(claim, constraint, state, left, lists=lists)
        for rule in joint_rules:
            if rule.scope is not None:
                changed |= _keep_scopes(rule, state, left)
    return left


def enough(state: NodeState, left: Candidates) -> bool:
    """Whether all places of the fixed requests can be filled at the same time."""
    places: list[Wanted] = []
    wanting: dict[int, list[Wanted]] = {}
    for wanted, devices in left.items():
        places += [wanted] * wanted.spec.count
        if len(devices) < wanted.spec.count:
            return False
        for device in devices:
            wanting.setdefault(device, []).append(wanted)
    rooms = {device: _places_on(state, device, wanting[device]) for device in wanting}
    filled_by: dict[int, list[int]] = {device: [] for device in rooms}

    def fill(place: int, seen: set[int]) -> bool:
        for device in left[places[place]]:
            if device in seen:
                continue
            seen.add(device)
            if len(filled_by[device]) < rooms[device]:
                filled_by[device].append(place)
                return True
            for slot, other in enumerate(filled_by[device]):
                if fill(other, seen):
                    filled_by[device][slot] = place
                    return True
        return False

    return all(fill(place, set()) for place in range(len(places)))


def _keep_common_values(
    claim: AskedClaim, constraint: Constraint, state: NodeState, left: Candidates, *, lists: bool
) -> bool:
    """Leave only devices whose value every covered request finds often enough. True if something was left out."""
    covered = [
        request.alternatives[0]
        for request in claim.requests
        if request.alternatives[0] in left and constraint.covers(request.name)
    ]
    if not covered:
        return False
    values: dict[int, Values] = {
        device: rules.values_of(constraint, state.devices[device], lists=lists)
        for device in {device for wanted in covered for device in left[wanted]}
    }
    common: set[Any] | None = None
    for devices, count in {(tuple(left[wanted]), wanted.spec.count) for wanted in covered}:
        supply: dict[Any, int] = {}
        for device in devices:
            for value in values[device]:
                supply[value] = supply.get(value, 0) + 1
        sufficient = {value for value, times in supply.items() if times >= count}
        common = sufficient if common is None else common & sufficient
    changed = False
    for wanted in covered:
        kept = [device for device in left[wanted] if not values[device].isdisjoint(common or ())]
        changed |= len(kept) < len(left[wanted])
        left[wanted] = kept
    return changed


def _keep_scopes(rule: Rule, state: NodeState, left: Candidates) -> bool:
    """Leave out GPUs without a NIC candidate in scope (and, Together, NICs without a GPU)."""
    tally = Tally(rule)
    members = [wanted for wanted in left if (wanted.claim, wanted.request) in rule.members]
    if len(members) < len(rule.members) or rule.pairing is Pairing.TOGETHER:
        # Alternatives or `All` among the members, or one kind only: the search decides.
        return False
    keys = {
        kind: {
            tally.key(state.devices[device])
            for wanted in members
            for device in left[wanted]
            if state.devices[device].kind == kind
        }
        - {None}
        for kind in (GPU, NIC)
    }
    changed = False
    for wanted in members:
        kept = [
            device
            for device in left[wanted]
            if state.devices[device].kind != GPU or tally.key(state.devices[device]) in keys[NIC]
        ]
        changed |= len(kept) < len(left[wanted])
        left[wanted] = kept
    return changed


def _places_on(state: NodeState, device: int, wanting: Sequence[Wanted]) -> int:
    """How many of the requests the device can serve at most, each taking no more than the least anyone asks."""
    if not state.shared[device]:
        return 1
    demands = [demand.amounts for wanted in wanting if (demand := state.demand(wanted, device)) is not None]
    places = MAX_RESULTS * len(wanting)
    for name, capacity in state.devices[device].device.capacity.items():
        least = min((amounts.get(name, Decimal(0)) for amounts in demands), default=Decimal(0))
        if least > 0:
            free = capacity.value - state.used[device].get(name, Decimal(0))
            places = min(places, int(free // least))
    return places

"""Counting before searching: which devices can matter at all, and whether there are enough of them.

Three steps, all of which only ever remove what no solution can contain:

1. Values. A matchAttribute over some requests needs one value (of a list: one element) that every one of
   those requests finds on enough of its devices, and all of them together on devices with room for all.
   Devices without such a value are left out for these requests, and that is repeated until nothing changes,
   since leaving a device out for one constraint can take a value away from another. A JointAllocation of
   pairing PerDevice or Together is treated alike: a GPU in a scope without any eligible NIC is left out.
2. Counters. A partition that takes so much of a counter that even the cheapest devices for all other places
   no longer fit is left out: of eight partitions, seven of which are wanted, the one that is too large is
   never tried.
3. Matching. Every device wanted by a request with a fixed count is a place to fill; a place may be filled by
   the devices left for the request; a dedicated device fills one place, a shared one as many as its room
   allows. If the largest matching leaves a place empty, nothing fits: eight pairs over seven complete switch
   groups are refused here, not after 8! tries.

Only requests with one alternative, a fixed count and no admin access take part; the others are left to the
search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.constraints import Values
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.joint_allocation import Rule, ScopeTracker
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.api.claims import MAX_RESULTS, Constraint
from koordra.api.opaque.parameters import Pairing

Candidates = dict[RequestAlternative, list[int]]


def candidates_of(claims: Sequence[ResolvedClaim], state: AllocationState) -> Candidates | None:
    """Devices that can serve each fixed request as things stand, in search order; None if a selector fails on
    one."""
    found: Candidates = {}
    of_kind: dict[object, list[int]] = {}
    idle = [device for device, busy in enumerate(state.busy) if not busy]
    for request in (request for claim in claims for request in claim.requests):
        wanted = request.alternatives[0]
        if len(request.alternatives) > 1 or wanted.takes_all or wanted.spec.admin_access:
            continue
        if wanted.kind not in of_kind:
            if any(state.verdict(wanted, device).error for device in idle):
                return None
            of_kind[wanted.kind] = [
                device
                for device in idle
                if (demand := state.demand(wanted, device)) and state.has_room(device, demand)
            ]
        found[wanted] = of_kind[wanted.kind]
    return found


def narrow(search: PartialChoice, found: Candidates) -> Candidates:
    """The candidates without those that no solution can contain."""
    state, clauses, left = search.state, search.clauses, dict(found)
    rooms = rooms_of(state, left)
    _keep_affordable(state, left, rooms)
    changed = True
    while changed:
        changed = False
        for claim, constraints in zip(search.claims, search.constraints, strict=True):
            for constraint in constraints:
                if constraint.match_attribute:
                    changed |= _keep_common_values(claim, constraint, state, left, rooms=rooms)
        for rule in clauses.joint_rules:
            changed |= _keep_scopes(rule, state, left)
        if changed:
            _keep_affordable(state, left, rooms)
    return left


def enough(left: Candidates, rooms: Mapping[int, int]) -> bool:
    """Whether all places of the fixed requests can be filled at the same time."""
    if any(len(devices) < wanted.spec.count for wanted, devices in left.items()):
        return False
    places = [wanted for wanted in left for _ in range(wanted.spec.count)]
    if len(places) > sum(rooms.values()):
        return False
    serving = [left[wanted] for wanted in places]
    filled_by: dict[int, list[int]] = {device: [] for device in rooms}
    return all(_filled(place, set(), serving, rooms, filled_by) for place in range(len(places)))


def _filled(
    place: int,
    seen: set[int],
    serving: Sequence[Sequence[int]],
    rooms: Mapping[int, int],
    filled_by: Mapping[int, list[int]],
) -> bool:
    """Whether the place gets one of the devices that can serve it, others making room where they can."""
    for device in serving[place]:
        if device in seen:
            continue
        seen.add(device)
        if len(filled_by[device]) < rooms[device]:
            filled_by[device].append(place)
            return True
        for slot, other in enumerate(filled_by[device]):
            if _filled(other, seen, serving, rooms, filled_by):
                filled_by[device][slot] = place
                return True
    return False


def settled(search: PartialChoice, left: Candidates, rooms: Mapping[int, int]) -> bool:
    """Whether the claims take all there is to take, so that every solution leaves the same behind and costs
    the same.

    That is so when every request is a fixed one, there are just as many places as the devices have room for,
    and of a device everyone takes the same amount.
    """
    state = search.state
    if len(left) < len(search.requests):
        return False
    if sum(wanted.spec.count for wanted in left) < sum(rooms.values()):
        return False
    amounts: dict[int, object] = {}
    return all(
        amounts.setdefault(device, demand.key) == demand.key
        for wanted, devices in left.items()
        for device in devices
        if state.shared[device] and (demand := state.demand(wanted, device)) is not None
    )


def rooms_of(state: AllocationState, left: Candidates) -> dict[int, int]:
    """How many places each device can fill at most."""
    wanting: dict[int, list[RequestAlternative]] = {}
    for wanted, devices in left.items():
        for device in devices:
            wanting.setdefault(device, []).append(wanted)
    return {device: _places_on(state, device, requests) for device, requests in wanting.items()}


def _keep_common_values(
    claim: ResolvedClaim,
    constraint: Constraint,
    state: AllocationState,
    left: Candidates,
    *,
    rooms: Mapping[int, int],
) -> bool:
    """Leave only devices with a value that all covered requests find often enough. True if something was left
    out."""
    covered = [
        request.alternatives[0]
        for request in claim.requests
        if request.alternatives[0] in left and constraint.covers(request.name)
    ]
    if not covered:
        return False
    lists = {id(left[wanted]): left[wanted] for wanted in covered}
    values = {
        device: state.values(constraint.match_attribute, device)
        for devices in lists.values()
        for device in devices
    }
    common = _sufficient(values, rooms, sum(wanted.spec.count for wanted in covered))
    for key, devices in lists.items():
        most = max(wanted.spec.count for wanted in covered if id(left[wanted]) == key)
        common &= _sufficient({device: values[device] for device in devices}, {}, most)
    kept = {
        key: [device for device in devices if not values[device].isdisjoint(common)]
        for key, devices in lists.items()
    }
    changed = False
    for wanted in covered:
        fewer = kept[id(left[wanted])]
        if len(fewer) < len(left[wanted]):
            left[wanted], changed = fewer, True
    return changed


def _sufficient(values: Mapping[int, Values], rooms: Mapping[int, int], places: int) -> set[Any]:
    """The values whose devices have room for so many places; a device without a figure has one."""
    supply: dict[Any, int] = {}
    for device, found in values.items():
        room = rooms.get(device, 1)
        for value in found:
            supply[value] = supply.get(value, 0) + room
    return {value for value, room in supply.items() if room >= places}


def _keep_affordable(state: AllocationState, left: Candidates, rooms: Mapping[int, int]) -> None:
    """Leave out devices that take so much of a counter that too little is left for all other places, however
    cheap."""
    candidates = {device for devices in left.values() for device in devices}
    places = sum(wanted.spec.count for wanted in left)
    takers: dict[tuple[int, tuple[str, str]], dict[int, int]] = {}
    for device in candidates:
        if not state.shared[device]:
            for counter, amount in state.consumes(device).items():
                takers.setdefault((state.pool_of[device], counter), {})[device] = amount
    dear: set[int] = set()
    for (pool, counter), takes in takers.items():
        # A shared device pays once for all its places, and devices that do not take of the counter pay
        # nothing.
        free = sum(rooms[device] for device in candidates if device not in takes)
        needed = max(1, places - free)
        paying = sorted(takes.values())
        cheapest = sum(paying[:needed])
        for device, amount in takes.items():
            spared = min(amount, paying[min(needed, len(paying)) - 1])
            if cheapest - spared + amount > state.counters[pool].get(counter, 0):
                dear.add(device)
    if dear:
        lists = {id(devices): [d for d in devices if d not in dear] for devices in left.values()}
        left.update({wanted: lists[id(devices)] for wanted, devices in left.items()})


def _keep_scopes(rule: Rule, state: AllocationState, left: Candidates) -> bool:
    """Leave out GPUs without a NIC candidate in scope."""
    tally = ScopeTracker(rule)
    members = [wanted for wanted in left if (wanted.claim, wanted.request) in rule.members]
    if len(members) < len(rule.members) or rule.pairing is Pairing.TOGETHER:
        # Alternatives or `All` among the members, or one kind only: the search decides.
        return False
    keys = {
        tally.key(state.devices[device])
        for wanted in members
        for device in left[wanted]
        if state.devices[device].kind == NIC
    } - {None}
    changed = False
    for wanted in members:
        kept = [
            device
            for device in left[wanted]
            if state.devices[device].kind != GPU or tally.key(state.devices[device]) in keys
        ]
        changed |= len(kept) < len(left[wanted])
        left[wanted] = kept
    return changed


def _places_on(state: AllocationState, device: int, wanting: Sequence[RequestAlternative]) -> int:
    """How many of the requests the device can serve at most, each taking the least anyone asks."""
    if not state.shared[device]:
        return 1
    demands = [demand.nano for wanted in wanting if (demand := state.demand(wanted, device)) is not None]
    places = MAX_RESULTS * len(wanting)
    for name in state.capacity[device]:
        least = min(amounts.get(name, 0) for amounts in demands)
        if least > 0:
            places = min(places, state.room(device, name) // least)
    return places

"""Members that ask for whole devices: one table says what every node of one shape takes, whatever is in use
there.

A node of one *shape* publishes the same devices; what differs is which of them are free. Where each member
takes whole devices only, a set of free devices is all that matters, and the best choice for k members is the
cheapest of the sets that k members can share. So for a shape, and what a member asks, these are worked out
once, as bits:

    own         the sets that one member may have, each with the first way to give it to the member's
                requests, in that way's order
    sets[k]     the sets that k members may have together, judged (`allocator.device_table`): one of `own`
                beside one of `sets[k - 1]`

Then a node with the devices `free` takes k members if a set of `sets[k]` lies in `free`, and its best one is
looked up.

This is the search's answer (`allocator/search`), device by device. Of choices that cost the same the search
takes the first in the order of requests and devices; so does `divided`, which gives each member in turn the
first of `own` that leaves a set for the others.

`table_of` says None where a node's answer hangs on more than this: shares, lists of alternatives,
constraints, demanded partitions, devices that compete for counters bit by bit, errors, or more sets than are
worth a table. Then the search is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.device_table import DeviceTable, MachineTerms, Masks
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.joint_allocation import (
    RequestKey,
    ScopeTracker,
    relaxation_levels,
    rules_of,
)
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.score import ALTERNATIVE, Cost
from koordra.api import names
from koordra.api.claims import MAX_RESULTS
from koordra.api.opaque.parameters import DevicePolicy, PlacementPolicy
from koordra.placement.gang.member_assignment import Rails, rail_of, steps_apart

MOST_OWN: Final = 4_000
MOST_SETS: Final = 20_000
_MOST_BITS: Final = 62
_MOST_PAIRS: Final = 4_000_000

Way = tuple[tuple[int, ...], ...]
"""Per request, in the order of claims and requests: its devices, as positions on the node."""


class Free(NamedTuple):
    """What may be taken on a node, and what nobody uses, as bits of a table."""

    takeable: int
    untouched: int


@dataclass(frozen=True, slots=True)
class MemberDeviceSets:
    """Bit n is the device at position `devices[n]` of the node. `state`: the node as if nobody used its
    devices.

    `gpus`       the cards (those that count as spare)
    `apart`      a member's steps above PXB, by its set
    `shares`     what members have: (apart, number of GPUs). Where all have the same, nothing need be divided
                 to know how good it is
    `blocks`     by a device's position: whom nobody may take while that device is in use
    `whole`      of each device that a member may take: the capacity that it takes all of (None: the device is
                 not shared at all)
    `preferred`  some scope may be relaxed, so that only what fits is known here
    `members`    the masks of `sets`
    `rails`      the NICs on each rail
    """

    state: AllocationState
    devices: tuple[int, ...]
    gpus: int
    own: dict[int, Way]
    apart: dict[int, int]
    shares: frozenset[tuple[int, int]]
    blocks: dict[int, int]
    whole: dict[int, str | None]
    preferred: bool
    sets: list[DeviceTable]
    members: list[frozenset[int]]
    rails: Mapping[str, int]
    _answers: dict[Free, TableAnswer] = field(default_factory=dict)

    def on_rails(self, free: Free, rails: Rails) -> Free:
        """With the NICs of other rails taken away."""
        away = sum(mask for rail, mask in self.rails.items() if rail not in rails)
        return Free(free.takeable & ~away, free.untouched)

    def answer(self, free: Free) -> TableAnswer:
        if free not in self._answers:
            self._answers[free] = TableAnswer(self, free, self._numbers(free))
        return self._answers[free]

    def _numbers(self, free: Free) -> list[tuple[int, int]]:
        found = list[tuple[int, int]]()
        spare = (free.untouched & self.gpus).bit_count()
        for number in range(1, len(self.sets)):
            best = self.best(number, free)
            if not best.size:
                break
            if len(self.shares) == 1:
                ((apart, gpus),) = self.shares
                found.append((apart * number, spare - gpus * number))
                continue
            divided = self.divided(best, number)
            left = free.untouched & self.gpus & ~sum(divided)
            found.append((sum(self.apart[own] for own in divided), left.bit_count()))
        return found

    def best(self, number: int, free: Free) -> Masks:
        """The cheapest sets for so many members; empty where none fits."""
        return self.sets[number].least(takeable=free.takeable, untouched=free.untouched)

    def divided(self, best: Masks, number: int) -> list[int]:
        """The sets of the members, one after the other: each has the first that leaves the others a set of
        `sets`."""
        found = []
        wanted = {int(one) for one in best}
        for left in range(number - 1, -1, -1):
            for own in self.own:
                rest = {one ^ own for one in wanted if one & own == own} & self.members[left]
                if rest:
                    found.append(own)
                    wanted = rest
                    break
        return found


class TableAnswer(NamedTuple):
    """What a table says of a node: how good it is (apart, spare) to give 1, 2, … members the best sets of
    what is free."""

    table: MemberDeviceSets
    free: Free
    numbers: list[tuple[int, int]]


def table_of(
    asked: Sequence[ResolvedClaim],
    siblings: Sequence[frozenset[int]],
    state: AllocationState,
    *,
    policy: PlacementPolicy,
) -> MemberDeviceSets | None:
    """The table of a node for members that ask this. `state`: the node as if nobody used its devices."""
    whole = _taken_whole(asked, state)
    if whole is None or state.demanded_of(asked) is not None:
        return None
    cost = Cost(state, policy)
    candidates = sorted(whole)
    gpus = [device for device, offered in enumerate(state.devices) if offered.kind == GPU]
    devices = tuple(sorted({*candidates, *gpus}))
    blocks = _blocks(state, candidates)
    if blocks is None or len(devices) > _MOST_BITS:
        return None
    bit = {device: 1 << at for at, device in enumerate(devices)}
    own: dict[int, Way] = {}
    for number, way in enumerate(_ways(asked, siblings, state)):
        if number >= MOST_OWN:
            return None
        own.setdefault(sum(bit[device] for taken in way for device in taken), way)
    sets = _sets(list(own))
    if sets is None:
        return None
    machine = MachineTerms(
        cost.selection,
        gpus=gpus,
        nics=[device for device in devices if state.devices[device].kind == NIC],
        bit=bit,
        whole=[] if cost.device is DevicePolicy.SPREAD else cost.whole,
    )
    tables = [machine.table(one) for one in sets]
    if any(one.cost.max(initial=0) >= ALTERNATIVE // 2 for one in tables):
        return None  # nobody could tell it from a step down in a list
    cards = sum(bit[at] for at in gpus if state.devices[at].type == names.TYPE_GPU)
    apart = {
        one: steps_apart([state.devices[device].plain for taken in way for device in taken])
        for one, way in own.items()
    }
    rails = dict[str, int]()
    for device in machine.nics:
        rail = rail_of(state.devices[device].plain)
        rails[rail] = rails.get(rail, 0) | bit[device]
    return MemberDeviceSets(
        state=state,
        devices=devices,
        gpus=cards,
        own=own,
        apart=apart,
        shares=frozenset((apart[one], (one & cards).bit_count()) for one in own),
        blocks={device: sum(bit[other] for other in hit) for device, hit in blocks.items()},
        whole=whole,
        preferred=any(len(relaxation_levels(joint)) > 1 for claim in asked for joint in claim.joints),
        sets=tables,
        members=[frozenset(one.tolist()) for one in sets],
        rails=rails,
    )


def _taken_whole(asked: Sequence[ResolvedClaim], state: AllocationState) -> dict[int, str | None] | None:
    """The devices that a member may take, with the capacity that it takes all of; None where it may take less
    of one."""
    if any(pool.trouble or pool.others for pool in state.pools):
        return None
    found: dict[int, str | None] = {}
    for claim in asked:
        if (
            claim.constraints
            or sum(request.alternatives[0].spec.count for request in claim.requests) > MAX_RESULTS
        ):
            return None
        for request in claim.requests:
            wanted = request.alternatives[0]
            if (
                len(request.alternatives) > 1
                or request.prioritized
                or wanted.takes_all
                or wanted.spec.admin_access
            ):
                return None
            for device, offered in enumerate(state.devices):
                verdict = state.verdict(wanted, device)
                if verdict.error or (verdict.demand is not None and not offered.kind):
                    return None
                if verdict.demand is None or verdict.cause is not None:
                    continue
                whole = _whole(state, device, verdict.demand.amounts)
                if state.shared[device] and (whole is None or found.setdefault(device, whole) != whole):
                    return None
                found.setdefault(device, whole)
    return found


def _whole(state: AllocationState, device: int, amounts: Mapping[str, Decimal]) -> str | None:
    """A capacity of the shared device of which the demand leaves nothing; the number of sharers measures
    nothing."""
    capacity = state.devices[device].device.capacity
    return next(
        (
            name
            for name in sorted(amounts)
            if amounts[name] > 0
            and amounts[name] == capacity[name].value
            and name.rpartition("/")[2] != names.CAPACITY_SLOTS
        ),
        None,
    )


def _ways(
    asked: Sequence[ResolvedClaim], siblings: Sequence[frozenset[int]], state: AllocationState
) -> Iterator[Way]:
    """All ways to give one member its devices, in the search's order."""
    requests: list[tuple[RequestKey, RequestAlternative, list[int]]] = []
    for position, claim in enumerate(asked):
        for index, request in enumerate(claim.requests):
            wanted = request.alternatives[0]
            verdicts = [state.verdict(wanted, device) for device in range(len(state.devices))]
            usable = [at for at, one in enumerate(verdicts) if one.demand is not None and one.cause is None]
            requests.append(((position, index), wanted, usable))
    narrowest = [levels[0] for levels in rules_of(asked, siblings, state)]
    trackers = [ScopeTracker(rule) for rule in narrowest if rule]
    used: set[int] = set()

    def given(way: Way) -> Iterator[Way]:
        """The rest of the way: the request that is being served has its devices in rising order."""
        partly = way and len(way[-1]) < requests[len(way) - 1][1].spec.count
        served = len(way) - 1 if partly else len(way)
        if served == len(requests):
            if all(tracker.complete() for tracker in trackers):
                yield way
            return
        member, _, usable = requests[served]
        before = way[served] if partly else ()
        concerned = [tracker for tracker in trackers if member in tracker.rule.members]
        left = sum(one.spec.count for _, one, _ in requests[served:]) - len(before) - 1
        for device in usable:
            if device in used or (before and device < before[-1]):
                continue
            offered = state.devices[device]
            if not all(tracker.allows(offered, nics_to_come=left) for tracker in concerned):
                continue
            for tracker in concerned:
                tracker.add(offered)
            used.add(device)
            yield from given((*way[:served], (*before, device)))
            used.remove(device)
            for tracker in concerned:
                tracker.remove(offered)

    yield from given(())


def _blocks(state: AllocationState, candidates: Sequence[int]) -> dict[int, set[int]] | None:
    """Whom a device keeps from being taken while it is in use; None where that is no matter of yes and no."""
    found: dict[int, set[int]] = {device: {device} for device in candidates}
    for candidate in candidates:
        pool = state.pools[state.pool_of[candidate]]
        mine = state.devices[candidate].device.consumes_counters
        for other, offered in enumerate(state.devices):
            theirs = offered.device.consumes_counters
            common = mine.keys() & theirs.keys() if state.pool_of[other] == state.pool_of[candidate] else ()
            if other == candidate or not common:
                continue
            excludes = any(
                amount > 0 and mine[name].get(counter) == pool.counters.get((name, counter))
                for name in common
                for counter, amount in theirs[name].items()
            )
            if not excludes or other in candidates:
                return None
            found.setdefault(other, set()).add(candidate)
        if any(
            amount > pool.counters.get((name, counter), 0)
            for name, counters in mine.items()
            for counter, amount in counters.items()
        ):
            return None
    return found


def _sets(own: Sequence[int]) -> list[Masks] | None:
    """By number of members: the sets that they may have together."""
    each = np.array(sorted(own), dtype=np.int64)
    found = [np.zeros(1, dtype=np.int64)]
    while True:
        before = found[-1]
        if before.size * each.size > _MOST_PAIRS:
            return None
        pairs = before[:, None] & each[None, :]
        level = np.unique((before[:, None] | each[None, :])[pairs == 0])
        if not level.size:
            return found
        found.append(level)
        if sum(one.size for one in found) > MOST_SETS:
            return None

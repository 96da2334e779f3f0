"""What a group costs at least on the nodes of a state, without a search: what orders the nodes that were not searched yet.

Per request class and NodeClass, worked out once: which devices each request could have if nothing were in use (`eligibility`), how
much of a GPU it takes at most, and the least distance of a GPU to a NIC. Per state then

    no device that a request could have is free      the group does not fit, and no search is needed to know that
    nearness                                         GPUs that are needed, times the least distance: those asked for, or, of
                                                     shares, as many of the emptiest as have room for the amounts together
    compactness                                      groups that so many GPUs are spread over at least
    leftover of the node                             what its GPUs leave now, less the most that the group can take

Everything else counts as nothing, so the bound is never above the cost. Where a class's devices cannot be told (pools with devices
elsewhere, selectors that read identities), it is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from koordra.allocator.devices.eligibility import judge
from koordra.allocator.devices.inventory import GPU, NIC, PublishedDevice, Usage
from koordra.allocator.features import CONSUMABLE_CAPACITY, Features
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.score import effective_policy
from koordra.allocator.search.solution import CostPair
from koordra.allocator.selection_terms import COMPACT, COMPACTNESS, NEARNESS
from koordra.api import names
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy
from koordra.placement.index import NodeInfo
from koordra.placement.node_class import NodeClass
from koordra.topology.levels import level_between

UNIT: Final = 1_000_000
"""Parts of a GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One request on a NodeClass: by alternative, the devices that could serve it, with what it takes of each."""

    alternatives: tuple[tuple[tuple[int, Mapping[str, Decimal]], ...], ...]
    certain: bool


@dataclass(frozen=True, slots=True, eq=False)
class _OnClass:
    """`taken`: millionths of GPUs that the group takes at most. `fewest`: GPUs that it needs at least, each of which costs `distance`;
    so many of them cost `together` by their number. `amounts`: by capacity, what its shares of GPUs take at least."""

    requests: tuple[_Asked, ...]
    taken: int
    fewest: int
    distance: int
    together: tuple[int, ...]
    amounts: Mapping[str, Decimal]


class CostBound:
    """Of one request class."""

    def __init__(
        self, asked: Sequence[ResolvedClaim], policy: PlacementPolicy | None, features: Features
    ) -> None:
        effective = effective_policy([claim.placement for claim in asked], policy)
        self._asked, self._features, self._first_fit = asked, features, policy is None
        self._spreads = effective.node is NodePolicy.SPREAD
        self._aware = effective.device is DevicePolicy.TOPOLOGY_AWARE
        self._nearness, self._compactness = (NEARNESS, COMPACTNESS) if self._aware else (1, 1)
        self._shares = CONSUMABLE_CAPACITY in features
        self._of_class: dict[NodeClass, _OnClass] = {}

    def least(self, info: NodeInfo, taken: Usage) -> CostPair | None:
        """No placement on the node costs less; None where there is none."""
        of = info.devices.node_class
        if of is None:
            return CostPair()
        known = self._of_class.get(of)
        if known is None:
            if len(self._of_class) > 4096:
                self._of_class.clear()
            known = self._of_class[of] = self._on(info)
        devices = [device for pool in info.pools for device in pool.devices]
        if not all(self._may_have(request, devices, taken) for request in known.requests):
            return None
        if self._first_fit:
            return CostPair()
        total, used = _used(info, devices, taken)
        left = total - used
        if self._spreads:
            share = 1000 * used // total if total else 0
        else:
            share = max(0, 1000 * (left - known.taken) // total) if total else 0
        gpus = _gpus_needed(known, devices, taken)
        selection = known.distance * gpus + known.together[gpus]
        return CostPair(selection, (share,)) if self._aware else CostPair(0, (selection + share,))

    def _on(self, info: NodeInfo) -> _OnClass:
        devices = [device for pool in info.pools for device in pool.devices]
        requests, most, gpus, nics = [], 0, set[int](), set[int]()
        sure = places = 0
        pairs = True
        amounts: dict[str, Decimal] = {}
        for claim in self._asked:
            for request in claim.requests:
                found = [self._of_request(one, devices) for one in request.alternatives]
                requests.append(
                    _Asked(
                        tuple(found),
                        not any(one.takes_all or one.spec.admin_access for one in request.alternatives),
                    )
                )
                parts = [
                    (wanted, _part(devices[at], amounts), at)
                    for wanted, one in zip(request.alternatives, found, strict=True)
                    for at, amounts in one
                    if devices[at].kind == GPU
                ]
                most += max(
                    [
                        UNIT * len(devices) if one.takes_all else one.spec.count * part
                        for one, part, _ in parts
                    ],
                    default=0,
                )
                every = {at for one in found for at, _ in one}
                of_gpus = {at for at in every if devices[at].kind == GPU}
                gpus |= of_gpus
                nics |= {at for at in every if devices[at].kind == NIC}
                pairs = pairs and not any(
                    one.takes_all or one.spec.admin_access for one in request.alternatives
                )
                shares = [one for own in found for _, one in own]
                if every and every == of_gpus and requests[-1].certain and self._shares:
                    count = min(one.spec.count for one in request.alternatives)
                    places += count
                    for name in {name for one in shares for name in one}:
                        least = min(one.get(name, Decimal(0)) for one in shares)
                        amounts[name] = amounts.get(name, Decimal(0)) + count * least
                if every and every == of_gpus:
                    sure = max(
                        sure,
                        min(
                            one.spec.count if _whole(devices, own) else 1
                            for one, own in zip(request.alternatives, found, strict=True)
                        ),
                    )
        brings = any(
            request.alternatives
            and all(own and all(devices[at].kind == NIC for at, _ in own) for own in request.alternatives)
            for request in requests
        )
        distance = 0
        if pairs and brings and sure and gpus and nics:
            steps = min(
                max(0, level_between(devices[gpu].plain, devices[nic].plain).value) // 10
                for gpu in gpus
                for nic in nics
            )
            distance = self._nearness * steps
        shared = all(devices[at].device.allow_multiple_allocations for at in gpus)
        return _OnClass(
            tuple(requests),
            most,
            sure,
            distance,
            tuple([self._compactness * _spread(devices, gpus, number) for number in range(len(gpus) + 1)]),
            {name: amount for name, amount in amounts.items() if amount} if shared and places > 1 else {},
        )

    def _of_request(
        self, wanted: RequestAlternative, devices: Sequence[PublishedDevice]
    ) -> tuple[tuple[int, Mapping[str, Decimal]], ...]:
        found = []
        for at, offered in enumerate(devices):
            verdict = judge(wanted, offered, features=self._features)
            if verdict.error or (verdict.demand is not None and verdict.cause is None):
                amounts = {} if verdict.demand is None else verdict.demand.amounts
                found.append((at, amounts))
        return tuple(found)

    def _may_have(self, request: _Asked, devices: Sequence[PublishedDevice], taken: Usage) -> bool:
        """Whether some device that could serve the request is free for it."""
        if not request.certain:
            return True
        return any(
            self._has_room(devices[at], amounts, taken) for own in request.alternatives for at, amounts in own
        )

    def _has_room(self, offered: PublishedDevice, amounts: Mapping[str, Decimal], taken: Usage) -> bool:
        if offered.id in taken.dedicated:
            return False
        if offered.id not in taken.shares:
            return True
        if not (self._shares and offered.device.allow_multiple_allocations):
            return False
        used, capacity = taken.consumed.get(offered.id, {}), offered.device.capacity
        return all(
            name not in capacity or used.get(name, 0) + amount <= capacity[name].value
            for name, amount in amounts.items()
        )


def _gpus_needed(of: _OnClass, devices: Sequence[PublishedDevice], taken: Usage) -> int:
    """How many different GPUs the group needs, at least: the emptiest have to have room for all of a capacity."""
    needed = of.fewest
    for name, amount in of.amounts.items():
        free = [
            offered.device.capacity[name].value - taken.consumed.get(offered.id, {}).get(name, 0)
            for offered in devices
            if offered.kind == GPU and name in offered.device.capacity and offered.id not in taken.dedicated
        ]
        left, count = amount, 0
        for room in sorted(free, reverse=True):
            if left > 0:
                left, count = left - room, count + 1
        needed = max(needed, count)
    return min(needed, len(of.together) - 1)


def _spread(devices: Sequence[PublishedDevice], gpus: Iterable[int], number: int) -> int:
    """Switch groups, roots and NUMA nodes that so many of the GPUs are spread over at least, as the cost weighs them."""
    total = 0
    for attribute, weight in COMPACT:
        groups = Counter(devices[gpu].plain.get(attribute) for gpu in gpus)
        left, opened = number - groups.pop(None, 0), 0
        for size in sorted(groups.values(), reverse=True):
            if left > 0:
                left, opened = left - size, opened + 1
        total += weight * max(0, opened - 1)
    return total


def _whole(devices: Sequence[PublishedDevice], own: Sequence[tuple[int, object]]) -> bool:
    """Whether as many devices are needed as are asked for: none of them can be given twice."""
    return not any(devices[at].device.allow_multiple_allocations for at, _ in own)


def _part(offered: PublishedDevice, amounts: Mapping[str, Decimal]) -> int:
    """Millionths of the device that a share of this size takes, rounded up; all of one that is not shared."""
    if not offered.device.allow_multiple_allocations or not amounts:
        return UNIT
    return min(UNIT, _measured(offered, amounts))


def _measured(offered: PublishedDevice, amounts: Mapping[str, Decimal]) -> int:
    parts = [
        amounts.get(name, Decimal(0)) / entry.value
        for name, entry in offered.device.capacity.items()
        if entry.value > 0 and name.rpartition("/")[2] != names.CAPACITY_SLOTS
    ]
    return -int(-max(parts, default=Decimal(0)) * UNIT // 1)


def _used(info: NodeInfo, devices: Sequence[PublishedDevice], taken: Usage) -> tuple[int, int]:
    """Millionths of GPUs that the node has, and that are in use (rounded up)."""
    total = used = 0
    for offered in devices:
        if offered.kind == GPU:
            total += UNIT
            if offered.id in taken.dedicated:
                used += UNIT
            elif offered.id in taken.shares:
                amounts = taken.consumed.get(offered.id, {})
                shared = offered.device.allow_multiple_allocations
                used += min(UNIT, _measured(offered, amounts)) if shared else UNIT
    return total, used

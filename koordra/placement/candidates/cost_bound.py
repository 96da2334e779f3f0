"""What a group costs at least on the nodes of a state, without a search: what orders the nodes that were not
searched yet.

Per request class and NodeClass, worked out once: which devices each request could have if nothing were in use
(`eligibility`), how much of a GPU it takes at most, and the least distance of a GPU to a NIC. Per state then

    no device that a request could have is free      the group does not fit, and no search is needed to know
                                                     that
    nearness                                         GPUs that are needed, times the least distance: those
                                                     asked for, or, of shares, as many of the emptiest as have
                                                     room for the amounts together
    compactness                                      groups that so many GPUs are spread over at least
    leftover of the node                             what its GPUs leave now, less the most that the group can
                                                     take; spreading, what is used of them with the request
                                                     that adds most at least
    shares on cards, spreading                       what each finds used on the emptiest card, with its own

Everything else counts as nothing, so the bound is never above the cost. Where a class's devices cannot be
told (pools with devices elsewhere, selectors that read identities), it is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from math import ceil
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from koordra.allocator.devices.capacity import amount_of, consumed_of, measured
from koordra.allocator.devices.eligibility import judge
from koordra.allocator.devices.inventory import GPU, NIC, DeviceUse, PublishedDevice, Usage
from koordra.allocator.features import CONSUMABLE_CAPACITY, Features
from koordra.allocator.predicates import Amounts, total_of
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim, ResolvedRequest
from koordra.allocator.score import effective_policy
from koordra.allocator.search.solution import CostPair
from koordra.allocator.selection_terms import COMPACT, COMPACTNESS, NEARNESS
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy
from koordra.api.tables import BoundedCache
from koordra.placement.index import NodeInfo
from koordra.placement.node_class import NodeClass
from koordra.topology.levels import level_between

UNIT: Final = 1_000_000
"""Parts of a GPU."""
_NONE: Final = Decimal(0)

_On = Sequence[tuple[PublishedDevice, DeviceUse]]
"""The devices of a node, with what is in use of each."""

_Number = TypeVar("_Number", int, Decimal)


class _Request(NamedTuple):
    """One request on a NodeClass. `devices` could serve it, with what it takes of each (`least`: of any), and
    `certain`ly one of them is free if it is served; `of_nics`: it gets NICs alone. `taken`: millionths of
    GPUs that it takes at most; `gpus`: how many it needs at least, of which it has `shares` that take
    `amounts` together."""

    devices: tuple[tuple[int, Amounts], ...]
    least: Amounts
    certain: bool
    of_nics: bool
    taken: int
    gpus: int = 0
    shares: int = 0
    amounts: Amounts = MappingProxyType({})


class _OnClass(NamedTuple):
    """`least`: what requests take of a device, whichever they get, of those that are certain. `taken`:
    millionths of GPUs that the group takes at most. `fewest`: GPUs that it needs at least, each
    of which costs `distance`; so many of them cost `together` by their number. `amounts`: by capacity, what
    its shares of GPUs take at least."""

    requests: tuple[_Request, ...]
    least: tuple[tuple[str, Decimal], ...]
    taken: int
    fewest: int
    distance: int
    together: tuple[int, ...]
    amounts: Amounts


class CostBound:
    """Of one request class."""

    def __init__(
        self, asked: Sequence[ResolvedClaim], policy: PlacementPolicy | None, features: Features
    ) -> None:
        effective = effective_policy([claim.placement for claim in asked], policy)
        self._asked, self._features, self._first_fit = asked, features, policy is None
        self._spreads = effective.node is NodePolicy.SPREAD
        self._shares_apart = effective.device is DevicePolicy.SPREAD
        self._aware = effective.device is DevicePolicy.TOPOLOGY_AWARE
        self._nearness, self._compactness = (NEARNESS, COMPACTNESS) if self._aware else (1, 1)
        self._shares = CONSUMABLE_CAPACITY in features
        self._of_class = BoundedCache[NodeClass, _OnClass](1 << 12)
        self._takes = BoundedCache[tuple[NodeClass, str], tuple[int, int]](1 << 12)

    def least(self, info: NodeInfo, taken: Usage) -> CostPair | None:
        """No placement on the node costs less; None where there is none."""
        of = info.devices.node_class
        if of is None:
            return CostPair()
        known, most = (
            self._of_class.get_or_make(of, lambda: self._on(_devices(info))),
            most_free(info, taken),
        )
        certain = [request for request in known.requests if request.certain]
        for request in certain:
            if any(amount > most.get(name, 0) for name, amount in request.least.items()):
                return None
        on = [(device, taken.of(device.id)) for device in _devices(info)]
        for request in certain:
            if not any(self._has_room(*on[at], amounts) for at, amounts in request.devices):
                return None
        if self._first_fit:
            return CostPair()
        used = [_used(device, use) for device, use in on if device.kind == GPU]
        total, left = UNIT * len(used), UNIT * len(used) - sum(used)
        if self._spreads:
            added = max([self._added(request, on) for request in certain], default=0)
            share = 1000 * max(0, sum(used) - len(used) + added) // total if total else 0
        else:
            share = max(0, 1000 * (left - known.taken) // total) if total else 0
        if self._shares_apart:
            share += sum([self._on_emptiest(request, on) for request in certain])
        gpus = _gpus_needed(known, on)
        selection = known.distance * gpus + known.together[gpus]
        return CostPair(selection, (share,)) if self._aware else CostPair(0, (selection + share,))

    def _added(self, request: _Request, on: _On) -> int:
        """By how much what is used of the node's GPUs grows with the request, at least."""
        if not request.shares:
            return 0
        return min(
            [
                max(0, self._with(*on[at], amounts) - _used(*on[at]) - 1)
                for at, amounts in request.devices
                if self._has_room(*on[at], amounts)
            ]
        )

    def _on_emptiest(self, request: _Request, on: _On) -> int:
        """Thousandths that each share of the request finds used of its device at least, its own included."""
        shared = [on[at][0].device.allow_multiple_allocations for at, _ in request.devices]
        if not request.shares or not all(shared):
            return 0
        parts = [
            self._with(*on[at], amounts) - 1
            for at, amounts in request.devices
            if self._has_room(*on[at], amounts)
        ]
        return request.shares * max(0, 1000 * min(parts) // UNIT)

    def _with(self, offered: PublishedDevice, use: DeviceUse, amounts: Amounts) -> int:
        """Millionths of the device that are in use with these amounts of it, rounded up."""
        return _part(offered, total_of((use.consumed, amounts)) if use.consumed else amounts)

    def choices(self, info: NodeInfo, taken: Usage, *, alone: bool) -> Iterator[tuple[DeviceID, Amounts]]:
        """Devices of the node that have room for a request, with what it takes of them. `alone`: what serves
        the group on nodes of one class is not the same."""
        of, devices = info.devices.node_class, _devices(info)
        known = self._on(devices) if alone or of is None else self._known(of, info)
        for request in known.requests:
            for at, amounts in request.devices:
                device = devices[at].id
                if self._has_room(devices[at], taken.of(device), amounts):
                    yield device, amounts

    def takes(self, info: NodeInfo, capacity: str) -> tuple[int, int]:
        """The least and the most of a capacity of the node's GPUs that the group gets, in `nano`."""
        of = info.devices.node_class
        if of is None:
            return 0, sum([_has(one, capacity) for one in _devices(info)])
        return self._takes.get_or_make((of, capacity), lambda: self._range(_devices(info), capacity))

    def _range(self, devices: Sequence[PublishedDevice], capacity: str) -> tuple[int, int]:
        least = most = 0
        for request in [request for claim in self._asked for request in claim.requests]:
            ranges = [
                self._of_way(wanted, [(devices[at], amounts) for at, amounts in own], capacity)
                for wanted in request.alternatives
                if (own := self._serving(wanted, devices))
            ]
            least += min([one for one, _ in ranges], default=0)
            most += max([one for _, one in ranges], default=0)
        return least, most

    def _of_way(
        self, wanted: RequestAlternative, own: Sequence[tuple[PublishedDevice, Amounts]], capacity: str
    ) -> tuple[int, int]:
        if wanted.spec.admin_access:
            return 0, 0
        ranges = [self._of_device(offered, amounts, capacity) for offered, amounts in own]
        if wanted.takes_all:
            return 0, sum([most for _, most in ranges])
        count = wanted.spec.count
        return count * min([least for least, _ in ranges]), count * max([most for _, most in ranges])

    def _of_device(self, offered: PublishedDevice, amounts: Amounts, capacity: str) -> tuple[int, int]:
        has = _has(offered, capacity)
        if not (self._shares and offered.device.allow_multiple_allocations):
            return has, has
        found = consumed_of(amounts, capacity)
        return (found, found) if amounts else (0, has)

    def lacks(self, info: NodeInfo, taken: Usage) -> bool:
        """Whether no single device has as much left as some request takes of one: the first look at thousands
        of busy nodes."""
        devices = info.devices
        if devices.node_class is None:
            return False
        most = devices.most_free
        if most is None:
            most = devices.most_free = most_free(info, taken)
        for name, amount in self._known(devices.node_class, info).least:
            if amount > most.get(name, _NONE):
                return True
        return False

    def _known(self, of: NodeClass, info: NodeInfo) -> _OnClass:
        known = self._of_class.get(of)
        if known is None:
            known = self._of_class[of] = self._on(_devices(info))
        return known

    def _on(self, devices: Sequence[PublishedDevice]) -> _OnClass:
        requests = tuple(
            [self._request(request, devices) for claim in self._asked for request in claim.requests]
        )
        every = {at for request in requests for at, _ in request.devices}
        gpus, nics = ([at for at in every if devices[at].kind == kind] for kind in (GPU, NIC))
        fewest = max([request.gpus for request in requests], default=0)
        pairs = all(request.certain for request in requests) and any(request.of_nics for request in requests)
        distance = 0
        if pairs and fewest and gpus and nics:
            levels = [level_between(devices[gpu].plain, devices[nic].plain) for gpu in gpus for nic in nics]
            distance = self._nearness * (max(0, min(levels).value) // 10)
        several = sum(request.shares for request in requests) > 1
        shared = several and all(devices[at].device.allow_multiple_allocations for at in gpus)
        return _OnClass(
            requests,
            tuple([one for request in requests if request.certain for one in request.least.items()]),
            sum(request.taken for request in requests),
            fewest,
            distance,
            tuple(self._compactness * _spread(devices, gpus, number) for number in range(len(gpus) + 1)),
            total_of(request.amounts for request in requests) if shared else {},
        )

    def _request(self, request: ResolvedRequest, devices: Sequence[PublishedDevice]) -> _Request:
        ways = [(wanted, self._serving(wanted, devices)) for wanted in request.alternatives]
        every = tuple(pair for _, own in ways for pair in own)
        kinds = {devices[at].kind for at, _ in every}
        found = _Request(
            every,
            _least(every, devices),
            certain=not any(wanted.takes_all or wanted.spec.admin_access for wanted, _ in ways),
            of_nics=kinds == {NIC} and all(own for _, own in ways),
            taken=max(
                [
                    UNIT * len(devices)
                    if wanted.takes_all
                    else wanted.spec.count * _part(devices[at], amounts)
                    for wanted, own in ways
                    for at, amounts in own
                    if devices[at].kind == GPU
                ],
                default=0,
            ),
        )
        if kinds != {GPU}:
            return found
        # As many devices as are asked for are needed where none of them can be given twice.
        gpus = min(
            1 if any(devices[at].device.allow_multiple_allocations for at, _ in own) else wanted.spec.count
            for wanted, own in ways
        )
        if not (found.certain and self._shares):
            return found._replace(gpus=gpus)
        count = min(wanted.spec.count for wanted, _ in ways)
        amounts = {
            name: count * min(own.get(name, Decimal(0)) for _, own in every)
            for name in {name for _, own in every for name in own}
        }
        taken = {name: amount for name, amount in amounts.items() if amount}
        return found._replace(gpus=gpus, shares=count, amounts=taken)

    def _serving(
        self, wanted: RequestAlternative, devices: Sequence[PublishedDevice]
    ) -> list[tuple[int, Amounts]]:
        """The devices that could serve the request, with what it takes of each."""
        found = list[tuple[int, Amounts]]()
        for at, offered in enumerate(devices):
            verdict = judge(wanted, offered, features=self._features)
            if verdict.error or (verdict.demand is not None and verdict.cause is None):
                found.append((at, {} if verdict.demand is None else verdict.demand.amounts))
        return found

    def _has_room(self, offered: PublishedDevice, use: DeviceUse, amounts: Amounts) -> bool:
        if use.holder:
            return False
        if not use.shares:
            return True
        if not (self._shares and offered.device.allow_multiple_allocations):
            return False
        capacity = offered.device.capacity
        return all(
            name not in capacity or use.consumed.get(name, 0) + amount <= capacity[name].value
            for name, amount in amounts.items()
        )


def _has(offered: PublishedDevice, capacity: str) -> int:
    return amount_of(offered.device, capacity) if offered.kind == GPU else 0


def _devices(info: NodeInfo) -> list[PublishedDevice]:
    return [device for pool in info.pools for device in pool.devices]


def _least(serving: Sequence[tuple[int, Amounts]], devices: Sequence[PublishedDevice]) -> Amounts:
    """What is taken of whatever device it is, of capacities that all of them have."""
    named = [amounts.keys() & devices[at].device.capacity.keys() for at, amounts in serving]
    return {
        name: min(amounts[name] for _, amounts in serving)
        for name in (frozenset.intersection(*map(frozenset, named)) if named else ())
    }


def most_free(info: NodeInfo, taken: Usage) -> Amounts:
    """Of each capacity, the most that a single device has left."""
    most: dict[str, Decimal] = {}
    for device in _devices(info):
        use = taken.of(device.id)
        if use.holder or (use.shares and not device.device.allow_multiple_allocations):
            continue
        for name, capacity in device.device.capacity.items():
            most[name] = max(most.get(name, _NONE), capacity.value - use.consumed.get(name, _NONE))
    return most


def _gpus_needed(of: _OnClass, on: _On) -> int:
    """How many different GPUs the group needs, at least: the emptiest have to have room for all of a
    capacity."""
    needed = of.fewest
    for name, amount in of.amounts.items():
        rooms = [
            offered.device.capacity[name].value - use.consumed.get(name, 0)
            for offered, use in on
            if offered.kind == GPU and name in offered.device.capacity and not use.holder
        ]
        needed = max(needed, _fewest(rooms, amount))
    return min(needed, len(of.together) - 1)


def _spread(devices: Sequence[PublishedDevice], gpus: Iterable[int], number: int) -> int:
    """Switch groups, roots and NUMA nodes that so many of the GPUs are spread over at least, as the cost
    weighs them."""
    total = 0
    for attribute, weight in COMPACT:
        groups = Counter(devices[gpu].plain.get(attribute) for gpu in gpus)
        alone = groups.pop(None, 0)
        total += weight * max(0, _fewest(groups.values(), number - alone) - 1)
    return total


def _fewest(sizes: Iterable[_Number], amount: _Number) -> int:
    """How many of these it takes to come to the amount, or all of them."""
    left, count = amount, 0
    for size in sorted(sizes, reverse=True):
        if left > 0:
            left, count = left - size, count + 1
    return count


def _part(offered: PublishedDevice, amounts: Amounts) -> int:
    """Millionths of the device that a share of this size takes, rounded up; all of one that is not shared."""
    if not offered.device.allow_multiple_allocations or not amounts:
        return UNIT
    return min(UNIT, ceil((measured(amounts, offered.device) or _NONE) * UNIT))


def _used(offered: PublishedDevice, use: DeviceUse) -> int:
    """Millionths of the GPU that are in use, rounded up."""
    if use.holder or (use.shares and not offered.device.allow_multiple_allocations):
        return UNIT
    return _part(offered, use.consumed) if use.consumed else 0

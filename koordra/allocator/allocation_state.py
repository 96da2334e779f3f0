"""One node while a group is being placed: its devices in search order, and what is taken of each.

Amounts are whole numbers here (`capacity.nano`), and so is how much of a device is used: the largest used
part of any capacity that measures it (not the number of sharers), in units of which every device of the node
has `whole`, the least common multiple of what is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from math import lcm
from typing import Final, NamedTuple

from koordra.allocator import constraints as rules
from koordra.allocator import features as gates
from koordra.allocator.devices.capacity import Demand, in_units, measures, nano
from koordra.allocator.devices.eligibility import Verdict, admitted, beside, isolation_of, selected
from koordra.allocator.devices.inventory import (
    UNUSED,
    Pool,
    PublishedDevice,
    Usage,
    available_counters,
    devices_kept_apart,
)
from koordra.allocator.devices.nvlink_fabric import Fabric, PartitionTracker, cards_of, fabric_of
from koordra.allocator.devices.pools import kept_with_pools
from koordra.allocator.features import Features
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.api.devices import Device
from koordra.api.opaque.isolation import has_mps, is_one_card
from koordra.api.tables import BoundedCache

Verdicts = dict[tuple[object, int], Verdict]
"""By kind of request and position of the device."""


class AllocationState:
    """The devices of one node in search order, and what is taken of them by earlier allocations.

    `namespace`: that of the claims that are placed; claims of a group, and of a gang, are of one.
    `honors_partitions`: the node's whole cards are given out as partitions of its NVLink fabric only.
    `verdicts`: those that are known of the node's class; what is found is added.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        taken: Usage,
        features: Features,
        *,
        namespace: str,
        honors_partitions: bool = False,
        verdicts: Verdicts | None = None,
    ) -> None:
        self.pools, self.taken, self.features, self.namespace = pools, taken, features, namespace
        self.honors_partitions = honors_partitions
        self.verdicts: Verdicts = {} if verdicts is None else verdicts
        self.devices, self.pool_of, self.capacity = _published(pools)
        sharing = gates.CONSUMABLE_CAPACITY in features
        self.shared = [sharing and one.device.allow_multiple_allocations for one in self.devices]
        in_use = [
            found.get(one.id, UNUSED)
            for pool in pools
            for found in [taken.of_pool.get(pool.id, {})]
            for one in pool.devices
        ]
        self.busy = [
            bool(use.holder) or (use.shares > 0 and not shared)
            for use, shared in zip(in_use, self.shared, strict=True)
        ]
        self.used = [{name: nano(amount) for name, amount in use.consumed.items()} for use in in_use]
        self.holders = [use.shares for use in in_use]
        apart = devices_kept_apart(pools)
        self._neighbours = {
            device: use.namespaces
            for device, (one, use) in enumerate(zip(self.devices, in_use, strict=True))
            if one.id in apart and not use.namespaces <= {namespace}
        }
        """Of cards for one namespace that others have shares of, the namespaces of these."""
        self.counters = [
            {name: nano(amount) for name, amount in available_counters(pool, taken).items()} for pool in pools
        ]
        self._left_out: dict[tuple[object, int], Verdict | None] = {}
        self._by_mps: dict[tuple[object, int], bool] = {}
        self._values: dict[tuple[str, int], rules.Values] = {}

    @cached_property
    def parts(self) -> list[int]:
        """How much of each device is used."""
        return [self.part(device, used) if used else 0 for device, used in enumerate(self.used)]

    @cached_property
    def whole(self) -> int:
        return _whole(self.pools)

    @cached_property
    def fabric(self) -> Fabric:
        return _fabric(self.pools)

    def verdict(self, wanted: RequestAlternative, device: int) -> Verdict:
        """The static verdict, judged once per kind of request and device; then who is on the card."""
        key = (wanted.kind, device)
        found = self.verdicts.get(key)
        if found is None:
            offered = self.devices[device]
            place = (wanted.selectors, device)
            if place not in self._left_out:
                self._left_out[place] = selected(wanted, offered, features=self.features)
            found = self._left_out[place] or admitted(wanted, offered, features=self.features)
            self.verdicts[key] = found
        if device in self._neighbours and found.demand is not None and found.cause is None:
            of = self._neighbours[device]
            return beside(wanted, self.devices[device], found.demand, namespace=self.namespace, others=of)
        return found

    def demanded_of(self, claims: Sequence[ResolvedClaim]) -> PartitionTracker | None:
        """Whose cards have to be partitions here, by the node's word or the claim's; nothing is held yet."""
        by_node = self.honors_partitions and bool(self.fabric.partitions)
        demanding = frozenset(at for at, claim in enumerate(claims) if by_node or claim.demands_partition)
        cards = frozenset(self.fabric.cards or cards_of(self.devices))
        return PartitionTracker(self.fabric, demanding, cards) if demanding else None

    def values(self, attribute: str, device: int) -> rules.Values:
        """The device's values of an attribute that a constraint is about, read once."""
        found = self._values.get((attribute, device))
        if found is None:
            lists = gates.LIST_ATTRIBUTES in self.features
            found = self._values[attribute, device] = rules.values_of(
                attribute, self.devices[device], lists=lists
            )
        return found

    @cached_property
    def has_mps(self) -> bool:
        """Whether some card's shares may be by MPS."""
        return _has_mps(self.pools)

    def by_mps(self, wanted: RequestAlternative, device: int, demand: Demand) -> bool:
        """Whether what the request would have of the device is a share by MPS."""
        key = (wanted.kind, device)
        if key not in self._by_mps:
            self._by_mps[key] = is_one_card(isolation_of(wanted, self.devices[device], demand))
        return self._by_mps[key]

    def demand(self, wanted: RequestAlternative, device: int) -> Demand | None:
        """What the request takes of the device, if that can serve it; None if not."""
        found = self.verdict(wanted, device)
        return found.demand if found.cause is None else None

    def has_room(self, device: int, demand: Demand) -> bool:
        """Whether the device's capacities hold what is used and the demand."""
        used, capacity = self.used[device], self.capacity[device]
        return all(used.get(name, 0) + amount <= capacity[name] for name, amount in demand.nano.items())

    def room(self, device: int, name: str) -> int:
        """What nobody uses of a capacity; negative where more was given out than is published now."""
        return self.capacity[device].get(name, 0) - self.used[device].get(name, 0)

    def free(self, device: int, name: str) -> Decimal:
        """`room` as people write it."""
        return in_units(self.room(device, name))

    def part(self, device: int, amounts: Mapping[str, int]) -> int:
        """The largest part of any measuring capacity of the device that the amounts are, `whole` being all of
        it."""
        return max(
            (
                amount * self.whole // self.capacity[device][name]
                for name, amount in amounts.items()
                if measures(name) and self.capacity[device].get(name, 0) > 0
            ),
            default=0,
        )

    def counters_left(self, device: int, counter: tuple[str, str]) -> Decimal:
        """What is left of a counter that the device takes of, as people write it."""
        return in_units(self.counters[self.pool_of[device]].get(counter, 0))

    def consumes(self, device: int) -> dict[tuple[str, str], int]:
        """What the device takes of its pool's counters, by counter set and name."""
        return {name: nano(amount) for name, amount in self.devices[device].device.counters.items()}

    def counters_for(self, device: int) -> dict[tuple[str, str], int] | None:
        """What the device would take of the pool's counters, None when they do not suffice; a share pays only
        once."""
        consumes = self.devices[device].device.consumes_counters
        if not consumes or (self.shared[device] and self.holders[device]):
            return {}
        left = self.counters[self.pool_of[device]]
        # Nothing is taken from a set that is overdrawn, even if the device does not use the counter in
        # question.
        if any(amount < 0 for (set_name, _), amount in left.items() if set_name in consumes):
            return None
        taken = self.consumes(device)
        return None if any(left[name] < amount for name, amount in taken.items()) else taken


class _Published(NamedTuple):
    """What a node's pools publish, in whole numbers: the same whatever is in use."""

    devices: list[PublishedDevice]
    pool_of: list[int]
    capacity: list[Mapping[str, int]]


_capacities: Final = BoundedCache[Device, Mapping[str, int]](1 << 12)
"""Of devices that machines of a type publish alike."""


def _capacity_of(device: Device) -> Mapping[str, int]:
    return _capacities.get_or_make(
        device, lambda: {name: nano(entry.value) for name, entry in device.capacity.items()}
    )


@kept_with_pools
def _published(pools: Sequence[Pool]) -> _Published:
    devices = [offered for pool in pools for offered in pool.devices]
    capacity = [_capacity_of(offered.device.alike or offered.device) for offered in devices]
    pool_of = [number for number, pool in enumerate(pools) for _ in pool.devices]
    return _Published(devices, pool_of, capacity)


@kept_with_pools
def _whole(pools: Sequence[Pool]) -> int:
    """The least common multiple of the capacities that measure devices."""
    measuring = {
        amount
        for amounts in _published(pools).capacity
        for name, amount in amounts.items()
        if amount > 0 and measures(name)
    }
    return lcm(*measuring)


@kept_with_pools
def _has_mps(pools: Sequence[Pool]) -> bool:
    return any(has_mps(offered.plain) for offered in _published(pools).devices)


@kept_with_pools
def _fabric(pools: Sequence[Pool]) -> Fabric:
    return fabric_of(_published(pools).devices)

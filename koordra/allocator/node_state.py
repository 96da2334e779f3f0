"""One node while a group is being placed: its devices in search order, and what is taken of each.

Amounts are whole numbers here (`capacity.nano`), and so is how much of a device is used: the largest used part of any
capacity that measures it (not the number of sharers), in units of which every device of the node has `whole`, the least
common multiple of what is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import lcm
from typing import Final

from koordra.allocator import constraints as rules
from koordra.allocator import features as gates
from koordra.allocator.devices.capacity import Demand, in_units, nano
from koordra.allocator.devices.eligibility import Verdict, admitted, selected
from koordra.allocator.devices.inventory import Pool, PublishedDevice, Usage, available_counters
from koordra.allocator.devices.nvlink_fabric import (
    NO_FABRIC,
    Fabric,
    PartitionTracker,
    demanded_of,
    fabric_of,
)
from koordra.allocator.features import Features
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.api import names

Verdicts = dict[tuple[object, int], Verdict]
"""By kind of request and position of the device."""


@dataclass(slots=True)
class NodeState:
    """The devices of one node in search order, and what is taken of them by earlier allocations.

    `honors_partitions`: the node's whole cards are given out as partitions of its NVLink fabric only.
    """

    pools: Sequence[Pool]
    taken: Usage
    features: Features
    honors_partitions: bool = False
    fabric: Fabric = NO_FABRIC
    devices: list[PublishedDevice] = field(default_factory=list)
    pool_of: list[int] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    busy: list[bool] = field(default_factory=list)
    capacity: list[Mapping[str, int]] = field(default_factory=list)
    used: list[dict[str, int]] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    whole: int = 1
    holders: list[int] = field(default_factory=list)
    counters: list[dict[tuple[str, str], int]] = field(default_factory=list)
    verdicts: Verdicts = field(default_factory=dict)
    _left_out: dict[tuple[object, int], Verdict | None] = field(default_factory=dict)
    _values: dict[tuple[str, int], rules.Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sharing = gates.CONSUMABLE_CAPACITY in self.features
        for index, pool in enumerate(self.pools):
            left = available_counters(pool, self.taken)
            self.counters.append({name: nano(amount) for name, amount in left.items()})
            published = _capacities(pool)
            self.capacity += published.of_devices
            self.whole = lcm(self.whole, published.multiple)
            for offered in pool.devices:
                shared = sharing and offered.device.allow_multiple_allocations
                shares = self.taken.shares.get(offered.id, 0)
                self.devices.append(offered)
                self.pool_of.append(index)
                self.shared.append(shared)
                self.busy.append(offered.id in self.taken.dedicated or (shares > 0 and not shared))
                consumed = self.taken.consumed.get(offered.id)
                self.used.append({name: nano(a) for name, a in consumed.items()} if consumed else {})
                self.holders.append(shares)
        self.parts = [self.part(device, used) if used else 0 for device, used in enumerate(self.used)]
        self.fabric = fabric_of(self.devices)

    def verdict(self, wanted: RequestAlternative, device: int) -> Verdict:
        """The static verdict, judged once per kind of request and device."""
        key = (wanted.kind, device)
        found = self.verdicts.get(key)
        if found is None:
            offered = self.devices[device]
            place = (wanted.selectors, device)
            if place not in self._left_out:
                self._left_out[place] = selected(wanted, offered, features=self.features)
            found = self._left_out[place] or admitted(wanted, offered, features=self.features)
            self.verdicts[key] = found
        return found

    def demanded_of(self, claims: Sequence[ResolvedClaim]) -> PartitionTracker | None:
        """Whose cards have to be partitions here, by the node's word or the claim's; nothing is held yet."""
        return demanded_of(claims, self.devices, self.fabric, by_node=self.honors_partitions)

    def values(self, attribute: str, device: int) -> rules.Values:
        """The device's values of an attribute that a constraint is about, read once."""
        found = self._values.get((attribute, device))
        if found is None:
            lists = gates.LIST_ATTRIBUTES in self.features
            found = self._values[attribute, device] = rules.values_of(
                attribute, self.devices[device], lists=lists
            )
        return found

    def demand(self, wanted: RequestAlternative, device: int) -> Demand | None:
        """What the request takes of a device that was judged before and can serve it."""
        found = self.verdicts.get((wanted.kind, device))
        return found.demand if found is not None else None

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
        """The largest part of any measuring capacity of the device that the amounts are, `whole` being all of it."""
        return max(
            (
                amount * self.whole // self.capacity[device][name]
                for name, amount in amounts.items()
                if name.rpartition("/")[2] != names.CAPACITY_SLOTS and self.capacity[device].get(name, 0) > 0
            ),
            default=0,
        )

    def counters_left(self, device: int, counter: tuple[str, str]) -> Decimal:
        """What is left of a counter that the device takes of, as people write it."""
        return in_units(self.counters[self.pool_of[device]].get(counter, 0))

    def counters_for(self, device: int) -> dict[tuple[str, str], int] | None:
        """What the device would take of the pool's counters, None when they do not suffice; a share pays only once."""
        consumes = self.devices[device].device.consumes_counters
        if not consumes or (self.shared[device] and self.holders[device]):
            return {}
        left = self.counters[self.pool_of[device]]
        # Nothing is taken from a set that is overdrawn, even if the device does not use the counter in question.
        if any(amount < 0 for (set_name, _), amount in left.items() if set_name in consumes):
            return None
        taken = {
            (set_name, counter): nano(amount)
            for set_name, counters in consumes.items()
            for counter, amount in counters.items()
        }
        return None if any(left[name] < amount for name, amount in taken.items()) else taken


_READ: Final = "capacities"


@dataclass(frozen=True, slots=True)
class _Capacities:
    """A pool's capacities as whole numbers, and the least common multiple of those that measure its devices."""

    of_devices: tuple[Mapping[str, int], ...]
    multiple: int


def _capacities(pool: Pool) -> _Capacities:
    found: _Capacities | None = pool.read.get(_READ)
    if found is None:
        of_devices = tuple(
            {name: nano(entry.value) for name, entry in offered.device.capacity.items()}
            for offered in pool.devices
        )
        measuring = {
            amount
            for amounts in of_devices
            for name, amount in amounts.items()
            if amount > 0 and name.rpartition("/")[2] != names.CAPACITY_SLOTS
        }
        found = pool.read[_READ] = _Capacities(of_devices, lcm(*measuring))
    return found

"""One node while a group is being placed: its devices in search order, and what is taken of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from koordra.allocator import constraints as rules
from koordra.allocator import features as gates
from koordra.allocator.capacity import Demand
from koordra.allocator.eligibility import Verdict, judge
from koordra.allocator.fabric import NO_FABRIC, Demanded, Fabric, demanded_of, fabric_of
from koordra.allocator.features import Features
from koordra.allocator.inventory import Offered, Pool, Taken, available_counters
from koordra.allocator.requests import AskedClaim, Wanted


@dataclass(slots=True)
class NodeState:
    """The devices of one node in search order, and what is taken of them by earlier allocations.

    `honors_partitions`: the node's whole cards are given out as partitions of its NVLink fabric only.
    """

    pools: Sequence[Pool]
    taken: Taken
    features: Features
    honors_partitions: bool = False
    fabric: Fabric = NO_FABRIC
    devices: list[Offered] = field(default_factory=list)
    pool_of: list[int] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    busy: list[bool] = field(default_factory=list)
    used: list[dict[str, Decimal]] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)
    counters: list[dict[tuple[str, str], Decimal]] = field(default_factory=list)
    verdicts: dict[tuple[object, int, bool], Verdict] = field(default_factory=dict)
    _values: dict[tuple[str, int], rules.Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sharing = gates.CONSUMABLE_CAPACITY in self.features
        for index, pool in enumerate(self.pools):
            self.counters.append(available_counters(pool, self.taken))
            for offered in pool.devices:
                shared = sharing and offered.device.allow_multiple_allocations
                shares = self.taken.shares.get(offered.id, 0)
                self.devices.append(offered)
                self.pool_of.append(index)
                self.shared.append(shared)
                self.busy.append(offered.id in self.taken.dedicated or (shares > 0 and not shared))
                self.used.append(dict(self.taken.consumed.get(offered.id, {})))
                self.holders.append(shares)
        self.fabric = fabric_of(self.devices)

    def verdict(self, wanted: Wanted, device: int, *, own_driver_only: bool) -> Verdict:
        """The static verdict, judged once per kind of request and device."""
        key = (wanted.kind, device, own_driver_only)
        found = self.verdicts.get(key)
        if found is None:
            found = judge(
                wanted, self.devices[device], features=self.features, own_driver_only=own_driver_only
            )
            self.verdicts[key] = found
        return found

    def demanded_of(self, claims: Sequence[AskedClaim]) -> Demanded | None:
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

    def demand(self, wanted: Wanted, device: int) -> Demand | None:
        """What the request takes of a device that was judged before and can serve it."""
        judged = (self.verdicts.get((wanted.kind, device, own)) for own in (False, True))
        return next(
            (found.demand for found in judged if found is not None and found.demand is not None), None
        )

    def has_room(self, device: int, demand: Demand) -> bool:
        """Whether the device's capacities hold what is used and the demand."""
        used = self.used[device]
        capacity = self.devices[device].device.capacity
        return all(
            used.get(name, 0) + amount <= capacity[name].value for name, amount in demand.amounts.items()
        )

    def counters_for(self, device: int) -> dict[tuple[str, str], Decimal] | None:
        """What the device would take of the pool's counters, None when they do not suffice; a share pays only once."""
        consumes = self.devices[device].device.consumes_counters
        if not consumes or (self.shared[device] and self.holders[device]):
            return {}
        left = self.counters[self.pool_of[device]]
        # Nothing is taken from a set that is overdrawn, even if the device does not use the counter in question.
        if any(amount < 0 for (set_name, _), amount in left.items() if set_name in consumes):
            return None
        taken = {
            (set_name, counter): amount
            for set_name, counters in consumes.items()
            for counter, amount in counters.items()
        }
        return None if any(left[name] < amount for name, amount in taken.items()) else taken

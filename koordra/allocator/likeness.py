"""Nodes that are alike device by device, found without looking into them again.

A cluster has many nodes of few kinds, most of them untouched. Two nodes with the same likeness have the same answers for a group
of claims, position by position. Likeness is a number per pool, worked out once per inventory and set of attribute names that
the group's selectors read, and what is taken of the pool's devices:

- attributes that a selector reads, and those that the topology is read from, count by value;
- of any other attribute only which devices share a value counts, since a constraint cannot see more (a serial number differs
  on every node, and means nothing);
- everything else that a device publishes counts as it is.

A pool with devices elsewhere has no likeness: what is taken there matters too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from koordra.allocator.devices.inventory import Inventory, Pool, PublishedDevice, Usage
from koordra.api import names
from koordra.api.devices import Attribute

Names = frozenset[str] | None
"""Attribute names without their domain; None is all."""

_MOST_READ: Final = 256
"""Sets of names by which one pool is known at the same time."""

_IDENTITIES: Final = frozenset({names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV})
_TOPOLOGY: Final = (names.DOMAIN, "resource.kubernetes.io/")


def likeness(inventory: Inventory, pools: Sequence[Pool], taken: Usage, read: Names) -> Hashable:
    """Equal for nodes that are alike; None where that cannot be told."""
    found = []
    for pool in pools:
        if pool.others or pool.trouble:
            return None
        of_pool = inventory.likes.setdefault(pool, {})
        kind = of_pool.get(read)
        if kind is None:
            if len(of_pool) >= _MOST_READ:
                of_pool.clear()
            kind = of_pool[read] = inventory.number_of(_published(pool, read))
        found.append((kind, _taken_of(pool, taken)))
    return tuple(found)


def _taken_of(pool: Pool, taken: Usage) -> Hashable:
    in_use = taken.of_pool.get(pool.id)
    if not in_use:
        return ()
    return tuple(
        (
            position,
            offered.id in taken.dedicated,
            taken.shares.get(offered.id, 0),
            tuple(sorted(taken.consumed.get(offered.id, {}).items())),
        )
        for position, offered in enumerate(pool.devices)
        if offered.id in in_use
    )


def _published(pool: Pool, read: Names) -> Hashable:
    numbers: dict[tuple[str, Hashable], int] = {}
    return (
        tuple(sorted(pool.counters.items())),
        tuple(_device(offered, read, numbers) for offered in pool.devices),
    )


def _device(offered: PublishedDevice, read: Names, numbers: dict[tuple[str, Hashable], int]) -> Hashable:
    device = offered.device
    return (
        offered.id.driver,
        offered.here,
        offered.taints,
        device.allow_multiple_allocations,
        device.binding_conditions,
        device.binding_failure_conditions,
        tuple(
            _attribute(name, entry, read, numbers) for name, entry in sorted(offered.facts.attributes.items())
        ),
        tuple((name, entry.value, entry.policy) for name, entry in sorted(offered.facts.capacity.items())),
        tuple(
            (counter_set, tuple(sorted(counters.items())))
            for counter_set, counters in sorted(device.consumes_counters.items())
        ),
    )


def _attribute(
    name: str, attribute: Attribute, read: Names, numbers: dict[tuple[str, Hashable], int]
) -> Hashable:
    by_value = read is None or name.rpartition("/")[2] in read
    if by_value or (name.startswith(_TOPOLOGY) and name not in _IDENTITIES):
        return (name, attribute.kind, attribute.value)
    values = attribute.value if attribute.is_list else (attribute.value,)
    renamed = tuple(numbers.setdefault((name, (attribute.kind, value)), len(numbers)) for value in values)
    return (name, attribute.kind, renamed)

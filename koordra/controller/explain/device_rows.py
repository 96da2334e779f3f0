"""The devices of nodes as people are shown them: what is free of each, and who has the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Inventory, Pool, PublishedDevice, Usage, available_counters
from koordra.allocator.features import Features
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.devices import DeviceID
from koordra.api.objects import Object
from koordra.placement.holders.device_hold import HOLD, held_seats
from koordra.quantity import canonical

_ATTRIBUTES: Final = {
    "type": names.ATTR_TYPE,
    "model": names.ATTR_MODEL,
    "allocator": names.ATTR_ALLOCATOR,
    "profile": names.ATTR_PROFILE,
    "uuid": names.ATTR_UUID,
    "numaNode": names.ATTR_NUMA_NODE,
    "pcieSwitch": names.ATTR_PCIE_SWITCH,
}
"""Field of a row -> attribute of the device."""
_ZERO: Final = Decimal(0)


def device_rows(cluster: Iterable[Object]) -> list[Object]:
    """One entry per device of koordra's, by node and in the order in which they are published.

    A pool that cannot be used is one entry without a device: its state is `Unusable` and `reason` says why.
    Devices that are on no node are there once, without one.
    """
    found = list(cluster)
    inventory = Inventory.of(found, features=Features.of(None))
    taken, holders = _taken(found)
    nodes = sorted((one for one in found if one.get("kind") == "Node"), key=objects.name)
    rows: list[Object] = []
    shown = set[DeviceID]()
    for node in nodes:
        for pool in inventory.pools(node):
            if pool.id[0] != names.DRIVER:
                continue
            if pool.trouble:
                rows.append(_unusable(objects.name(node), pool))
                continue
            left = available_counters(pool, taken)
            here = [one for one in pool.devices if one.here and one.id not in shown]
            shown |= {one.id for one in here if not one.selection.node_name}
            rows += [
                _device(one.selection.node_name or None, one, taken, left, holders.get(one.id, ()))
                for one in here
            ]
    return rows


def _taken(cluster: Sequence[Object]) -> tuple[Usage, dict[Any, list[str]]]:
    """What claims have and what is held for gangs, and by device the names of those that do."""
    taken = Usage()
    holders: dict[Any, list[str]] = {}
    claims = [one for one in cluster if one.get("kind") == "ResourceClaim"]
    allocated = {objects.key(one): Allocation.of_claim(one) for one in sorted(claims, key=objects.key)}
    for hold in (one for one in cluster if one.get("kind") == HOLD):
        allocated |= {name: seat.allocation for name, seat in held_seats(hold).items()}
    for name, allocation in allocated.items():
        if allocation is None:
            continue
        taken.add(allocation.results, holder=name, namespace="")
        for device in dict.fromkeys(one.device for one in allocation.results if not one.admin_access):
            holders.setdefault(device, []).append(name)
    return taken, holders


def _device(
    node: str | None,
    one: PublishedDevice,
    taken: Usage,
    left: Mapping[tuple[str, str], Any],
    holders: Sequence[str],
) -> Object:
    shown = {field: one.plain.get(attribute) for field, attribute in _ATTRIBUTES.items()}
    return {
        "node": node,
        "pool": one.id.pool,
        "name": one.id.device,
        **shown,
        "model": shown["model"] or shown["profile"],
        "state": _state(one, taken, left),
        "capacity": _capacity(one, taken),
        "holders": list(holders),
        "taints": [str(taint) for taint in one.taints],
        "reason": None,
    }


def _unusable(node: str, pool: Pool) -> Object:
    return {
        "node": node,
        "pool": pool.id[1],
        **dict.fromkeys(("name", *_ATTRIBUTES)),
        "capacity": {},
        "holders": [],
        "taints": [],
        "state": "Unusable",
        "reason": pool.trouble,
    }


def _state(one: PublishedDevice, taken: Usage, left: Mapping[tuple[str, str], Any]) -> str:
    if taken.of(one.id).holder:
        return "Taken"
    if taken.in_use(one.id):
        rest = _capacity(one, taken).values()
        return "Taken" if any(entry["free"] == "0" for entry in rest) else "Shared"
    if one.taints:
        return "Tainted"
    wanted = ((left.get(name), amount) for name, amount in one.device.counters.items())
    return "Blocked" if any(rest is not None and rest < amount for rest, amount in wanted) else "Free"


def _capacity(one: PublishedDevice, taken: Usage) -> dict[str, dict[str, str]]:
    """By name without domain: all of it, and what is free."""
    use = taken.of(one.id)
    return {
        name.rpartition("/")[2]: {
            "total": canonical(entry.value),
            "free": canonical(
                _ZERO if use.holder else max(entry.value - use.consumed.get(name, _ZERO), _ZERO)
            ),
        }
        for name, entry in sorted(one.device.capacity.items())
    }

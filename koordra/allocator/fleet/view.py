"""The cluster's own objects as the fleet sees them: nodes with their devices as kinds and states, claims as requests.

A node's GPUs and NICs are those its pools publish, in that order; its kind is the GPUs' model and the shape that their published
places make. A MIG slice is a part of its card (by memory), a VF one of its port's functions. What is free follows from what the
allocated claims hold (`Taken`), from taints that keep everybody away, and from the pods' requests.

The view is for ranking: it may be coarser than the search (selectors, constraints and counters are the search's business), never
the last word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from koordra.allocator.fleet.states import FULL, WHOLE, Kind, Request, Spread, State
from koordra.allocator.inventory import Inventory, Offered, Pool, PoolID, Taken
from koordra.allocator.predicates import requests_of
from koordra.allocator.requests import AskedClaim, Wanted
from koordra.allocator.score import COMPACT
from koordra.api import names, objects
from koordra.api.devices import DeviceID
from koordra.quantity import parse
from koordra.topology.shapes import TABULATED, Shape, shape_of_devices

_PLENTY: Final = 1 << 30
_MEBI: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """`parts` says for every device which GPU (or NIC) it takes from, and how many thousandths (or percent) at most."""

    name: str
    kind: Kind
    gpus: tuple[DeviceID, ...]
    nics: tuple[DeviceID, ...]
    memory: Decimal
    parts: Mapping[DeviceID, tuple[bool, int, int]]
    capacity: Mapping[DeviceID, Mapping[str, Decimal]]
    unusable: frozenset[DeviceID]
    pools: frozenset[PoolID]
    cpu: int
    host_memory: int

    def state(self, kind: int, taken: Taken, load: Mapping[str, Decimal]) -> State:
        """What is free, given what claims and pods hold."""
        gpus, nics = [WHOLE] * len(self.gpus), [FULL] * len(self.nics)
        used_parts = self.parts if self.unusable or not self.pools.isdisjoint(taken.pools) else {}
        for device, (is_gpu, position, most) in used_parts.items():
            used = self._used(device, most, taken)
            if used:
                free = gpus if is_gpu else nics
                free[position] = max(0, free[position] - used)
        return State(
            kind,
            self.cpu - _milli(load.get("cpu", Decimal(0))),
            self.host_memory - _mebi(load.get("memory", Decimal(0))),
            tuple(gpus),
            tuple(nics),
        )

    def used(self, device: DeviceID, taken: Taken) -> int:
        """Thousandths of the GPU, or percent of the NIC, that is taken of the device."""
        return self._used(device, self.parts[device][2], taken)

    def _used(self, device: DeviceID, most: int, taken: Taken) -> int:
        if device in self.unusable or device in taken.dedicated:
            return most
        amounts = taken.consumed.get(device)
        if not amounts:
            return most if device in taken.shares else 0
        capacity = self.capacity[device]
        parts = [
            amount / capacity[name]
            for name, amount in amounts.items()
            if capacity.get(name) and name.rpartition("/")[2] != names.CAPACITY_SLOTS
        ]
        return min(most, -int(-max(parts, default=Decimal(1)) * most // 1))


def nodes_of(nodes: Mapping[str, Mapping[str, Any]], inventory: Inventory) -> list[NodeDevices]:
    """The nodes by name, with their devices."""
    return [node_devices(name, nodes[name], inventory) for name in sorted(nodes)]


def node_devices(name: str, node: Mapping[str, Any], inventory: Inventory) -> NodeDevices:
    allocatable = objects.status_of(node).get("allocatable") or {}
    return replace(
        _of_pools(tuple(inventory.pools(node))),
        name=name,
        cpu=_milli(parse(allocatable["cpu"])) if "cpu" in allocatable else _PLENTY,
        host_memory=_mebi(parse(allocatable["memory"])) if "memory" in allocatable else _PLENTY,
    )


@lru_cache(maxsize=1 << 15)
def _of_pools(pools: tuple[Pool, ...]) -> NodeDevices:
    """All but the node's own name and size. Pools are the inventory's, which makes new ones when something changes."""
    offered = [one for pool in pools if not pool.trouble for one in pool.devices if one.here]
    of_type: dict[str, list[Offered]] = {}
    for one in offered:
        of_type.setdefault(str(one.plain.get(names.ATTR_TYPE)), []).append(one)
    gpus = of_type.get(names.TYPE_GPU, []) or _cards(of_type.get(names.TYPE_MIG, []))
    nics = of_type.get(names.TYPE_NIC, []) or _cards(of_type.get(names.TYPE_VF, []))
    shape = _shape(tuple(map(_place, gpus)), tuple(map(_place, nics)))
    known = max(shape.gpus, shape.nics) <= 2 * TABULATED
    return NodeDevices(
        name="",
        kind=Kind(
            model=str(gpus[0].plain.get(names.ATTR_MODEL, "")) if gpus else "",
            gpus=len(gpus),
            shape=shape if known else None,
            spread=_spread(gpus) if known else (),
        ),
        gpus=tuple(one.id for one in gpus),
        nics=tuple(one.id for one in nics) if known else (),
        memory=_memory(gpus),
        parts=_parts(of_type, gpus, nics if known else []),
        capacity={
            one.id: {key: entry.value for key, entry in one.device.capacity.items()} for one in offered
        },
        unusable=frozenset(one.id for one in offered if one.taints),
        pools=frozenset(pool.id for pool in pools),
        cpu=_PLENTY,
        host_memory=_PLENTY,
    )


def _parts(
    of_type: Mapping[str, Sequence[Offered]], gpus: Sequence[Offered], nics: Sequence[Offered]
) -> dict[DeviceID, tuple[bool, int, int]]:
    parts: dict[DeviceID, tuple[bool, int, int]] = {}
    for is_gpu, cards, most in ((True, gpus, WHOLE), (False, nics, FULL)):
        position_of = {_card_of(one): position for position, one in enumerate(cards)}
        parts |= {one.id: (is_gpu, position, most) for position, one in enumerate(cards)}
        slices = of_type.get(names.TYPE_MIG if is_gpu else names.TYPE_VF, ())
        siblings = Counter(map(_card_of, slices))
        for one in slices:
            position = position_of.get(_card_of(one), -1)
            if position >= 0:
                parts[one.id] = (is_gpu, position, max(1, most // siblings[_card_of(one)]))
    return parts


def request_of(
    asked: Sequence[AskedClaim], pods: Sequence[Mapping[str, Any]], memory: Decimal
) -> Request | None:
    """What a claim group asks for, by its first alternatives; None where counting devices does not describe it.

    `memory` is the usual memory of a GPU, against which an amount becomes a share.
    """
    gpus, milli, nics, percent = 0, 0, 0, 0
    for wanted in (request.alternatives[0] for claim in asked for request in claim.requests):
        if wanted.takes_all or wanted.spec.admin_access:
            return None
        name = wanted.spec.device_class
        if name in {names.CLASS_GPU, names.CLASS_MIG}:
            gpus += wanted.spec.count
            milli = max(milli, _share(wanted, memory))
        elif name in {names.CLASS_NIC, names.CLASS_VF}:
            nics += wanted.spec.count
            percent = max(percent, _percent(wanted))
        else:
            return None
    if gpus > 1:
        # Several shares are as hard to place as several GPUs, and rare.
        milli = WHOLE
    needed: dict[str, Decimal] = {}
    for pod in pods:
        for resource, amount in requests_of(pod).items():
            needed[resource] = needed.get(resource, Decimal(0)) + amount
    return Request(
        cpu=_milli(needed.get("cpu", Decimal(0))),
        memory=_mebi(needed.get("memory", Decimal(0))),
        gpus=gpus,
        milli=milli,
        nics=nics,
        percent=percent,
    )


def counted(asked: Sequence[AskedClaim]) -> bool:
    """Whether counts say all that is asked: no alternatives, of several GPUs every one whole, NICs that ask alike."""
    requests = [request for claim in asked for request in claim.requests]
    if any(len(request.alternatives) > 1 for request in requests):
        return False
    wanted = [request.alternatives[0] for request in requests]
    nics = [one for one in wanted if one.spec.device_class in {names.CLASS_NIC, names.CLASS_VF}]
    if len({_percent(one) for one in nics}) > 1:
        return False
    gpus = [one for one in wanted if one not in nics]
    return sum(one.spec.count for one in gpus) <= 1 or all(map(_takes_cards, gpus))


def _takes_cards(wanted: Wanted) -> bool:
    """Whether the request takes whole cards, whatever they are."""
    amounts = {name.rpartition("/")[2] for name in wanted.spec.capacity or {}}
    shared = names.CAPACITY_MEMORY in amounts or names.CAPACITY_MEMORY in wanted.percent
    return wanted.spec.device_class == names.CLASS_GPU and (bool(wanted.whole) or not shared)


def _share(wanted: Wanted, memory: Decimal) -> int:
    amounts = {name.rpartition("/")[2]: amount for name, amount in (wanted.spec.capacity or {}).items()}
    parts = [Decimal(part) / 100 for name, part in wanted.percent.items() if name == names.CAPACITY_MEMORY]
    if names.CAPACITY_MEMORY in amounts and memory:
        parts.append(amounts[names.CAPACITY_MEMORY] / memory)
    if not parts or wanted.whole:
        return WHOLE
    if names.CAPACITY_CORES in amounts:
        parts.append(amounts[names.CAPACITY_CORES] / 100)
    return max(1, min(WHOLE, -int(-max(parts) * WHOLE // 1)))


def _percent(wanted: Wanted) -> int:
    for name, amount in (wanted.spec.capacity or {}).items():
        if name.rpartition("/")[2] == names.CAPACITY_SHARE:
            return max(1, min(FULL, int(amount)))
    return FULL


def _cards(slices: Sequence[Offered]) -> list[Offered]:
    """One of each card of which only parts are published."""
    return list({_card_of(one): one for one in reversed(slices)}.values())[::-1]


def _card_of(one: Offered) -> str:
    """The card's PCI address; of a VF its parent's name."""
    if one.plain.get(names.ATTR_TYPE) == names.TYPE_VF:
        return str(one.plain.get(names.ATTR_PARENT))
    if one.plain.get(names.ATTR_TYPE) == names.TYPE_NIC:
        return one.id.device
    return str(one.plain.get(names.STANDARD_PCI_BUS_ID, one.id.device))


_IDENTITY: Final = frozenset(
    {names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV, names.ATTR_PRODUCT_NAME, names.ATTR_TYPE}
)
"""Attributes that say who a device is, not where."""

_Place = tuple[tuple[str, Any], ...]


def _place(one: Offered) -> _Place:
    return tuple(sorted((name, value) for name, value in one.plain.items() if name not in _IDENTITY))


@lru_cache(maxsize=1024)
def _shape(gpus: tuple[_Place, ...], nics: tuple[_Place, ...]) -> Shape:
    """Nodes of one sort have devices at the same places: their shape is made once."""
    return shape_of_devices([dict(place) for place in gpus], [dict(place) for place in nics])


def _spread(gpus: Sequence[Offered]) -> Spread:
    """The groups of the cards by what the cost counts as spread; a card that does not say is in no group."""
    found = []
    for attribute, weight in COMPACT:
        groups: dict[Any, int] = {}
        for at, one in enumerate(gpus):
            value = one.plain.get(attribute)
            if value is not None:
                groups[value] = groups.get(value, 0) | 1 << at
        found.append((weight, tuple(groups.values())))
    return tuple(found)


def _memory(gpus: Sequence[Offered]) -> Decimal:
    for one in gpus:
        for name, entry in one.device.capacity.items():
            if name.rpartition("/")[2] == names.CAPACITY_MEMORY:
                return entry.value
    return Decimal(0)


def _milli(amount: Decimal) -> int:
    return -int(-amount * 1000 // 1)


def _mebi(amount: Decimal) -> int:
    return int(amount // _MEBI)

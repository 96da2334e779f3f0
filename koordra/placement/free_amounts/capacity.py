"""What of a node's devices is allocated, and what is free: figures for people, by type and model.

Of every device that the node publishes and that is koordra's to give out:

    free          nobody has anything of it
    shared        somebody has a part, and somebody else may have one
    allocated     all of it is taken, or all of its slots: what is left of its amounts is nobody's to have
    blocked       nobody has it, and nobody can: another device of its card is in use (MIG, VFs)
    unavailable   nobody has it, and a taint keeps everybody away

Amounts are exact: whole numbers, of a billionth (`capacity.nano`). What can be placed at the most is told by
counting alone: how many whole cards lie in one scope, with NICs that are free, says nothing about the pods'
CPU and memory, nor about selectors. Of MIG devices several may be free by themselves and exclude each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple

from koordra.allocator.devices.capacity import amount_of, consumed_of, measured
from koordra.allocator.devices.inventory import UNUSED, DeviceUse, Usage, available_counters
from koordra.allocator.devices.mig_room import card_and_places, most_at_once
from koordra.allocator.devices.pools import NIC, Pool, PublishedDevice
from koordra.api import names
from koordra.api.opaque.parameters import Scope
from koordra.topology.levels import scope_key

FREE: Final = "free"
SHARED: Final = "shared"
ALLOCATED: Final = "allocated"
BLOCKED: Final = "blocked"
UNAVAILABLE: Final = "unavailable"
DEVICE_STATES: Final = (FREE, SHARED, ALLOCATED, BLOCKED, UNAVAILABLE)
AMOUNT_STATES: Final = (FREE, ALLOCATED, UNAVAILABLE)

TYPES: Final = (names.TYPE_GPU, names.TYPE_MIG, names.TYPE_NIC, names.TYPE_VF)

NO_NIC: Final = "none"
ONE_NIC: Final = "one"
NIC_EACH: Final = "each"
BESIDE: Final = (NO_NIC, ONE_NIC, NIC_EACH)
"""Free NICs that the cards have in their scope: it does not matter, one at least, one for each card."""


class Measure(StrEnum):
    """What is summed, and by which labels."""

    DEVICES = "devices"
    """type, model, state"""
    SHARES = "shares"
    """type, model"""
    MEMORY = "memory"
    """type, model, state; bytes"""
    CORES = "cores"
    """type, model, state; percent of a card"""
    BANDWIDTH = "bandwidth"
    """model, state; bits a second"""
    MIG = "mig"
    """model, profile, state"""


class Most(StrEnum):
    """The most that one node has."""

    SHARE = "share"
    """model; of a card, as `nano` of its measuring capacities"""
    MEMORY = "memory"
    """model; bytes of one card"""
    CARDS = "cards"
    """model, scope, beside"""


Amounts = Mapping[tuple[str, ...], int]
"""By measure and the values of its labels."""


class NodeCapacity(NamedTuple):
    amounts: Amounts
    most: Amounts

    def withheld(self) -> NodeCapacity:
        """Of a node that takes no pods: what is free there is unavailable."""
        found = Counter[tuple[str, ...]]()
        for key, amount in self.amounts.items():
            found[key] += 0
            found[(*key[:-1], UNAVAILABLE) if key[-1] == FREE else key] += amount
        return NodeCapacity(found, dict.fromkeys(self.most, 0))


_UNITS: Final = 10**9
_NONE: Final = Decimal(0)
_CAPACITIES: Final[Mapping[str, str]] = {
    Measure.MEMORY: names.CAPACITY_MEMORY,
    Measure.CORES: names.CAPACITY_CORES,
    Measure.BANDWIDTH: names.CAPACITY_BANDWIDTH,
}


def node_capacity(pools: Sequence[Pool], taken: Usage) -> NodeCapacity:
    """Of the pools of one node. Those with trouble give out nothing, and are left out."""
    amounts = Counter[tuple[str, ...]]()
    cut: dict[tuple[str, str, str], list[tuple[int, int, PublishedDevice]]] = {}
    states: list[tuple[PublishedDevice, str]] = []
    for pool in pools:
        if pool.trouble or pool.id[0] != names.DRIVER:
            continue
        left = available_counters(pool, taken) if pool.counters else {}
        in_use = taken.of_pool.get(pool.id, {})
        for one in pool.devices:
            if one.here and one.type in TYPES:
                use = in_use.get(one.id, UNUSED)
                state = _state(one, use, left)
                states.append((one, state))
                _count(amounts, one, use, state)
                if one.type == names.TYPE_MIG and state == FREE and (place := card_and_places(one)):
                    card, start, end = place
                    cut.setdefault((pool.id[1], card, _model(one)), []).append((start, end, one))
    for (_, _, model), parts in cut.items():
        for measure in (Measure.MEMORY, Measure.CORES):
            room = most_at_once((start, end, _amount(one, _CAPACITIES[measure])) for start, end, one in parts)
            amounts[measure, names.TYPE_MIG, model, FREE] += room
    return NodeCapacity(amounts, _most(states, taken))


def _state(one: PublishedDevice, use: DeviceUse, left: Mapping[tuple[str, str], Decimal]) -> str:
    if use.holder or use.shares:
        return ALLOCATED if _is_full(one, use) else SHARED
    if _is_tainted(one):
        return UNAVAILABLE
    if any(left.get(counter, _NONE) < amount for counter, amount in one.device.counters.items()):
        return BLOCKED
    return FREE


def _is_tainted(one: PublishedDevice) -> bool:
    return any(taint.keeps_out for taint in one.taints)


def _is_full(one: PublishedDevice, use: DeviceUse) -> bool:
    if use.holder or not one.device.allow_multiple_allocations or not use.consumed:
        return True
    part = measured(use.consumed, one.device)
    slots = _amount(one, names.CAPACITY_SLOTS)
    return (part is not None and part >= 1) or 0 < slots <= _consumed(use, names.CAPACITY_SLOTS)


def _count(amounts: Counter[tuple[str, ...]], one: PublishedDevice, use: DeviceUse, state: str) -> None:
    model = _model(one)
    for each in DEVICE_STATES:
        amounts[Measure.DEVICES, one.type, model, each] += each == state
    if one.type in (names.TYPE_GPU, names.TYPE_NIC):
        amounts[Measure.SHARES, one.type, model] += use.shares
    if one.type in names.GPU_TYPES:
        _add(amounts, (Measure.MEMORY, one.type, model), one, use, state)
        _add(amounts, (Measure.CORES, one.type, model), one, use, state)
    if one.type == names.TYPE_NIC:
        _add(amounts, (Measure.BANDWIDTH, model), one, use, state)
    if one.type == names.TYPE_MIG:
        for each in DEVICE_STATES:
            profile = str(one.plain.get(names.ATTR_PROFILE, ""))
            amounts[Measure.MIG, model, profile, each] += each == state


def _add(
    amounts: Counter[tuple[str, ...]], key: tuple[str, ...], one: PublishedDevice, use: DeviceUse, state: str
) -> None:
    """What is allocated of the capacity, and what is left of it where somebody may have that. MIG devices
    overlap, so that only what is allocated of them adds up; what is free is counted by card."""
    capacity = _CAPACITIES[key[0]]
    has = _amount(one, capacity)
    used = has if state == ALLOCATED else min(has, _used(one, use, capacity))
    for each in AMOUNT_STATES:
        amounts[(*key, each)] += 0
    amounts[(*key, ALLOCATED)] += used
    if one.type != names.TYPE_MIG:
        amounts[(*key, UNAVAILABLE if _is_tainted(one) or state == BLOCKED else FREE)] += has - used


def _used(one: PublishedDevice, use: DeviceUse, capacity: str) -> int:
    """Of a NIC its bandwidth is used as much as its share is: a claim may name either."""
    if use.holder:
        return _amount(one, capacity)
    if capacity != names.CAPACITY_BANDWIDTH or not use.consumed:
        return _consumed(use, capacity)
    part = measured(use.consumed, one.device)
    return 0 if part is None else int(_amount(one, capacity) * part)


def _most(states: Iterable[tuple[PublishedDevice, str]], taken: Usage) -> Amounts:
    found: dict[tuple[str, ...], int] = {}
    cards: dict[str, list[PublishedDevice]] = {}
    nics: list[PublishedDevice] = []
    for one, state in states:
        if one.kind == NIC and state == FREE:
            nics.append(one)
        if one.type != names.TYPE_GPU:
            continue
        model = _model(one)
        cards.setdefault(model, []).extend([one] if state == FREE else [])
        share, memory = (
            _room(one, taken.of(one.id)) if state in (FREE, SHARED) and not _is_tainted(one) else (0, 0)
        )
        for key, room in (((Most.SHARE, model), share), ((Most.MEMORY, model), memory)):
            found[key] = max(found.get(key, 0), room)
    for model, free in cards.items():
        for scope in Scope:
            for beside, number in _together(free, nics, scope).items():
                found[Most.CARDS, model, scope.value, beside] = number
    return found


def _room(one: PublishedDevice, use: DeviceUse) -> tuple[int, int]:
    """What is left of the card for one more: as a part of all its measuring capacities, and bytes."""
    part = measured(use.consumed, one.device) or 0
    has = _amount(one, names.CAPACITY_MEMORY)
    return int((1 - part) * _UNITS), max(0, has - _consumed(use, names.CAPACITY_MEMORY))


def _together(
    cards: Sequence[PublishedDevice], nics: Sequence[PublishedDevice], scope: Scope
) -> dict[str, int]:
    """The most whole cards within one scope, by what NICs they have there. The functions of one port are as
    many NICs as can be had of it at once."""
    of_key = Counter(key for one in cards if (key := scope_key(one.plain, scope)) is not None)
    ports: dict[str, Counter[str]] = {}
    for one in nics:
        key = scope_key(one.plain, scope)
        if key is not None:
            port = str(one.plain.get(names.ATTR_PARENT) or one.id.device)
            ports.setdefault(key, Counter())[port] += one.type == names.TYPE_VF
    beside = {key: sum(max(1, functions) for functions in of.values()) for key, of in ports.items()}
    lone = 1 if cards else 0  # a device that does not know its scope is in it alone
    return {
        NO_NIC: max(of_key.values(), default=lone),
        ONE_NIC: max([number for key, number in of_key.items() if beside.get(key)], default=0),
        NIC_EACH: max([min(number, beside.get(key, 0)) for key, number in of_key.items()], default=0),
    }


def _model(one: PublishedDevice) -> str:
    return str(one.plain.get(names.ATTR_MODEL, ""))


def _amount(one: PublishedDevice, capacity: str) -> int:
    return amount_of(one.device, capacity)


def _consumed(use: DeviceUse, capacity: str) -> int:
    return consumed_of(use.consumed, capacity)

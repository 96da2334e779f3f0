"""How full a node is by the operator's weights: the term of the objective by which nodes are packed or
spread, in the words of kube-scheduler's NodeResourcesFit (`scoringStrategy`: a type, resources with weights).

    part of a resource    min(1, (what pods or claims have + what the group takes) / what the node has),
                          in thousandths, rounded down; a resource that the node has not is left out
    full                  the weighted mean of the parts
    cost                  MostAllocated: 1000 - full; LeastAllocated: full; 1000 on a node without any

It comes after what the claim pays and PreferNoSchedule taints, and before what the cluster pays, so that it
decides among nodes that are worth the same to the claim. A claim's `PlacementPolicy.node` stands above the
operator's type, and FragmentationAware says that it does not go by this at all; where the operator has said
nothing, Binpack and Spread are about the memory of cards.

CPU, memory and extended resources are what the node's `allocatable` says and what its pods request.
`koordra.io/gpu-memory` and `koordra.io/gpu-cores` are of the cards, and what claims have of them: exact once
devices are chosen; before the search by the least, or the most, that the group can take there, so that no
placement costs less than `least`.

A gang that is placed as a whole pays for all nodes that get members of it, behind everything that joins them
(`gang/topology/packing`), where all its members go by the same weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from koordra.allocator.devices.capacity import amount_of, consumed_of, nano
from koordra.allocator.devices.inventory import DeviceUse, Usage
from koordra.allocator.devices.mig_room import card_and_places, most_at_once
from koordra.allocator.devices.pools import Pool, PublishedDevice, kept_with_pools
from koordra.allocator.predicates import Amounts
from koordra.allocator.search.solution import Placed
from koordra.api import names, objects
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import NodePolicy
from koordra.errors import InvalidInput, InvalidQuantity
from koordra.placement.index import NodeInfo
from koordra.quantity import parse

WHOLE: Final = 1000
OF_CARDS: Final[Mapping[str, str]] = {
    "koordra.io/gpu-memory": names.CAPACITY_MEMORY,
    "koordra.io/gpu-cores": names.CAPACITY_CORES,
}
"""Resources that are the sum of a capacity over the node's cards."""
MOST_WEIGHT: Final = 100
MOST_RESOURCES: Final = 16
_FIELD: Final = "--scoring-strategy"
_FORM: Final = "write TYPE:resource=weight,..., as MostAllocated:koordra.io/gpu-memory=3,cpu=1,memory=1"
_LONGEST: Final = 253 + 1 + 63
_NAME: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

Room = tuple[int, int]
"""Of one resource of a node: what is taken, and what there is, in `nano`."""
Range = tuple[int, int]
"""The least and the most that a group can take, in `nano`."""


class ScoringType(StrEnum):
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


_TYPES: Final = {
    NodePolicy.BINPACK: ScoringType.MOST_ALLOCATED,
    NodePolicy.SPREAD: ScoringType.LEAST_ALLOCATED,
}


@dataclass(frozen=True, slots=True)
class ScoringStrategy:
    """`resources`: names with their weights, 1 to MOST_WEIGHT."""

    type: ScoringType
    resources: tuple[tuple[str, int], ...]

    def cost(self, rooms: Sequence[Room], further: Sequence[int]) -> int:
        """0 to WHOLE, of a node where so much more of each resource is taken."""
        weights = sum_ = 0
        for (_, weight), (taken, there), more in zip(self.resources, rooms, further, strict=True):
            if there > 0:
                weights += weight
                sum_ += weight * (WHOLE * min(taken + more, there) // there)
        if not weights:
            return WHOLE
        full = sum_ // weights
        return WHOLE - full if self.type is ScoringType.MOST_ALLOCATED else full


_CARDS_ALONE: Final = ScoringStrategy(ScoringType.MOST_ALLOCATED, (("koordra.io/gpu-memory", 1),))
"""By which claims go that ask for packed or spread nodes where the operator has said no weights."""


def strategy_under(written: ScoringStrategy | None, asked: NodePolicy | None) -> ScoringStrategy | None:
    """What the operator wrote, with the type that a claim asks for; None where neither says anything, or the
    claim wants none of this."""
    if asked is None:
        return written
    if asked is NodePolicy.FRAGMENTATION_AWARE:
        return None
    return replace(written or _CARDS_ALONE, type=_TYPES[asked])


def written_strategy(text: str) -> ScoringStrategy:
    """What the operator wrote: `MostAllocated:cpu=1,koordra.io/gpu-memory=3`. Raises InvalidInput."""
    word, _, rest = text.partition(":")
    if word.strip() not in {one.value for one in ScoringType}:
        kinds = " or ".join(one.value for one in ScoringType)
        raise _refused(f"{word.strip()[:80]!r} is no type; a type is {kinds}")
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, rest.split(","))):
        name, _, weight = map(str.strip, entry.partition("="))
        if len(name) > _LONGEST or not _NAME.fullmatch(name):
            raise _refused(f"{name[:80]!r} is no name of a resource")
        if name.startswith(names.DOMAIN) and name not in OF_CARDS:
            raise _refused(f"{name} is not counted; of koordra's these are: {', '.join(OF_CARDS)}")
        if name in found:
            raise _refused(f"{name} has two weights")
        digits = weight or "1"
        if not (
            digits.isascii() and digits.isdecimal() and len(digits) < 4 and 1 <= int(digits) <= MOST_WEIGHT
        ):
            raise _refused(f"the weight of {name} is {weight[:20]!r}, and not 1 to {MOST_WEIGHT}")
        found[name] = int(digits)
    if not found:
        raise _refused("no resource has a weight")
    if len(found) > MOST_RESOURCES:
        raise _refused(f"{len(found)} resources are more than {MOST_RESOURCES}")
    return ScoringStrategy(ScoringType(word.strip()), tuple(found.items()))


def _refused(problem: str) -> InvalidInput:
    return InvalidInput(problem, field=_FIELD, remedy=_FORM)


class NodeScore:
    """The term for one request class. `requests`: what its pods ask for together; `takes`: the range of what
    the group can take of a capacity of a node's cards."""

    def __init__(
        self, strategy: ScoringStrategy, requests: Amounts, takes: Callable[[NodeInfo, str], Range]
    ) -> None:
        self.strategy = strategy
        self._takes = takes
        self._most = strategy.type is ScoringType.MOST_ALLOCATED
        self._requests = [nano(requests[name]) if name in requests else 0 for name, _ in strategy.resources]

    def least(self, info: NodeInfo, *, alone: bool) -> int:
        """No placement of the group on the node costs less. `alone`: what the group can take of nodes that
        are of one class is not the same."""
        further = [amounts[self._most] for amounts in self.takes(info, alone=alone)]
        return self.strategy.cost(self.rooms(info, info.load), further)

    def takes(self, info: NodeInfo, *, alone: bool) -> list[Range]:
        """What the group takes of each resource."""
        return [
            (asked, asked)
            if name not in OF_CARDS
            else (0, there)
            if alone
            else self._takes(info, OF_CARDS[name])
            for (name, _), asked, (_, there) in zip(
                self.strategy.resources, self._requests, self.rooms(info, info.load), strict=True
            )
        ]

    def cost(self, info: NodeInfo, placed: Sequence[Placed], load: Amounts) -> int:
        """Of a placement: these devices of the node. `load`: what other pods ask for there."""
        return self.strategy.cost(*self._with(info, placed, load))

    def parts(self, info: NodeInfo, placed: Sequence[Placed], load: Amounts) -> dict[str, int]:
        """How full the node is with the group, in thousandths, by resource that it has."""
        rooms, further = self._with(info, placed, load)
        return {
            name: WHOLE * min(taken + more, there) // there
            for (name, _), (taken, there), more in zip(self.strategy.resources, rooms, further, strict=True)
            if there > 0
        }

    def _with(
        self, info: NodeInfo, placed: Sequence[Placed], load: Amounts
    ) -> tuple[Sequence[Room], list[int]]:
        further = [
            _taken_by(info, placed, OF_CARDS[name]) if name in OF_CARDS else asked
            for (name, _), asked in zip(self.strategy.resources, self._requests, strict=True)
        ]
        return self.rooms(info, load), further

    def rooms(self, info: NodeInfo, load: Amounts) -> Sequence[Room]:
        """What is taken, and what there is, of each resource where other pods ask for that."""
        state = info.state
        if state is None or load is not info.load:
            return _rooms_of(self.strategy, info, load)
        if state.rooms is None:
            state.rooms = _rooms_of(self.strategy, info, info.load)
        return state.rooms


def cost_with_members(
    members: Sequence[tuple[NodeScore, int]],
    info: NodeInfo,
    rooms: Sequence[Room],
    *,
    alone: bool,
    placed: Callable[[], Sequence[Placed]],
) -> int:
    """Of a node that gets so many groups of each class, all of one strategy. `alone`: what a group can take
    of nodes that are of one class is not the same. `placed`: their devices, where amounts do not tell."""
    (strategy, *_) = [score.strategy for score, _ in members]
    takes = [[(number, amounts) for amounts in score.takes(info, alone=alone)] for score, number in members]
    further = []
    for (name, _), ranges in zip(strategy.resources, zip(*takes, strict=True), strict=True):
        least, most = (sum([number * amounts[at] for number, amounts in ranges]) for at in (0, 1))
        further.append(least if least == most else _taken_by(info, placed(), OF_CARDS[name]))
    return strategy.cost(rooms, further)


def _rooms_of(strategy: ScoringStrategy, info: NodeInfo, load: Amounts) -> Sequence[Room]:
    allocatable = objects.status_of(info.node).get("allocatable") or {}
    return tuple(
        [
            _of_cards(info.pools, info.index.taken, OF_CARDS[name])
            if name in OF_CARDS
            else (nano(load[name]) if name in load else 0, _read(allocatable.get(name)))
            for name, _ in strategy.resources
        ]
    )


def _read(amount: object) -> int:
    """What cannot be read is not there, as for the predicates."""
    try:
        return 0 if amount is None else nano(parse(amount))
    except InvalidQuantity:
        return 0


class _Cards(NamedTuple):
    """By capacity: what each device has, and all cards together."""

    of_device: Mapping[DeviceID, Mapping[str, int]]
    shared: frozenset[DeviceID]
    whole: Mapping[str, int]


def _of_cards(pools: Sequence[Pool], taken: Usage, capacity: str) -> Room:
    cards = _cards(pools)
    used = sum(
        [
            _used(cards, device, use, capacity)
            for pool in pools
            for device, use in taken.of_pool.get(pool.id, {}).items()
            if device in cards.of_device
        ]
    )
    return used, cards.whole[capacity]


def _used(cards: _Cards, device: DeviceID, use: DeviceUse, capacity: str) -> int:
    has = cards.of_device[device].get(capacity, 0)
    if use.holder or (use.shares and device not in cards.shared):
        return has
    return min(has, consumed_of(use.consumed, capacity))


def _taken_by(info: NodeInfo, placed: Sequence[Placed], capacity: str) -> int:
    cards, devices, found = _cards(info.pools), list[PublishedDevice](), 0
    for pool in info.pools:
        devices += pool.devices
    for one in placed:
        has = cards.of_device.get(devices[one.device].id)
        if has is None or one.wanted.spec.admin_access:
            continue
        found += consumed_of(one.demand.amounts, capacity) if one.shared else has.get(capacity, 0)
    return found


@kept_with_pools
def _cards(pools: Sequence[Pool]) -> _Cards:
    """Of a card that is given out as a whole its amounts; of one that is only cut the most that its parts
    come to at once."""
    offered = [
        (pool.id, one)
        for pool in pools
        if not pool.trouble and pool.id[0] == names.DRIVER
        for one in pool.devices
        if one.here and one.type in names.GPU_TYPES
    ]
    of_device = {
        one.id: {each: amount_of(one.device, each) for each in OF_CARDS.values()} for _, one in offered
    }
    entire = {_card(one): of_device[one.id] for _, one in offered if one.type == names.TYPE_GPU}
    parts: dict[str, list[PublishedDevice]] = {}
    for _, one in offered:
        if _card(one) not in entire:
            parts.setdefault(_card(one), []).append(one)
    whole = {
        each: sum(amounts[each] for amounts in entire.values())
        + sum(_at_once([(one, of_device[one.id][each]) for one in own]) for own in parts.values())
        for each in OF_CARDS.values()
    }
    shared = frozenset(one.id for _, one in offered if one.device.allow_multiple_allocations)
    return _Cards(of_device, shared, whole)


def _at_once(parts: Sequence[tuple[PublishedDevice, int]]) -> int:
    """Of a card's parts; those that do not say where they lie do not overlap (static instances)."""
    places = [(card_and_places(one), amount) for one, amount in parts]
    lying = most_at_once((place[1], place[2], amount) for place, amount in places if place is not None)
    return lying + sum(amount for place, amount in places if place is None)


def _card(one: PublishedDevice) -> str:
    """Its PCI address; without one the set of counters that it takes of."""
    place = card_and_places(one)
    return str(one.plain.get(names.STANDARD_PCI_BUS_ID) or (place[0] if place else one.id.device))

"""What fits on one node: how many members of each class at the same time, and on which devices.

The word on devices is the allocator's own: the claims of all the members are placed on the node in one complete search
(`placement.Placement`), so two members never want the same device and neither is refused for a bad choice of the other. Nodes of one
kind are asked once:

    devices   what the node publishes and what of it is taken (its likeness)
    room      CPU, memory, pods and the like: how many members they leave room for
    refusals  what the node predicates refuse, class by class

Counts are asked for from small to large. What does not fit is not asked for with more on top, for taking a member away never
makes a placement impossible.

Preferred scopes of several members on one node are not climbed in every order (that is exponential): members of a class are alike,
so it is asked how many of them are on which rung.

A search that runs out of budget is asked once more, one member after the other. What that finds is good; what it does not find is
not known, and `unknown` says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.gang.asked import GangNode, Member
from koordra.allocator.gang.classes import MemberClass
from koordra.allocator.gang.packing import Count, NodeCounts
from koordra.allocator.groups import Group, siblings_in
from koordra.allocator.inventory import NIC, Inventory, Pool, Taken
from koordra.allocator.joint import rungs
from koordra.allocator.likeness import likeness
from koordra.allocator.node_state import NodeState
from koordra.allocator.offer import Offer, share_id
from koordra.allocator.pairing_level import level_of
from koordra.allocator.placement import NodeAnswer, Placement
from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import Cause, Reason
from koordra.allocator.requests import AskedClaim, refuse_bad_selectors, resolve
from koordra.allocator.score import ALTERNATIVE, RUNG, worst_pair
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.api.parameters import Enforcement, PlacementPolicy
from koordra.errors import InvalidManifest, InvalidQuantity
from koordra.quantity import parse
from koordra.topology.levels import Level

BUDGET: Final = 5_000
"""Placements that one node may try for one count."""

RUNG_APART: Final = 1024
ALTERNATIVE_APART: Final = 64
"""What a rung climbed and a step down in a list count in steps apart."""

MOST_CLIMBS: Final = 8
"""Ways to climb that are tried on one node for one count."""

_MOST_COMBINATIONS: Final = 20_000
_MOST_REMEMBERED: Final = 50_000
_MOST_COUNTS: Final = 3_000
"""Counts that are tried on one kind of node (many classes that ask differently)."""
_INVENTORIES: Final = 64
_ALIGNED: Final = int(Level.PXB)
_STEP: Final = 10
_WHOLE: Final = 100

Rails = frozenset[str]
Alike = Sequence[tuple[str, Sequence[Member]]]
"""By what members ask of devices: those members."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's part of an answer: per claim its allocation and level; rails and types of its NICs, and whether it has them
    whole; its steps above PXB."""

    allocations: tuple[Mapping[str, Any], ...]
    levels: tuple[str | None, ...]
    rails: tuple[str, ...]
    apart: int
    first: int
    types: frozenset[str] = frozenset()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """A count that fits: its seats by class, each class's in order of devices. `node` is whose answer it is.

    As it is remembered, seats are by what members ask for (`keys`).
    """

    node: str
    seats: tuple[tuple[Seat, ...], ...]
    apart: int
    spare: int
    rails: Rails
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Remembered:
    """Answers of nodes by what was asked and by the nodes' likeness, kept from gang to gang by who plans often.

    `unknown`: the budget with which an answer was sought in vain. `forget` when DeviceClasses or features change.
    """

    fits: dict[Hashable, Fit | None] = field(default_factory=dict)
    unknown: dict[Hashable, int] = field(default_factory=dict)
    asked: int = 0
    _inventories: dict[int, tuple[int, Inventory, Any]] = field(default_factory=dict)
    _numbered: int = 0

    def forget(self) -> None:
        self.fits.clear()
        self.unknown.clear()

    def begin(self, nodes: int) -> None:
        """Before a gang is looked at: inventories that are long gone are not held for ever. Their numbers are not given again."""
        if len(self._inventories) > 2 * nodes + _INVENTORIES:
            self._inventories.clear()
            self.forget()

    def number(self, inventory: Inventory) -> int:
        """Which inventory it is, as long as its numbers of likenesses mean the same."""
        known = self._inventories.get(id(inventory))
        if known is None or known[2] is not inventory.kinds:
            self._numbered += 1
            known = self._inventories[id(inventory)] = (self._numbered, inventory, inventory.kinds)
        return known[0]


@dataclass(frozen=True, slots=True)
class Kind:
    """`devices` None: no class asks for devices. `room` is what is free of what is asked (None: not judged), `suits` says which
    classes the node's predicates admit."""

    devices: Hashable
    room: tuple[Decimal | None, ...]
    suits: tuple[bool, ...]
    fixed: bool


@dataclass(slots=True)
class Fitting:
    """Asks nodes for one gang. Not thread-safe."""

    classes: Sequence[MemberClass]
    nodes: Mapping[str, GangNode]
    device_classes: Mapping[str, DeviceClass | InvalidManifest]
    features: Features
    policy: PlacementPolicy | None
    memory: Remembered
    budget: int = 1
    unknown: bool = False
    kinds: dict[str, Kind] = field(default_factory=dict)
    example: dict[Kind, str] = field(default_factory=dict)
    refusals: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _asked: dict[tuple[str, int], AskedClaim] = field(default_factory=dict)
    _pools: dict[tuple[str, Rails | None], list[Pool]] = field(default_factory=dict)
    _taken: dict[str, Taken] = field(default_factory=dict)
    _rooms: dict[Hashable, tuple[Decimal | None, ...]] = field(default_factory=dict)
    _resources: list[str] = field(default_factory=list)

    # --- kinds ------------------------------------------------------------------------------------------------------

    def look(self, fixed: frozenset[str]) -> None:
        """The kind of every node."""
        self.memory.begin(len(self.nodes))
        self._resources = sorted(
            {name for one in self.classes for name, amount in one.room.items() if amount}
        )
        most = {
            name: sum((one.room.get(name, Decimal(0)) * len(one.members) for one in self.classes), Decimal(0))
            for name in self._resources
        }
        with_devices = any(one.claims for one in self.classes)
        refused = _Predicates(self.classes)
        for name in sorted(self.nodes):
            node = self.nodes[name]
            self.refusals[name] = refusals = refused.of(name, node)
            kind = Kind(
                devices=self._devices(name, node) if with_devices and not all(refusals) else None,
                room=self._room(node, most),
                suits=tuple(not texts for texts in refusals),
                fixed=name in fixed,
            )
            self.kinds[name] = kind
            self.example.setdefault(kind, name)

    def _room(self, node: GangNode, most: Mapping[str, Decimal]) -> tuple[Decimal | None, ...]:
        """What is free of what is asked, as far as the gang could use it; with one class in whole members."""
        allocatable = objects.status_of(node.node).get("allocatable") or {}
        key = (tuple(allocatable.items()), tuple(node.load.items()))
        found = self._rooms.get(key)
        if found is None:
            free = dict(_parsed(allocatable)) if allocatable else None
            found = self._rooms[key] = tuple(
                None if free is None else self._left(free, node, resource, most[resource])
                for resource in self._resources
            )
        return found

    def _left(self, free: Mapping[str, Decimal], node: GangNode, resource: str, most: Decimal) -> Decimal:
        left = free.get(resource, Decimal(0)) - node.load.get(resource, Decimal(0))
        left = max(Decimal(0), min(left, most))
        if len(self.classes) == 1:
            each = self.classes[0].room[resource]
            left = left // each * each
        return left

    def _devices(self, name: str, node: GangNode) -> Hashable:
        if node.likeness is not None:
            return ("told", node.likeness, honors_partitions(objects.labels_of(node.node)))
        pools, inventory = self.pools(name), self._inventory(name)
        alike = likeness(inventory, pools, self.taken(name), None)
        if alike is None or any(pool.id[1] != name for pool in pools):
            holders = sorted((objects.key(claim), objects.uid(claim)) for claim in node.holders)
            return ("alone", name, self.memory.number(inventory), tuple(holders))
        called = tuple(offered.id.device for pool in pools for offered in pool.devices)
        return (
            "seen",
            self.memory.number(inventory),
            alike,
            called,
            honors_partitions(objects.labels_of(node.node)),
        )

    # --- answers ----------------------------------------------------------------------------------------------------

    def takes(self, kind: Kind, rails: Rails | None = None) -> NodeCounts:
        """All counts that fit on a node of the kind."""
        name = self.example[kind]
        found: dict[Count, tuple[int, int]] = {}
        zero = (0,) * len(self.classes)
        reached, frontier = {zero}, [zero]
        while frontier:
            following: list[Count] = []
            for base in frontier:
                for at, one in enumerate(self.classes):
                    count = _plus_one(base, at)
                    if count in reached or count[at] > len(one.members) or not kind.suits[at]:
                        continue
                    reached.add(count)
                    if len(reached) > _MOST_COUNTS * self.budget:
                        self.unknown = True
                        continue
                    if not self.roomy(kind, count) or not _all_smaller(count, found, zero):
                        continue
                    fit = self.fit(name, count, rails)
                    if fit is not None:
                        found[count] = (fit.apart, fit.spare)
                        following.append(count)
            frontier = following
        return NodeCounts(found, kind.fixed, max(map(sum, found), default=0))

    def roomy(self, kind: Kind, count: Count) -> bool:
        """Whether CPU, memory and the like suffice."""
        return all(
            left is None
            or sum(number * one.room.get(name, 0) for number, one in zip(count, self.classes, strict=True))
            <= left
            for name, left in zip(self._resources, kind.room, strict=True)
        )

    def fit(self, name: str, count: Count, rails: Rails | None = None) -> Fit | None:
        """The node's answer to a count, by the rails allowed."""
        kind = self.kinds[name]
        if not any(number and one.claims for one, number in zip(self.classes, count, strict=True)):
            seats = tuple((_BARE,) * number for number in count)
            return Fit(name, seats, 0, 0, frozenset())
        fit = self._asked_alike(name, kind, self._alike(count), rails)
        return None if fit is None else self._by_class(fit, count)

    def _alike(self, count: Count) -> Alike:
        """How many members ask the same of devices. Classes may differ in nothing but CPU or in where they are kept off."""
        found: dict[str, list[Member]] = {}
        for one, number in zip(self.classes, count, strict=True):
            if one.claims and number:
                found.setdefault(one.key, []).extend(one.members[:number])
        return [(key, found[key]) for key in sorted(found)]

    def _by_class(self, fit: Fit, count: Count) -> Fit:
        """The answer for members that ask alike, given to their classes in turn."""
        seats = {key: iter(own) for key, own in zip(fit.keys, fit.seats, strict=True)}
        shared = tuple(
            tuple(itertools.islice(seats[one.key], number)) if one.claims and number else (_BARE,) * number
            for one, number in zip(self.classes, count, strict=True)
        )
        return replace(fit, seats=shared)

    def _asked_alike(self, name: str, kind: Kind, alike: Alike, rails: Rails | None) -> Fit | None:
        memory = self.memory
        key = (kind.devices, tuple((asks, len(own)) for asks, own in alike), rails, self.policy)
        if key not in memory.fits or memory.unknown.get(key, self.budget) < self.budget:
            if len(memory.fits) >= _MOST_REMEMBERED:
                memory.forget()
            memory.asked += 1
            fit, unknown = self._search(name, alike, rails)
            memory.unknown.pop(key, None)
            if unknown:
                memory.unknown[key] = self.budget
            memory.fits[key] = fit
        self.unknown = self.unknown or key in memory.unknown
        return memory.fits[key]

    def _search(self, name: str, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        members = [member for _, own in alike for member in own]
        asked, siblings = self._together(members)
        if len(members) > 1 and any(map(_prefers, asked)):
            return self._climbing(name, alike, rails)
        answer = self._placed(name, asked, siblings, rails)
        if answer.offer is not None:
            return self._fit(name, alike, [answer.offer]), False
        if not answer.exhausted:
            return None, False
        return self._one_by_one(name, alike, rails), True

    def _climbing(self, name: str, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        """Members with Preferred scopes: all on their lowest rungs, else with the fewest climbed in sum.

        Members of a class are alike, so only how many of them are on which rung is tried. First it is asked whether they fit at all.
        """
        asked, siblings = self._together([member for _, own in alike for member in own])
        anyhow = None
        exhausted = False
        for steps in itertools.islice(self._rungs(asked, alike), MOST_CLIMBS * self.budget):
            answer = self._placed(name, _on_rungs(asked, steps), siblings, rails)
            if answer.offer is not None:
                return self._fit(name, alike, [answer.offer], climbed=sum(map(sum, steps))), exhausted
            exhausted = exhausted or answer.exhausted
            if anyhow is None:
                free = [replace(claim, joints=(), joint_requests=()) for claim in asked]
                anyhow = self._placed(name, free, siblings, rails)
                if anyhow.offer is None:
                    return None, anyhow.exhausted
        if anyhow is None or anyhow.offer is None:
            return None, True
        most = sum(len(rungs(joint)) - 1 for claim in asked for joint in claim.joints)
        return self._fit(name, alike, [anyhow.offer], climbed=most), True

    def _rungs(self, asked: Sequence[AskedClaim], alike: Alike) -> Iterator[list[tuple[int, ...]]]:
        """Steps climbed per claim and joint, the fewest in sum first; members of a class in order of their steps."""
        of_claim = [[range(len(rungs(joint))) for joint in claim.joints] for claim in asked]
        at = 0
        choices: list[list[tuple[tuple[tuple[int, ...], ...], ...]]] = []
        for _, own in alike:
            size = len(own[0].claims)
            per_member = list(
                itertools.product(*(itertools.product(*ladders) for ladders in of_claim[at : at + size]))
            )
            choices.append(list(itertools.combinations_with_replacement(per_member, len(own))))
            at += size * len(own)
            if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
                yield [(0,) * len(claim.joints) for claim in asked]
                return
        flat = [
            [steps for own in chosen for member in own for steps in member]
            for chosen in itertools.product(*choices)
        ]
        yield from sorted(flat, key=lambda steps: (sum(map(sum, steps)), steps))

    def ask(
        self, name: str, members: Sequence[Member], rails: Rails | None = None, taken: Taken | None = None
    ) -> NodeAnswer:
        """The allocator's answer for these members on the node."""
        return self._placed(name, *self._together(members), rails, taken)

    def _placed(
        self,
        name: str,
        asked: Sequence[AskedClaim],
        siblings: Sequence[frozenset[int]],
        rails: Rails | None = None,
        taken: Taken | None = None,
    ) -> NodeAnswer:
        node = self.nodes[name]
        placement = Placement(
            asked,
            siblings,
            policy=self.policy,
            inventory=self._inventory(name),
            several=False,
            budget=BUDGET * self.budget,
        )
        return placement.on_node(
            name,
            self.pools(name, rails),
            self.taken(name) if taken is None else taken,
            honors_partitions=honors_partitions(objects.labels_of(node.node)),
        )

    def _one_by_one(self, name: str, alike: Alike, rails: Rails | None) -> Fit | None:
        taken = _taken_by(self.nodes[name])
        offers = []
        for member in (member for _, own in alike for member in own):
            answer = self.ask(name, [member], rails, taken)
            if answer.offer is None:
                return None
            offers.append(answer.offer)
            for allocation in answer.offer.allocations(pin_to_node=True):
                taken.add(allocation.results, holder=member.key)
        return self._fit(name, alike, offers)

    def _together(self, members: Sequence[Member]) -> tuple[list[AskedClaim], list[frozenset[int]]]:
        asked: list[AskedClaim] = []
        siblings: list[frozenset[int]] = []
        for member in members:
            start = len(asked)
            claims = []
            for claim in member.claims:
                key = (objects.key(claim), len(asked))
                found = self._asked.get(key)
                if found is None:
                    read = ResourceClaim.from_dict(claim)
                    found = resolve(
                        read, position=len(asked), classes=self.device_classes, features=self.features
                    )
                    refuse_bad_selectors(found)
                    self._asked[key] = found
                asked.append(found)
                claims.append(found.claim)
            own = siblings_in(Group(tuple(claims), tuple(member.pods)))
            siblings += [frozenset(start + at for at in together) for together in own]
        return asked, siblings

    def _fit(self, name: str, alike: Alike, offers: Sequence[Offer], *, climbed: int = 0) -> Fit:
        """The offers (of all members together, or one after the other) as seats."""
        flat = [
            (offer, position, allocation)
            for offer in offers
            for position, allocation in enumerate(offer.allocations(pin_to_node=True))
        ]
        seats: list[tuple[Seat, ...]] = []
        at = 0
        for _, members in alike:
            own = []
            for member in members:
                own.append(_seat(flat[at : at + len(member.claims)]))
                at += len(member.claims)
            seats.append(tuple(sorted(own, key=lambda seat: seat.first)))
        every = [seat for own in seats for seat in own]
        used = {placed.device for offer in offers for placed in offer.placed}
        state = offers[-1].state
        return Fit(
            name,
            tuple(seats),
            sum(seat.apart for seat in every) + sum(map(_stepped, offers)) + RUNG_APART * climbed,
            sum(
                offered.plain.get(names.ATTR_TYPE) == names.TYPE_GPU
                and device not in used
                and not state.busy[device]
                and not state.holders[device]
                for device, offered in enumerate(state.devices)
            ),
            frozenset(rail for seat in every for rail in seat.rails),
            tuple(key for key, _ in alike),
        )

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _inventory(self, name: str) -> Inventory:
        inventory = self.nodes[name].inventory
        return inventory if isinstance(inventory, Inventory) else inventory()

    def pools(self, name: str, rails: Rails | None = None) -> list[Pool]:
        """The node's pools; with `rails` without the NICs that are on others."""
        found = self._pools.get((name, rails))
        if found is None:
            found = self._inventory(name).pools(self.nodes[name].node)
            if rails is not None:
                found = [_on_rails(pool, rails) for pool in found]
            self._pools[name, rails] = found
        return found

    def taken(self, name: str) -> Taken:
        found = self._taken.get(name)
        if found is None:
            found = self._taken[name] = _taken_by(self.nodes[name])
        return found

    def free_rails(self, name: str) -> Rails:
        """Rails with a NIC that is not given out whole."""
        state = NodeState(self.pools(name), self.taken(name), self.features)
        return frozenset(
            rail_of(offered.plain)
            for device, offered in enumerate(state.devices)
            if offered.kind == NIC and not state.busy[device]
        )


@dataclass(slots=True)
class _Predicates:
    """What the node predicates refuse, judged once per face of a node (room is judged elsewhere)."""

    classes: Sequence[MemberClass]
    labels: frozenset[str] = frozenset()
    by_name: bool = False
    known: dict[Hashable, list[tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pods = [pod for one in self.classes for pod in one.members[0].pods]
        self.labels = frozenset(label for pod in pods for label in _labels_read(objects.spec_of(pod)))
        self.by_name = any(
            "matchFields" in str(pod.get("spec")) or objects.spec_of(pod).get("nodeName") for pod in pods
        )

    def of(self, name: str, node: GangNode) -> list[tuple[str, ...]]:
        spec = objects.spec_of(node.node)
        labels = objects.labels_of(node.node)
        conditions = objects.status_of(node.node).get("conditions") or ()
        ready = [entry for entry in conditions if entry.get("type") == "Ready"] if conditions else []
        face = (
            tuple((label, labels.get(label)) for label in self.labels) if self.labels else (),
            bool(spec.get("unschedulable")),
            str(spec["taints"]) if spec.get("taints") else "",
            tuple(str(entry.get("status")) for entry in ready) if ready else (),
            name if self.by_name else "",
        )
        found = self.known.get(face)
        if found is None:
            bare = {**node.node, "status": {"conditions": ready}}
            found = self.known[face] = [
                tuple(text for pod in one.members[0].pods for text in unsuitable(bare, pod, taken={}))
                for one in self.classes
            ]
        if not any(one.members[0].kept_off or one.members[0].pinned is not None for one in self.classes):
            return found
        return [
            (*texts, *_kept_off(name, one.members[0])) for texts, one in zip(found, self.classes, strict=True)
        ]


def _kept_off(name: str, member: Member) -> Iterator[str]:
    if name in member.kept_off:
        yield member.kept_off[name].detail
    if member.pinned is not None and name not in member.pinned:
        yield f"other claims of the pod are allocated on {', '.join(sorted(member.pinned)) or 'no node'}"


def _labels_read(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from spec.get("nodeSelector") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for entry in term.get("matchExpressions") or ():
            yield str(entry.get("key"))


def _seat(claims: Sequence[tuple[Offer, int, Allocation]]) -> Seat:
    devices = [plain for offer, position, _ in claims for plain in offer.devices_of(position)]
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_GPU, names.TYPE_MIG)]
    nics = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_NIC, names.TYPE_VF)]
    worst = worst_pair(gpus, nics)
    placed = [
        entry.device
        for offer, position, _ in claims
        for entry in offer.placed
        if entry.wanted.claim == position
    ]
    return Seat(
        tuple(allocation.to_dict() for _, _, allocation in claims),
        tuple(level_of(offer.devices_of(position)) for offer, position, _ in claims),
        tuple(map(rail_of, nics)),
        0 if worst is None else max(0, (int(worst) - _ALIGNED) // _STEP),
        min(placed, default=-1),
        frozenset(str(plain.get(names.ATTR_TYPE)) for plain in nics),
        all(
            int(amount) >= _WHOLE
            for _, _, allocation in claims
            for result in allocation.results
            for name, amount in result.consumed.items()
            if name.rpartition("/")[2] == names.CAPACITY_SHARE
        ),
    )


_BARE: Final = Seat((), (), (), 0, -1)


def _prefers(claim: AskedClaim) -> bool:
    return any(joint.enforcement is Enforcement.PREFERRED for joint in claim.joints)


def _on_rungs(asked: Sequence[AskedClaim], steps: Sequence[tuple[int, ...]]) -> list[AskedClaim]:
    """The claims with every Preferred scope turned into the one that is so many rungs up, now Required."""
    found = []
    for claim, climbs in zip(asked, steps, strict=True):
        kept = [
            (replace(joint, scope=scope, enforcement=Enforcement.REQUIRED), covered)
            for joint, covered, climb in zip(claim.joints, claim.joint_requests, climbs, strict=True)
            if (scope := rungs(joint)[climb]) is not None
        ]
        found.append(
            replace(
                claim,
                joints=tuple(joint for joint, _ in kept),
                joint_requests=tuple(covered for _, covered in kept),
            )
        )
    return found


def _stepped(offer: Offer) -> int:
    """What the node's own score charges for steps down in firstAvailable lists and for rungs of Preferred scopes."""
    rungs, rest = divmod(offer.cost, RUNG)
    return RUNG_APART * rungs + ALTERNATIVE_APART * (rest // ALTERNATIVE)


def rail_of(plain: Mapping[str, Any]) -> str:
    """NICs whose rail is not known are together on one without a name."""
    return str(plain.get(names.ATTR_RAIL, ""))


def _on_rails(pool: Pool, rails: Rails) -> Pool:
    kept, dropped = [], []
    for offered in pool.devices:
        if offered.kind != NIC or rail_of(offered.plain) in rails:
            kept.append(offered)
        else:
            dropped.append((offered.id, offered.device))
    return pool if not dropped else replace(pool, devices=tuple(kept), others=(*pool.others, *dropped))


def _taken_by(node: GangNode) -> Taken:
    taken = Taken()
    for claim in node.holders:
        allocation = Allocation.of_claim(claim)
        if allocation is not None:
            taken.add(allocation.results, holder=objects.key(claim))
    return taken


def _parsed(amounts: Mapping[str, Any]) -> Iterator[tuple[str, Decimal]]:
    for name, amount in amounts.items():
        try:
            yield name, parse(amount)
        except InvalidQuantity:
            continue


def _plus_one(count: Count, at: int) -> Count:
    return (*count[:at], count[at] + 1, *count[at + 1 :])


def _all_smaller(count: Count, found: Mapping[Count, object], zero: Count) -> bool:
    """Whether the count with one member less, of any class, fits."""
    for at, number in enumerate(count):
        less = (*count[:at], number - 1, *count[at + 1 :])
        if number and less != zero and less not in found:
            return False
    return True


def seated(seat: Seat, member: Member, *, example: str, node: str) -> dict[str, Mapping[str, Any]]:
    """The seat's allocations for this member on a node like the one that was asked: pools, node selectors and share ids are the
    only places where names go into an allocation."""
    found: dict[str, Mapping[str, Any]] = {}
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    for claim, written in zip(member.claims, seat.allocations, strict=True):
        results = []
        numbers: dict[str, int] = {}
        uid = objects.uid(claim) or objects.key(claim)
        for like in written["devices"].get("results") or ():
            result = dict(like)
            label = result["request"]
            index = numbers[label] = numbers.get(label, -1) + 1
            if result["pool"] == example:
                result["pool"] = node
            if "shareID" in result:
                result["shareID"] = share_id(uid, label, index)
            results.append(result)
        devices = {**written["devices"], "results": results}
        found[objects.key(claim)] = {**written, "devices": devices, "nodeSelector": selector}
    return found


def refusals_of(fitting: Fitting, one: MemberClass, at: int, *, most: int) -> list[Reason]:
    """Why a member of the class is not on the nodes, each kind of node once."""
    found: list[Reason] = []
    member = one.members[0]
    told: set[Hashable] = set()
    for name in sorted(fitting.nodes):
        kind = fitting.kinds[name]
        if len(told) >= most:
            break
        texts = fitting.refusals[name][at]
        if texts:
            if texts not in told:
                told.add(texts)
                found += [Reason(name, None, None, Cause.NODE_UNSUITABLE.value, text) for text in texts]
            continue
        if kind in told:
            continue
        told.add(kind)
        lone = tuple(int(position == at) for position in range(len(fitting.classes)))
        if not fitting.roomy(kind, lone):
            node = fitting.nodes[name]
            texts = tuple(text for pod in member.pods for text in unsuitable(node.node, pod, taken=node.load))
            found += [Reason(name, None, None, Cause.NODE_UNSUITABLE.value, text) for text in texts]
        elif one.claims and fitting.fit(name, lone) is None:
            found += [reason for _, reason in fitting.ask(name, [member]).reasons()]
    return found

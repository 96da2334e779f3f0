"""Members that ask the same are one class, nodes that give one answer are one kind: a node is asked for a
class, and only the first node of a kind, by name, is asked.

A class is everything that a node's answer depends on: the engine's request class of the member's claims and
pods, the claims that the pods have already, and the nodes that are excluded. Inside a class members are
ordered by their index, else by name. A kind is

    where     the NodeClassUsage: what the node publishes and what of it is taken (the node itself where
              selectors read identities)
    room      CPU, memory, pods and the like: how many members they leave room for
    suits     which classes the engine's predicates admit
    rooms     by which nodes are weighed (`node_scoring`), where the gang goes by that
    avoided   by class, PreferNoSchedule taints that its pods do not tolerate

The fewer kinds, the fewer questions. So what makes no difference to this gang makes no kind: room beyond what
all its members could use, resources that none of them asks for, devices where the node is refused anyhow.
EquivalentNodes are judged once, as far as pods read no labels or names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from koordra.allocator.predicates import (
    HOSTNAME,
    labels_read,
    node_constraints_text,
    requests_of,
    soft_taints,
    total_of,
)
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.effort import spend
from koordra.errors import InvalidQuantity
from koordra.placement.candidates.node_scoring import NodeScore, Room
from koordra.placement.decide import Engine
from koordra.placement.gang.types import NewMember
from koordra.placement.index import NodeInfo
from koordra.placement.node_class import NodeClassUsage
from koordra.placement.request.request_class import RequestClass, ResolvedGroup, refusals
from koordra.quantity import parse

Requests = list[tuple[int, int, str]]
"""Of a claim, in order: 0, how many devices and of which class; a last entry above any request."""

_LOOKED_UP: Final = 100
"""Classes whose nodes are looked up in a step."""

_NUMBERS: Final = re.compile(r"([0-9]+)")


class KeptTo(NamedTuple):
    """Nodes beside those whom a member belongs to, and what the others are told."""

    nodes: frozenset[str]
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """`room` is what a member's pods ask of a node together; `kept_to`: where alone they may be.

    `devices` is the request class that stands for what a member asks of devices: classes that differ in CPU
    alone share it.
    """

    members: tuple[NewMember, ...]
    resolved_groups: tuple[ResolvedGroup, ...]
    room: Mapping[str, Decimal]
    devices: RequestClass
    kept_to: KeptTo | None = None

    @property
    def claims(self) -> int:
        return len(self.members[0].group.claims)

    @property
    def score(self) -> NodeScore | None:
        return self.resolved_groups[0].request_class.score


def classes_of(members: Sequence[NewMember], engine: Engine) -> list[MemberClass]:
    """The classes by what they ask of devices, then by their first members, so that neither the order of
    input matters nor what an API server adds to pods.

    Raises ClaimRefused for a claim that can be placed nowhere by anybody."""
    found: dict[Hashable, list[tuple[NewMember, ResolvedGroup]]] = {}
    for member in sorted(members, key=member_order):
        resolved = engine.resolve(member.group)
        key = (resolved.request_class, frozenset(member.excluded), member.group.allocated)
        found.setdefault(key, []).append((member, resolved))
    devices: dict[Hashable, RequestClass] = {}
    classes = []
    for own in sorted(found.values(), key=lambda own: (_asks(own[0][1]), member_order(own[0][0]))):
        first, resolved = own[0]
        classes.append(
            MemberClass(
                tuple(member for member, _ in own),
                tuple(resolved for _, resolved in own),
                total_of(map(requests_of, first.group.pods)),
                devices.setdefault((resolved.key[0], resolved.siblings), resolved.request_class),
            )
        )
    return classes


def _asks(resolved: ResolvedGroup) -> tuple[bool, list[tuple[bool, str, Requests]]]:
    """What is asked of devices. Who asks for none comes first; claims with a configuration, which are bound
    to more, come before those without, and claims for several kinds of devices before those for one."""
    found = []
    for asked in resolved.asked:
        config = [entry.raw for entry in asked.claim.config]
        first = [request.alternatives[0] for request in asked.requests]
        requests: Requests = [(0, wanted.spec.count, wanted.device_class.name) for wanted in first]
        found.append((not config, json.dumps(config, sort_keys=True, default=str), [*requests, (1, 0, "")]))
    return bool(found), found


def member_order(member: NewMember) -> tuple[object, ...]:
    """By index, else by name."""
    return (member.index is None, member.index or 0, natural(member.key))


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Order of names as people count: worker-2 before worker-10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(name) if part
    )


Where = tuple[NodeClassUsage | NodeInfo, int]
"""Whose devices, and the node's generation where the node is asked for itself."""

Refusals = tuple[tuple[Reason, ...], ...]
"""Why a node is none, by class."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeKind:
    """`info` is the first node of the kind; `where` None: no class asks for devices; `room` is what is free
    of what is asked (None: not judged); `fixed`: a fixed member is there; `rooms`: of weighted resources;
    `avoided`: taints by class."""

    info: NodeInfo
    where: Where | None
    room: tuple[Decimal | None, ...]
    suits: tuple[bool, ...]
    fixed: bool
    rooms: Sequence[Room] = ()
    avoided: tuple[int, ...] = ()


@dataclass(slots=True)
class NodeKinds:
    """`of` is the kind of every node, `all` are the kinds, `refusals` by node. `fixed`: nodes with fixed
    members."""

    classes: Sequence[MemberClass]
    engine: Engine
    fixed: frozenset[str]
    of: dict[str, NodeKind] = field(default_factory=dict)
    all: dict[Hashable, NodeKind] = field(default_factory=dict)
    refusals: dict[str, Refusals] = field(default_factory=dict)
    _resources: dict[str, Decimal] = field(default_factory=dict)
    """What is asked, and how much by all members together."""
    _asking: bool = False
    """Whether any class asks for devices."""
    by_identity: bool = False
    """Whether one reads what is another on every node: then no two are alike."""
    scores: Sequence[NodeScore] = ()
    """By class, where all go by the same weights."""

    def __post_init__(self) -> None:
        index, reads = self.engine.index, _reader(self.classes)
        for one in self.classes:
            for name, amount in one.room.items():
                if amount:
                    self._resources[name] = self._resources.get(name, 0) + amount * len(one.members)
        # Pods that count for a node already, since claims of theirs are there.
        arrived = frozenset(
            objects.identity(pod)
            for one in self.classes
            for member in one.members
            if member.group.allocated
            for pod in member.group.pods
        )
        known: dict[Hashable, tuple[Refusals, tuple[Decimal | None, ...], NodeKind]] = {}
        asking = [one.resolved_groups[0].request_class for one in self.classes if one.claims]
        self._asking = bool(asking)
        self.by_identity = any(one.reads_any_of(index.known.identities) for one in asking)
        self.scores = _scores(self.classes)
        spend(len(index.nodes) * len(self.classes) // _LOOKED_UP)
        for name in sorted(index.nodes):
            info = index.nodes[name]
            key = (info.state, reads(info), name in self.fixed, self.by_identity and name)
            if key not in known:
                spend(len(self.classes))
                refused = tuple(
                    tuple(refusals(self.engine.index, one.members[0].group, info)) for one in self.classes
                )
                load = index.load_without(info, arrived) if arrived else info.load
                room = self._room(info.node, load)
                rooms = self.scores[0].rooms(info, load) if self.scores else ()
                known[key] = refused, room, self._kind(info, room, refused, rooms)
            refused, room, self.of[name] = known[key]
            excluded = [one.members[0].excluded.get(name) or _elsewhere(one, name) for one in self.classes]
            if any(excluded):
                refused = tuple(
                    (*reasons, reason) if reason is not None else reasons
                    for reasons, reason in zip(refused, excluded, strict=True)
                )
                self.of[name] = self._kind(info, room, refused, self.of[name].rooms)
            self.refusals[name] = refused

    def _kind(
        self,
        info: NodeInfo,
        room: tuple[Decimal | None, ...],
        refusals: Refusals,
        rooms: Sequence[Room],
    ) -> NodeKind:
        where: Where | None = None
        if self._asking and not all(refusals):
            where = (info, info.generation) if self.by_identity else (info.devices, 0)
        suits, fixed = tuple(not reasons for reasons in refusals), info.name in self.fixed
        avoided = tuple(
            0 if reasons else soft_taints(info.node, one.members[0].group.pods)
            for one, reasons in zip(self.classes, refusals, strict=True)
        )
        kind = NodeKind(info, where, room, suits, fixed, () if all(refusals) else rooms, avoided)
        return self.all.setdefault((where, room, suits, fixed, tuple(kind.rooms), avoided), kind)

    def _room(self, node: Mapping[str, Any], load: Mapping[str, Decimal]) -> tuple[Decimal | None, ...]:
        """What is free of what is asked, as far as the gang could use it; with one class in whole members."""
        allocatable = objects.status_of(node).get("allocatable") or {}
        if not allocatable:
            return (None,) * len(self._resources)
        found = []
        for name, most in self._resources.items():
            free = Decimal(0)
            with suppress(InvalidQuantity):
                free = parse(allocatable.get(name, "0"))
            left = max(Decimal(0), min(free - load.get(name, Decimal(0)), most))
            if len(self.classes) == 1:
                each = self.classes[0].room[name]
                left = left // each * each
            found.append(left)
        return tuple(found)

    def has_room(self, kind: NodeKind, count: tuple[int, ...]) -> bool:
        return all(
            left is None
            or sum(number * one.room.get(name, 0) for number, one in zip(count, self.classes, strict=True))
            <= left
            for name, left in zip(self._resources, kind.room, strict=True)
        )


def _scores(classes: Sequence[MemberClass]) -> Sequence[NodeScore]:
    found = [one.score for one in classes if one.score is not None]
    return found if len(found) == len(classes) and len({one.strategy for one in found}) == 1 else ()


def _elsewhere(one: MemberClass, node: str) -> Reason | None:
    if one.kept_to is None or node in one.kept_to.nodes:
        return None
    return reason_of(Cause.TOPOLOGY_SCOPE_UNMET, one.kept_to.why, node)


def _reader(classes: Sequence[MemberClass]) -> Callable[[NodeInfo], Hashable]:
    """What the members' pods read of a node besides its state: labels, and perhaps its name."""
    groups = [one.members[0].group for one in classes]
    pods = [pod for group in groups for pod in group.pods]
    labels = sorted(labels_read(pods))
    by_name = any(group.allocated for group in groups) or any(
        objects.spec_of(pod).get("nodeName") or "matchFields" in constraints or HOSTNAME in constraints
        for pod in pods
        for constraints in [node_constraints_text(pod)]
    )
    return lambda info: (info.name if by_name else "", *[info.labels.get(label) for label in labels])

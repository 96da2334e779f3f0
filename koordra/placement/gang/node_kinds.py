"""Nodes of one kind give one answer, so only one of them, the example, is asked.

    where     the DeviceState: what the node publishes and what of it is taken (the node itself where selectors read identities)
    room      CPU, memory, pods and the like: how many members they leave room for
    suits     which classes the engine's predicates admit

The fewer kinds, the fewer questions. So what makes no difference to this gang makes no kind: room beyond what all its members could
use, resources that none of them asks for, devices where the node is refused anyhow. Nodes of one NodeState are judged once, as far as
pods read no labels or names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.errors import InvalidQuantity
from koordra.placement.decide import Engine
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.score import Count
from koordra.placement.index import NodeInfo, identity
from koordra.placement.node_class import DeviceState
from koordra.placement.request.pod_terms import HOSTNAME, labels_read, node_constraints_text
from koordra.quantity import parse

Where = tuple[DeviceState | NodeInfo, int]
"""Whose devices, and the node's generation where the node is asked for itself."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """`where` None: no class asks for devices. `room` is what is free of what is asked (None: not judged)."""

    where: Where | None
    room: tuple[Decimal | None, ...]
    suits: tuple[bool, ...]
    fixed: bool


Refusals = tuple[tuple[Reason, ...], ...]
"""By class."""


@dataclass(frozen=True, slots=True)
class _Reads:
    """What the members' pods read of a node besides its state: labels, and whether its name."""

    labels: tuple[str, ...]
    names: bool

    @classmethod
    def of(cls, classes: Sequence[MemberClass]) -> _Reads:
        groups = [one.members[0].group for one in classes]
        pods = [pod for group in groups for pod in group.pods]
        names = any(group.allocated for group in groups) or any(
            objects.spec_of(pod).get("nodeName") or "matchFields" in said or HOSTNAME in said
            for pod in pods
            for said in [node_constraints_text(pod)]
        )
        return cls(tuple(sorted(labels_read(pods))), names)

    def labels_of(self, info: NodeInfo) -> tuple[str | None, ...]:
        return tuple([info.labels.get(label) for label in self.labels]) if self.labels else ()


@dataclass(slots=True)
class NodeKinds:
    """`of` is the kind of every node, `example` the first node by name of every kind, `refusals` why a node is none for each class."""

    classes: Sequence[MemberClass]
    engine: Engine
    of: dict[str, NodeKind] = field(default_factory=dict)
    example: dict[NodeKind, str] = field(default_factory=dict)
    refusals: dict[str, Refusals] = field(default_factory=dict)
    _resources: list[str] = field(default_factory=list)
    _most: list[Decimal] = field(default_factory=list)

    def find(self, fixed: frozenset[str]) -> None:
        """The kind of every node."""
        index = self.engine.index
        self._resources = sorted(
            {name for one in self.classes for name, amount in one.room.items() if amount}
        )
        self._most = [
            sum((one.room.get(name, Decimal(0)) * len(one.members) for one in self.classes), Decimal(0))
            for name in self._resources
        ]
        reads, arrived = _Reads.of(self.classes), self._arrived()
        known: dict[Hashable, tuple[Refusals, NodeKind]] = {}
        for name in sorted(index.nodes):
            info = index.nodes[name]
            key = (info.state, reads.labels_of(info), name if reads.names else "", name in fixed)
            if key not in known:
                told = tuple(tuple(self.engine.refusals(one.members[0].group, info)) for one in self.classes)
                load = index.load_without(info, arrived) if arrived else info.load
                kind = NodeKind(None, self._room(info.node, load), (), name in fixed)
                known[key] = told, self._suited(kind, info, told)
            refusals, kind = known[key]
            if any(name in one.members[0].excluded for one in self.classes):
                refusals = tuple(
                    (*told, *_excluded(one, name)) for told, one in zip(refusals, self.classes, strict=True)
                )
                kind = self._suited(kind, info, refusals)
            self.refusals[name], self.of[name] = refusals, kind
            self.example.setdefault(kind, name)

    def _arrived(self) -> frozenset[str]:
        """Pods, by uid, that count for a node already, since claims of theirs are there."""
        groups = [member.group for one in self.classes for member in one.members if member.group.allocated]
        return frozenset(identity(pod) for group in groups for pod in group.pods)

    def _suited(self, kind: NodeKind, info: NodeInfo, refusals: Refusals) -> NodeKind:
        asking = [one.resolved_groups[0].request_class for one in self.classes if one.claims]
        where: Where | None = None
        if asking and not all(refusals):
            identities = self.engine.index.known.identities
            alone = any(one.reads_any_of(identities) for one in asking)
            where = (info, info.generation) if alone else (info.devices, 0)
        return replace(kind, where=where, suits=tuple(not told for told in refusals))

    def _room(self, node: Mapping[str, Any], load: Mapping[str, Decimal]) -> tuple[Decimal | None, ...]:
        """What is free of what is asked, as far as the gang could use it; with one class in whole members."""
        allocatable = objects.status_of(node).get("allocatable") or {}
        if not allocatable:
            return (None,) * len(self._resources)
        free = dict(_parsed(allocatable))
        found = []
        for name, most in zip(self._resources, self._most, strict=True):
            left = free.get(name, Decimal(0)) - load.get(name, Decimal(0))
            left = max(Decimal(0), min(left, most))
            if len(self.classes) == 1:
                each = self.classes[0].room[name]
                left = left // each * each
            found.append(left)
        return tuple(found)

    def has_room(self, kind: NodeKind, count: Count) -> bool:
        """Whether CPU, memory and the like suffice."""
        return all(
            left is None
            or sum(number * one.room.get(name, 0) for number, one in zip(count, self.classes, strict=True))
            <= left
            for name, left in zip(self._resources, kind.room, strict=True)
        )


def _excluded(one: MemberClass, name: str) -> list[Reason]:
    found = one.members[0].excluded.get(name)
    return [] if found is None else [found]


def _parsed(amounts: Mapping[str, Any]) -> Iterator[tuple[str, Decimal]]:
    for name, amount in amounts.items():
        try:
            yield name, parse(amount)
        except InvalidQuantity:
            continue

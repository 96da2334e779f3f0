"""Nodes of one kind give one answer, so only one of them, the first by name, is asked.

    where     the DeviceState: what the node publishes and what of it is taken (the node itself where selectors read identities)
    room      CPU, memory, pods and the like: how many members they leave room for
    suits     which classes the engine's predicates admit

The fewer kinds, the fewer questions. So what makes no difference to this gang makes no kind: room beyond what all its members could
use, resources that none of them asks for, devices where the node is refused anyhow. Nodes of one NodeState are judged once, as far as
pods read no labels or names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.errors import InvalidQuantity
from koordra.placement.decide import Engine
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.index import NodeInfo, identity
from koordra.placement.node_class import DeviceState
from koordra.placement.request.pod_terms import HOSTNAME, labels_read, node_constraints_text
from koordra.quantity import parse

Where = tuple[DeviceState | NodeInfo, int]
"""Whose devices, and the node's generation where the node is asked for itself."""

Refusals = tuple[tuple[Reason, ...], ...]
"""Why a node is none, by class."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeKind:
    """`info` is the first node of the kind; `where` None: no class asks for devices; `room` is what is free of what is asked
    (None: not judged); `fixed`: a fixed member is there."""

    info: NodeInfo
    where: Where | None
    room: tuple[Decimal | None, ...]
    suits: tuple[bool, ...]
    fixed: bool


@dataclass(slots=True)
class NodeKinds:
    """`of` is the kind of every node, `all` are the kinds, `refusals` by node. `fixed`: nodes with fixed members."""

    classes: Sequence[MemberClass]
    engine: Engine
    fixed: frozenset[str]
    of: dict[str, NodeKind] = field(default_factory=dict)
    all: dict[Hashable, NodeKind] = field(default_factory=dict)
    refusals: dict[str, Refusals] = field(default_factory=dict)
    _resources: dict[str, Decimal] = field(default_factory=dict)
    """What is asked, and how much by all members together."""

    def __post_init__(self) -> None:
        index, reads = self.engine.index, _reader(self.classes)
        for one in self.classes:
            for name, amount in one.room.items():
                if amount:
                    before = self._resources.get(name, Decimal(0))
                    self._resources[name] = before + amount * len(one.members)
        groups = [member.group for one in self.classes for member in one.members]
        # Pods that count for a node already, since claims of theirs are there.
        arrived = frozenset(identity(pod) for group in groups if group.allocated for pod in group.pods)
        known: dict[Hashable, tuple[Refusals, tuple[Decimal | None, ...], NodeKind]] = {}
        for name in sorted(index.nodes):
            info = index.nodes[name]
            key = (info.state, reads(info), name in self.fixed)
            if key not in known:
                refusals = tuple(
                    tuple(self.engine.refusals(one.members[0].group, info)) for one in self.classes
                )
                room = self._room(info.node, index.load_without(info, arrived) if arrived else info.load)
                known[key] = refusals, room, self._kind(info, room, refusals)
            refusals, room, self.of[name] = known[key]
            excluded = [one.members[0].excluded.get(name) for one in self.classes]
            if any(excluded):
                refusals = tuple(
                    (*told, reason) if reason is not None else told
                    for told, reason in zip(refusals, excluded, strict=True)
                )
                self.of[name] = self._kind(info, room, refusals)
            self.refusals[name] = refusals

    def _kind(self, info: NodeInfo, room: tuple[Decimal | None, ...], refusals: Refusals) -> NodeKind:
        asking = [one.resolved_groups[0].request_class for one in self.classes if one.claims]
        where: Where | None = None
        if asking and not all(refusals):
            identities = self.engine.index.known.identities
            alone = any(one.reads_any_of(identities) for one in asking)
            where = (info, info.generation) if alone else (info.devices, 0)
        suits, fixed = tuple(not told for told in refusals), info.name in self.fixed
        key = where, room, suits, fixed
        return self.all.setdefault(key, NodeKind(info, where, room, suits, fixed))

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
        """Whether CPU, memory and the like suffice."""
        return all(
            left is None
            or sum(number * one.room.get(name, 0) for number, one in zip(count, self.classes, strict=True))
            <= left
            for name, left in zip(self._resources, kind.room, strict=True)
        )


def _reader(classes: Sequence[MemberClass]) -> Callable[[NodeInfo], Hashable]:
    """What the members' pods read of a node besides its state: labels, and perhaps its name."""
    groups = [one.members[0].group for one in classes]
    pods = [pod for group in groups for pod in group.pods]
    labels = sorted(labels_read(pods))
    by_name = any(group.allocated for group in groups) or any(
        objects.spec_of(pod).get("nodeName") or "matchFields" in said or HOSTNAME in said
        for pod in pods
        for said in [node_constraints_text(pod)]
    )
    return lambda info: (info.name if by_name else "", *[info.labels.get(label) for label in labels])

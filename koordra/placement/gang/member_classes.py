"""Members that ask the same are one class: a node answers for the class, and only numbers of members count.

A class is everything that a node's answer depends on: the engine's request class of the member's claims and pods, the claims that
the pods have already, and the nodes that are excluded. Inside a class members are ordered by their index, else by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

from koordra.allocator.predicates import requests_of
from koordra.placement.decide import Engine
from koordra.placement.gang.types import Member
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

Requests = list[tuple[int, int, str]]
"""Of a claim, in order: 0, how many devices and of which class; a last entry that is more than any request."""

_NUMBERS: Final = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """`room` is what a member's pods ask of a node together.

    `devices` is the request class that stands for what a member asks of devices: classes that differ in CPU alone share it.
    """

    members: tuple[Member, ...]
    resolved_groups: tuple[ResolvedGroup, ...]
    room: Mapping[str, Decimal]
    devices: RequestClass

    @property
    def claims(self) -> int:
        return len(self.members[0].group.claims)


def classes_of(members: Sequence[Member], engine: Engine) -> list[MemberClass]:
    """The classes by what they ask, so that order of input does not matter.

    Raises ClaimRefused for a claim that can be placed nowhere by anybody."""
    found: dict[Hashable, list[tuple[Member, ResolvedGroup]]] = {}
    for member in sorted(members, key=_order):
        resolved = engine.resolve(member.group)
        key = (resolved.request_class, frozenset(member.excluded), member.group.allocated)
        found.setdefault(key, []).append((member, resolved))
    devices: dict[Hashable, RequestClass] = {}
    classes = []
    for own in sorted(found.values(), key=lambda own: _asks(own[0][1])):
        first, resolved = own[0]
        room: dict[str, Decimal] = {}
        for pod in first.group.pods:
            for resource, amount in requests_of(pod).items():
                room[resource] = room.get(resource, Decimal(0)) + amount
        asks = (resolved.key[0], resolved.siblings)
        classes.append(
            MemberClass(
                tuple(member for member, _ in own),
                tuple(resolved for _, resolved in own),
                room,
                devices.setdefault(asks, resolved.request_class),
            )
        )
    return classes


def _asks(resolved: ResolvedGroup) -> tuple[bool, list[tuple[bool, str, Requests]], str]:
    """What is asked, without names. Who asks for no devices comes first; claims with a configuration, which are bound to more, come
    before those without, and claims for several kinds of devices before those for one."""
    found = []
    for asked in resolved.asked:
        config = [entry.raw for entry in asked.claim.config]
        first = [request.alternatives[0] for request in asked.requests]
        requests: Requests = [(0, wanted.spec.count, wanted.device_class.name) for wanted in first]
        text = json.dumps(config, sort_keys=True, default=str)
        found.append((not config, text, [*requests, (1, 0, "")]))
    return bool(found), found, repr(resolved.key)


def _order(member: Member) -> tuple[object, ...]:
    return (member.index is None, member.index or 0, natural(member.key))


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Order of names as people count: worker-2 before worker-10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(name) if part
    )

"""Members that ask the same are one class: a node answers for the class, and only numbers of members count.

A class is everything that a node's answer depends on, without names and uids: the claims' specs, what the node predicates read of the
pods, the nodes that come into question. Inside a class members are ordered by their index, else as they were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from koordra.allocator.predicates import requests_of
from koordra.api import objects
from koordra.placement.gang.types import Member

_NUMBERS: Final = re.compile(r"([0-9]+)")
_FACE: Final = ("nodeName", "nodeSelector", "tolerations")


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """`room` is what a member's pods ask of a node together; `needed` how many members are indispensable (they come first).

    `key` tells what is asked of devices, for answers that are remembered from gang to gang.
    """

    members: tuple[Member, ...]
    room: Mapping[str, Decimal]
    needed: int
    key: str

    @property
    def claims(self) -> int:
        return len(self.members[0].claims)


def classes_of(members: Sequence[Member]) -> list[MemberClass]:
    """The classes, those with indispensable members first, then by what they ask (so that order of input does not matter)."""
    found: dict[tuple[str, str], list[Member]] = {}
    spelled: dict[int, str] = {}
    for member in members:
        found.setdefault((_asks(member, spelled), _faces(member, spelled)), []).append(member)
    classes = []
    for (key, face), own in found.items():
        ordered = sorted(own, key=_order)
        needed = sum(member.needed for member in own)
        room: dict[str, Decimal] = {}
        for pod in ordered[0].pods:
            for resource, amount in requests_of(pod).items():
                room[resource] = room.get(resource, Decimal(0)) + amount
        classes.append((needed == 0, key, face, MemberClass(tuple(ordered), room, needed, key)))
    classes.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in classes]


def _order(member: Member) -> tuple[object, ...]:
    return (not member.needed, member.index is None, member.index or 0, natural(member.key))


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Order of names as people count: worker-2 before worker-10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(name) if part
    )


def _asks(member: Member, spelled: dict[int, str]) -> str:
    claims = [_spelled(objects.spec_of(claim), spelled) for claim in member.claims]
    position = {objects.key(claim): index for index, claim in enumerate(member.claims)}
    uses = [
        [position.get(f"{objects.namespace(pod)}/{name}") for name in objects.pod_claim_names(pod).values()]
        for pod in member.pods
    ]
    return f"[{','.join(claims)}]{uses}"


def _faces(member: Member, spelled: dict[int, str]) -> str:
    """What the node predicates read."""
    faces = []
    for pod in member.pods:
        spec = objects.spec_of(pod)
        containers = [
            [[entry.get("resources"), entry.get("restartPolicy")] for entry in spec.get(place) or ()]
            for place in ("containers", "initContainers")
        ]
        affinity = (spec.get("affinity") or {}).get("nodeAffinity")
        rest = [spec.get(name) for name in (*_FACE, "overhead", "resources")]
        faces.append([containers, affinity, rest])
    pinned = None if member.pinned is None else sorted(member.pinned)
    return json.dumps([faces, pinned, sorted(member.kept_off)], sort_keys=True, default=str)


def _spelled(spec: Mapping[str, Any], spelled: dict[int, str]) -> str:
    """Claims of one template often are one object in memory too."""
    found = spelled.get(id(spec))
    if found is None:
        found = spelled[id(spec)] = json.dumps(spec, sort_keys=True, default=str)
    return found

"""What a gang's terms say of the fabric, as the placement is asked: levels by their narrowest word, parts by
the keys of their members. Pure.

Members of a part have numbers where its workload counts them in one row (the workers of a job; not the jobs
of a JobSet together). Whoever of the row stands outside of the part (a leader) comes before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import whole_number
from koordra.controller.gangs.declared.member_index import MemberIndex
from koordra.controller.gangs.declared.topology_terms import PartTerms, TopologyTerms
from koordra.controller.gangs.declared.workload_kind import told
from koordra.placement.gang import Part
from koordra.topology.network_topology import Levels


class Member(Protocol):
    """What is read of a member (`membership.Member`)."""

    @property
    def uid(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def pod(self) -> Object: ...
    @property
    def index(self) -> MemberIndex | None: ...


@dataclass(frozen=True, slots=True)
class FabricRequest:
    """As in `placement.gang.GangRequest`."""

    required: str | None
    preferred: str | None
    parts: tuple[Part, ...]
    levels: Levels


def fabric_request(terms: TopologyTerms, members: Sequence[Member], levels: Levels) -> FabricRequest:
    parts: list[Part] = []
    inner: dict[str, list[Part]] = {}
    said = [part for part in terms.parts if part.required or part.preferred or part.slices]
    for at in range(len(said) - 1, -1, -1):
        part = said[at]
        outer = next((other for other in said[:at][::-1] if part.pods <= other.pods), None)
        found = Part(
            part.name or ("" if part.pods == frozenset(member.uid for member in members) else "its members"),
            _numbers(members, [member for member in members if member.uid in part.pods], part),
            _narrowest(part.required, levels),
            _narrowest(part.preferred, levels),
            part.slices,
            tuple(inner.pop(_key(part), ())),
            part.size,
        )
        (parts if outer is None else inner.setdefault(_key(outer), [])).insert(0, found)
    return FabricRequest(
        _narrowest(terms.required, levels), _narrowest(terms.preferred, levels), tuple(parts), levels
    )


def who_says(terms: TopologyTerms, members: Sequence[Member], word: str) -> str:
    """The annotation that names this level, to be put before what is said of it."""
    if word not in terms.words:
        return ""
    for member in members:
        for name, text in sorted(objects.annotations_of(member.pod).items()):
            if word in re.split(r"[^\w./-]+", text):
                return f"annotation {name}: "
    return "tiers of Volcano need HyperNodes: " if word.startswith("tier-") else "its pod group: "


def _key(part: PartTerms) -> str:
    return f"{part.name} {min(part.pods)} {len(part.pods)} {part.slices}"


def _narrowest(words: Sequence[str], levels: Levels) -> str | None:
    """One that nobody knows comes first, so that it is told."""

    def place(word: str) -> int:
        at = levels.position(word)
        return len(levels.levels) + 1 if at is None else at

    return max(words, key=place, default=None)


def _numbers(
    members: Sequence[Member], inside: Sequence[Member], part: PartTerms
) -> Mapping[str, int | None]:
    if part.numbered_by:
        return {member.key: whole_number(told(member.pod, part.numbered_by)) for member in inside}
    rows = {member.index.row if member.index is not None else None for member in inside}
    if len(rows) != 1 or None in rows:
        return dict.fromkeys([member.key for member in inside])
    keys = {member.key for member in inside}
    numbers = [_number(member) for member in members if member.key not in keys and _row(member) in rows]
    first = min(map(_number, inside))
    before = sum(number < first for number in numbers)
    return {member.key: _number(member) - before for member in inside}


def _row(member: Member) -> object:
    return None if member.index is None else member.index.row


def _number(member: Member) -> int:
    return 0 if member.index is None else member.index.numbers[-1]

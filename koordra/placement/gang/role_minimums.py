"""Gangs whose roles need so many members each.

Places are looked for without a word on roles. Where that leaves a role with too few, it is asked for the
least alone: those members of each role that ask the fewest devices, all of them or none, and as many others
as the gang needs beside these. So a gang whose roles add up to its least, and whose members ask for more or
less of the same, is placed whenever that is possible; else others might be with other members.

A part that the gang may do without is placed with its least or not at all: where a few of it would be, places
are looked for without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from koordra.api.claims import ResourceClaim
from koordra.placement.gang.types import (
    GangAnswer,
    GangPlaced,
    GangRequest,
    GangUndecided,
    GangUnplaced,
    GangUnsatisfiable,
    LeastOf,
)


def with_least_of_each(gang: GangRequest, place: Callable[[GangRequest], GangAnswer]) -> GangAnswer:
    asked, left = gang, list[str]()
    while True:
        answer = _with_needed(asked, place)
        if not isinstance(answer, GangPlaced):
            return answer
        placed = {one.key for one in answer.members}
        part = next((one for one in asked.least_of if one.or_none and _in_part(one, placed)), None)
        if part is None:
            return replace(answer, left=(*answer.left, *left)) if left else answer
        left += sorted(part.members)
        members = [member for member in asked.members if member.key not in part.members]
        rest = tuple(one for one in asked.least_of if one is not part)
        asked = replace(asked, members=members, least_of=rest)
        if not members or len(asked.fixed) + len(members) < asked.minimum:
            there = len(part.members & placed)
            text = f"{part.name} is placed with {part.least} of its members or not at all, and {there} fit"
            return GangUnsatisfiable(len(asked.fixed), text, {})


def _with_needed(gang: GangRequest, place: Callable[[GangRequest], GangAnswer]) -> GangAnswer:
    answer = place(gang)
    if not isinstance(answer, GangPlaced):
        return answer
    short = _short(gang, {one.key for one in answer.members})
    if short is None:
        return answer
    asked = {member.key: devices_asked(member.group.claims) for member in gang.members}
    keys = sorted(asked, key=asked.__getitem__)
    needed = {
        key
        for one in gang.least_of
        if not one.or_none
        for key in [key for key in keys if key in one.members][: one.least]
    }
    more = [key for key in keys if key not in needed][: max(0, gang.minimum - len(gang.fixed) - len(needed))]
    chosen = {*needed, *more}
    members = [member for member in gang.members if member.key in chosen]
    again = place(replace(gang, members=members, minimum=len(gang.fixed) + len(members)))
    if isinstance(again, GangPlaced):
        return replace(again, left=tuple(key for key in asked if key not in chosen))
    text = f"role {short.name} needs {short.least} of its {len(short.members)} members: {again.text}"
    answer_of = GangUndecided if more or len(set(asked.values())) > 1 else type(again)
    return _unplaced(answer_of, again, text)


def devices_asked(claims: Iterable[ResourceClaim]) -> int:
    """Of requests with alternatives, by the first."""
    requests = [request for claim in claims for request in claim.requests]
    return sum(request.alternatives[0].count for request in requests if request.alternatives)


def _unplaced(answer_of: type[GangUnplaced], again: GangUnplaced, text: str) -> GangUnplaced:
    return answer_of(again.most, text, again.reasons)


def _short(gang: GangRequest, placed: Collection[str]) -> LeastOf | None:
    needed = (one for one in gang.least_of if not one.or_none)
    return next((one for one in needed if len(one.members.intersection(placed)) < one.least), None)


def _in_part(one: LeastOf, placed: Collection[str]) -> bool:
    return 0 < len(one.members.intersection(placed)) < one.least

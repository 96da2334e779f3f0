"""Whose rank is which, in a gang of which some have theirs: who is made again gets the one that its position
had. Pure.

    told       a member that has its devices was told its rank with them, and keeps it
    counted    else the rank follows from the nearest member that is counted in the same row (the workers of
               one group): so many places behind it
    between    else it is in order behind the member before it

A rank that this gives is known only if nobody has it and it is below the number of members: an Indexed Job
that runs in waves has numbers beyond, whose pods take the ranks of those that ended. Beside nobody that was
told, nothing is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from koordra.api.objects import Fields
from koordra.api.opaque.gang_member import is_gang_member
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.member_index import MemberIndex
from koordra.controller.gangs.membership import Gang, Member


class _Told(NamedTuple):
    rank: int
    size: int


def known_ranks(gang: Gang) -> dict[str, int]:
    """By uid."""
    told = {member.uid: one for member in gang.members if (one := _told(member)) is not None}
    found = {uid: one.rank for uid, one in told.items()}
    if not told:
        return {}
    limit = max(len(gang.members), gang.terms.least or 0, *(one.size for one in told.values()))
    rows: dict[object, list[tuple[int, int]]] = {}
    for member in gang.members:
        if member.uid in told and member.index is not None:
            rows.setdefault(member.index.row, []).append((member.index.numbers[-1], found[member.uid]))
    held, behind = set(found.values()), -1
    for member in gang.members:
        if member.uid in told or member.index is None:
            behind = found.get(member.uid, behind)
            continue
        counted = _counted(member.index, rows.get(member.index.row, ()))
        for rank in (counted, behind + 1):
            if rank is not None and 0 <= rank < limit and rank not in held:
                found[member.uid] = behind = rank
                held.add(rank)
                break
    return found


def _counted(index: MemberIndex, row: Sequence[tuple[int, int]]) -> int | None:
    """By the nearest of its row: `number, rank`, by number."""
    at = bisect_left(row, (index.numbers[-1], -1))
    near = [(index.numbers[-1] - number, rank) for number, rank in row[max(0, at - 1) : at + 1]]
    if not near:
        return None
    behind, rank = min(near, key=lambda each: (abs(each[0]), each[0]))
    return rank + behind


def _told(member: Member) -> _Told | None:
    told = told_to(member)
    rank, size = told.get("rank"), told.get("size")
    if not isinstance(rank, int):
        return None
    return _Told(rank, size if isinstance(size, int) else 0)


def told_to(member: Member) -> Fields:
    """The GangMember that its allocation carries; nothing where it has none."""
    for claim in member.ours:
        for entry in ((claims_of.allocation(claim) or {}).get("devices") or {}).get("config") or ():
            told: Fields = (entry.get("opaque") or {}).get("parameters") or {}
            if is_gang_member(told):
                return told
    return {}

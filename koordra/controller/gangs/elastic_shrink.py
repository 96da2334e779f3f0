"""Which members of elastic gangs make room for a gang that waits. Pure.

Only gangs that say `koordra.io/gang-shrink: ForOthers` give up members, only those above their least, and only to a gang whose
priority is not lower. If the one that waits would fit without any of these, they are put back one by one, the earliest members of
the most urgent gang first, and every one beside which it still fits stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.annotations import Shrink
from koordra.controller.gangs.membership import Gang, Member
from koordra.placement.gang import GangAnswer, GangPlaced

MOST_TRIED: Final = 64

Fits = Callable[[frozenset[str]], GangAnswer]
"""The answer as if these claims and pods (by uid) were gone."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Members to evict, and the nodes where the gang that waits then has its places."""

    members: tuple[tuple[Gang, Member], ...]
    nodes: frozenset[str]

    def by_gang(self) -> list[tuple[Gang, tuple[Member, ...]]]:
        gangs = {gang.key: gang for gang, _ in self.members}
        return [
            (gangs[key], tuple(member for gang, member in self.members if gang.key == key))
            for key in sorted(gangs)
        ]


def victims_for(
    gang: Gang, gangs: Iterable[Gang], users: Mapping[str, Sequence[Object]], *, fits: Fits
) -> Victims | None:
    """None where shrinking does not help."""
    spare = [
        (other, member)
        for other in sorted(gangs, key=lambda each: each.urgency)
        if other.key != gang.key and _may_shrink(other) and other.urgency[0] >= gang.urgency[0]
        for member in _spare(other)
    ]
    if not spare:
        return None
    answer = fits(_gone(spare, users))
    if not isinstance(answer, GangPlaced):
        return None
    gone = list(spare)
    for entry in spare[:MOST_TRIED]:
        rest = [other for other in gone if other is not entry]
        without = fits(_gone(rest, users))
        if rest and isinstance(without, GangPlaced):
            gone, answer = rest, without
    return Victims(tuple(gone), frozenset(placed.node for placed in answer.members))


def _may_shrink(gang: Gang) -> bool:
    return gang.terms.shrink is Shrink.FOR_OTHERS and bool(gang.committed)


def _spare(gang: Gang) -> list[Member]:
    """Members that run beyond the least: the last ones."""
    running = [member for member in gang.members if member.is_bound]
    kept = max(0, (gang.terms.least or len(running)) - gang.done)
    return [member for member in running[kept:] if member.ours]


def _gone(entries: Iterable[tuple[Gang, Member]], users: Mapping[str, Sequence[Object]]) -> frozenset[str]:
    members = [member for _, member in entries]
    pods = {member.uid for member in members}
    claims = {
        objects.uid(claim)
        for member in members
        for claim in member.ours
        if {objects.uid(pod) for pod in users.get(objects.key(claim), ())} <= pods
    }
    return frozenset(pods | claims)

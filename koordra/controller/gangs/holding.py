"""Members that a quota holds (legacy/holds) are not planned; where too few are left, the gang waits as a whole.

The count of the quota knows whom a gang cannot do without (`wholes`), so that it holds all of them or few enough. Pure, but for `tell`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.controller.gangs.stages import Stage, Standing
from koordra.controller.snapshot import PodClaims
from koordra.controller.working import Working

QUOTA_EXCEEDED: Final = "QuotaExceeded"


def wholes(standings: Mapping[str, Standing]) -> dict[str, tuple[str, int]]:
    """Of members that find places together or not at all, by uid: their gang, and how many of them it can do without."""
    return {
        member.uid: (key, len(standing.plan) - standing.needed)
        for key, standing in standings.items()
        if standing.stage in (Stage.WAITING, Stage.SHORT)
        for member in standing.plan
    }


def without_held(standing: Standing, beyond_quota: Mapping[str, str]) -> Standing:
    """The members that may have devices; nobody where they are too few, or where some are not counted yet."""
    words = [beyond_quota.get(member.uid) for member in standing.plan]
    if all(why is None for why in words):
        return standing
    free = tuple(member for member, why in zip(standing.plan, words, strict=True) if why is None)
    return replace(standing, plan=() if "" in words or len(free) < standing.needed else free)


def tell_held(standing: Standing, beyond_quota: Mapping[str, str], *, working: Working) -> str:
    """Tells the members that are held; the words for the gang, "" where nothing is known yet."""
    held: Iterable[tuple[PodClaims, str]] = (
        (member.claims, why)
        for member in standing.plan
        if member.claims is not None and (why := beyond_quota.get(member.uid))
    )
    said = ""
    for claims, why in held:
        tell(claims, why, working=working)
        said = said or why
    return said


def tell(member: PodClaims, why: str, *, working: Working) -> None:
    """On each of its claims that waits."""
    for claim in member.pending:
        working.announce.waiting(claim, (member.pod,), (Reason(None, None, None, QUOTA_EXCEEDED, why),))

"""Members that a quota holds (legacy/quota_enforcement) are not planned; where too few are left, the gang waits as a whole.

The count of the quota knows whom a gang cannot do without (`wholes`), so that it holds all of them or few enough. Pure, but for `tell`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.gangs.phase import GangStatus, Phase

QUOTA_EXCEEDED: Final = "QuotaExceeded"


def wholes(statuses: Mapping[str, GangStatus]) -> dict[str, tuple[str, int]]:
    """Of members that find places together or not at all, by uid: their gang, and how many of them it can do without."""
    return {
        member.uid: (key, len(status.plan) - status.needed)
        for key, status in statuses.items()
        if status.phase in (Phase.WAITING, Phase.BELOW_MIN)
        for member in status.plan
    }


def without_held(status: GangStatus, beyond_quota: Mapping[str, str]) -> GangStatus:
    """The members that may have devices; nobody where they are too few, or where some are not counted yet."""
    words = [beyond_quota.get(member.uid) for member in status.plan]
    if all(why is None for why in words):
        return status
    free = tuple(member for member, why in zip(status.plan, words, strict=True) if why is None)
    return replace(status, plan=() if "" in words or len(free) < status.needed else free)


def tell_held(status: GangStatus, beyond_quota: Mapping[str, str], *, context: PassContext) -> str:
    """Tells the members that are held; the words for the gang, "" where nothing is known yet."""
    held: Iterable[tuple[PodClaims, str]] = (
        (member.claims, why)
        for member in status.plan
        if member.claims is not None and (why := beyond_quota.get(member.uid))
    )
    said = ""
    for claims, why in held:
        tell(claims, why, context=context)
        said = said or why
    return said


def tell(member: PodClaims, why: str, *, context: PassContext) -> None:
    """On each of its claims that waits."""
    for claim in member.pending:
        context.events.waiting(claim, (member.pod,), (Reason(None, None, None, QUOTA_EXCEEDED, why),))

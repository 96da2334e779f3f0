"""What people read about gangs: Events on the members, and figures. Pure but for what was told last.

Told once per gang and text, and again after LONGEST_PAUSE when only figures changed; on MOST_REPORTED members
at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.explain.telling import headline, in_one_line
from koordra.allocator.reasons import Reason
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase
from koordra.controller.reporting.claim_events import (
    GANG_GATHERING,
    GANG_REFUSED,
    LONGEST_MESSAGE,
    QUOTA_EXCEEDED,
    ClaimEvent,
    cut,
)
from koordra.placement.gang import GangUnplaced

GATHERING: Final = GANG_GATHERING
WAITING: Final = "GangWaiting"
"""the members are there, and do not all fit: how many do, and the nearest miss"""
REFUSED: Final = GANG_REFUSED
ROLLED_BACK: Final = "GangRolledBack"
"""devices that some members had got were given back, and why"""
STARTS: Final = "GangStarts"
"""all of the least have their devices; the gates are lifted"""
GROWS: Final = "GangGrows"
"""members above the least got devices"""
BELOW_MIN_MEMBER: Final = "GangBelowMinMember"
"""members lost their place after the start, and what happens if they find none"""
RESTARTED: Final = "GangRestarted"
"""its members were evicted, so that they start together again"""
SHRUNK: Final = "GangShrunk"
"""members above the least were evicted for another gang"""
SEAT_EXCHANGED: Final = "GangSeatExchanged"
"""what is held for a lost member is another place now, and why"""
SEAT_UNFIT: Final = "GangSeatUnfit"
"""what is held for a lost member does not do any more, and there is no other place"""

OF_PHASE: Final = {
    GangPhase.GATHERING: GATHERING,
    GangPhase.REFUSED: REFUSED,
    GangPhase.BELOW_MIN_MEMBER: BELOW_MIN_MEMBER,
    GangPhase.WAITING: WAITING,
}
LASTING: Final = frozenset(OF_PHASE.values())
"""States, which are told when they are news; the others are told when they happen."""

_QUIET: Final = frozenset({STARTS, GROWS, GATHERING, SEAT_EXCHANGED})
PAUSE: Final = 15.0
MOST_REPORTED: Final = 32


@dataclass(slots=True)
class GangEvents:
    """Not thread-safe. `_reported`, by gang key: reason and text of the state that was told last, when, and
    to whom (by uid)."""

    context: PassContext
    _reported: dict[str, tuple[str, str, float, frozenset[str]]] = field(default_factory=dict)

    def report(self, gang: Gang, reason: str, text: str) -> float | None:
        """Tell it on the gang's members; a state that was told already is told to new members only. Returns
        when to say it again, where something else was said of the same state a moment ago."""
        message = cut(f"gang {gang.key}: {text}")
        members = gang.members[:MOST_REPORTED]
        if reason in LASTING:
            news = self._news(gang.key, frozenset(member.uid for member in members), reason, message)
            members = tuple(member for member in members if member.uid in news)
        else:
            self._reported.pop(gang.key, None)
        if members:
            pods = tuple(member.pod for member in members)
            self.context.events.report(ClaimEvent(reason, message, pods, warning=reason not in _QUIET))
        before = self._reported.get(gang.key)
        return before[2] + PAUSE if before is not None and before[:2] != (reason, message) else None

    def forget(self, key: str) -> None:
        self._reported.pop(key, None)

    def _news(self, key: str, uids: frozenset[str], reason: str, message: str) -> frozenset[str]:
        """To whom of these the state is news."""
        before, now = self._reported.get(key), self.context.clock()
        if before is not None and before[0] == reason and (before[1] == message or now < before[2] + PAUSE):
            if uids - before[3] or before[1] == message:
                self._reported[key] = (reason, before[1], before[2], uids)
            return uids - before[3]
        self._reported[key] = (reason, message, now, uids)
        return uids


def nearest_miss(answer: GangUnplaced) -> str:
    """What the first member without a place lacks; empty where the answer does not say."""
    for key in sorted(answer.reasons):
        reasons = answer.reasons[key]
        if reasons:
            return f"; {key}: {headline(reasons)}: {in_one_line(reasons, most=LONGEST_MESSAGE)}"
    return ""


def tell_beyond_quota(
    members: Iterable[Member], beyond_quota: Mapping[str, str], *, context: PassContext
) -> str:
    """Tells the members that a quota holds; the words for the gang, "" where nothing is known yet."""
    said = ""
    for member in members:
        why = beyond_quota.get(member.uid)
        if why and member.claims is not None:
            tell_quota_exceeded(member.claims, why, context=context)
            said = said or why
    return said


def tell_quota_exceeded(member: PodClaims, why: str, *, context: PassContext) -> None:
    """On each of its claims that waits."""
    for claim in member.pending:
        context.events.waiting(claim, (member.pod,), (Reason(None, None, None, QUOTA_EXCEEDED, why),))


def number_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

"""What people read about gangs: Events on the members, and figures. Pure but for what was told last.

GangGathering       not all members that it needs are there
GangWaiting         they are, and do not all fit: how many do, and the nearest miss
GangRefused         its terms cannot be meant, or a member is not held by the gate
GangRolledBack      devices that some members had got were given back, and why
GangStarts          all of the least have their devices; the gates are lifted
GangGrows           members above the least got devices
GangBelowMinMember  members lost their place after the start, and what happens if they find none
GangRestarted       its members were evicted, so that they start together again
GangShrunk          members above the least were evicted for another gang

Told once per gang and text, and again after LONGEST_PAUSE when only figures changed; on MOST_TOLD members at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import Phase
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.placement.gang import GangUnplaced

GATHERING: Final = "GangGathering"
WAITING: Final = "GangWaiting"
REFUSED: Final = "GangRefused"
ROLLED_BACK: Final = "GangRolledBack"
STARTS: Final = "GangStarts"
GROWS: Final = "GangGrows"
BELOW_MIN_MEMBER: Final = "GangBelowMinMember"
RESTARTED: Final = "GangRestarted"
SHRUNK: Final = "GangShrunk"

OF_PHASE: Final = {
    Phase.GATHERING: GATHERING,
    Phase.REFUSED: REFUSED,
    Phase.BELOW_MIN_MEMBER: BELOW_MIN_MEMBER,
    Phase.WAITING: WAITING,
}
LASTING: Final = frozenset(OF_PHASE.values())
"""States, which are told when they are news; the others are told when they happen."""
QUOTA_EXCEEDED: Final = "QuotaExceeded"

_QUIET: Final = frozenset({STARTS, GROWS, GATHERING})
PAUSE: Final = 15.0
MOST_TOLD: Final = 32


class GangEvents:
    """By gang key. Not thread-safe."""

    def __init__(self, tell: Callable[[ClaimEvent], None], *, clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._told: dict[str, tuple[str, str, float, frozenset[str]]] = {}

    def report(self, gang: Gang, reason: str, text: str) -> float | None:
        """Tell it on the gang's members; a state that was told already is told to new members only. Returns when to say it again, where
        something else was said of the same state a moment ago."""
        about = tuple(member.pod for member in gang.members[:MOST_TOLD])
        message = cut(f"gang {gang.key}: {text}")
        if reason in LASTING:
            about = self._for_whom_it_is_news(gang, reason, message)
        else:
            self._told.pop(gang.key, None)
        if about:
            self._tell(ClaimEvent(reason, message, about, warning=reason not in _QUIET))
        told = self._told.get(gang.key)
        return told[2] + PAUSE if told is not None and told[:2] != (reason, message) else None

    def forget(self, key: str) -> None:
        """The gang is gone."""
        self._told.pop(key, None)

    def _for_whom_it_is_news(self, gang: Gang, reason: str, message: str) -> tuple[dict[str, object], ...]:
        members = gang.members[:MOST_TOLD]
        uids = frozenset(member.uid for member in members)
        before, now = self._told.get(gang.key), self._clock()
        if before is None or before[0] != reason:
            fresh = uids
        elif before[1] == message or now < before[2] + PAUSE:
            fresh = uids - before[3]
            if fresh or before[1] == message:
                self._told[gang.key] = (reason, before[1], before[2], uids)
            return tuple(member.pod for member in members if member.uid in fresh)
        else:
            fresh = uids
        self._told[gang.key] = (reason, message, now, uids)
        return tuple(member.pod for member in members if member.uid in fresh)


def nearest_miss(answer: GangUnplaced) -> str:
    """What the first member without a place lacks; empty where the answer does not say."""
    for key in sorted(answer.reasons):
        reasons = answer.reasons[key]
        if reasons:
            headline = claim_events.nearest_miss(reasons)
            return f"; {key}: {headline}: {claim_events.explain(reasons, headline=headline)}"
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

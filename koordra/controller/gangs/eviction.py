"""Members that are evicted: for their own gang, so that it starts together again, or for another one that
waits.

Restart, of started gangs that lack members for too long:

    fewer than the least run ─▶ the timeout runs ─▶ Keep: told
                                                 └▶ Restart: evicted, again and again while some may not end
                                                    yet ─▶ after a while places are looked for once more

Shrink: only gangs that say `koordra.io/gang-shrink: ForOthers` give up members, only those above their least,
and only to a gang whose priority is not lower. If the one that waits would fit without any of these, they are
put back (`in_the_way`), the earliest members of the most urgent gang first, and every one beside which it
still fits stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.claims import Users
from koordra.controller.gangs import commit, events
from koordra.controller.gangs.declared.disruption import DisruptionMode
from koordra.controller.gangs.declared.terms import Shrink, TimeoutPolicy
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.expected.leader_first import may_go_first
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.seats.device_holds import DeviceHolds
from koordra.effort import is_spent
from koordra.placement.gang import GangAnswer, GangPlaced

EVICT_PAUSE: Final = 5.0
EVICT_PATIENCE: Final = 60.0

Fits = Callable[[frozenset[str]], GangAnswer]
"""The answer as if these claims and pods (by uid) were gone."""
_Victim = TypeVar("_Victim")


@dataclass(slots=True)
class GangRestarts:
    """Which gangs are BelowMinMember, since when, and which are being restarted. What is not in the API
    begins anew with a new process."""

    context: PassContext
    events: GangEvents
    holds: DeviceHolds
    _below: dict[str, float] = field(default_factory=dict)
    _restarting: dict[str, float] = field(default_factory=dict)
    _again: dict[str, float] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self._restarting

    def forget(self, key: str) -> None:
        """The gang is gone, or did not start yet."""
        for table in (self._below, self._restarting, self._again):
            table.pop(key, None)

    def sync(self, gang: Gang, now: float) -> float | None:
        """A committed gang that lacks members: restart it when its time is over. Returns when to look again,
        None: when it changes."""
        key, committed = gang.key, gang.committed
        if not committed:
            self.forget(key)
            return None
        if key in self._restarting:
            return self._go_on(gang, now)
        running = sum(member.is_bound for member in committed) + gang.others
        running += sum(member.is_held and member.is_placed for member in gang.members)  # their turn comes
        placed = any(claims_of.is_allocated(claim) for member in committed for claim in member.ours)
        holding = placed or (any(member.is_bound for member in committed) and not may_go_first(gang))
        if (
            running >= (gang.terms.least or 0)
            or all(member.is_bound for member in gang.members)
            or not holding
        ):
            self._below.pop(key, None)
            return None
        since = self._below.setdefault(key, now)
        if now < since + gang.terms.timeout:
            return since + gang.terms.timeout
        text = f"{running} of {gang.terms.least} members run, for {gang.terms.timeout:.0f} s"
        if gang.terms.policy is TimeoutPolicy.KEEP:
            kept = f"{text}; those that run are kept (policy Keep)"
            self.events.report(gang, events.BELOW_MIN_MEMBER, kept)
            return None
        why = f"{text}: all of them are evicted, to start together again"
        self.events.report(gang, events.RESTARTED, why)
        self._restarting[key] = now + EVICT_PATIENCE
        return self._restart(gang, now)

    def _go_on(self, gang: Gang, now: float) -> float:
        """Evict those that may end by now. Where some may not, the gang tries to complete itself for another
        timeout."""
        if now < self._restarting[gang.key]:
            return self._restart(gang, now)
        del self._restarting[gang.key]
        self._again.pop(gang.key, None)
        self._below[gang.key] = now
        text = f"{events.number_of(len(gang.committed), 'member')} could not be evicted for {EVICT_PATIENCE:.0f} s"
        self.events.report(gang, events.BELOW_MIN_MEMBER, f"{text}: places beside them are looked for again")
        return now + gang.terms.timeout

    def _restart(self, gang: Gang, now: float) -> float:
        """A pass may come every moment; a large gang is not asked to end in each of them."""
        if now >= self._again.get(gang.key, now):
            self.holds.give_up(gang.key, {member.uid for member in gang.committed})
            commit.evict([member.pod for member in gang.committed], context=self.context)
            self._again[gang.key] = now + EVICT_PAUSE
        return self._again[gang.key]


def victims_for(
    gang: Gang, gangs: Iterable[Gang], users: Users, *, fits: Fits
) -> tuple[list[tuple[Gang, Member]], frozenset[str]] | None:
    """Members to evict, and the nodes where the gang that waits then has its places; None where shrinking
    does not help."""
    able = [
        (other, members) for other in gangs if other.key != gang.key and (members := spare_members(other))
    ]
    spare = [
        (other, member)
        for other, members in sorted(able, key=lambda each: each[0].urgency)
        if other.urgency[0] >= gang.urgency[0]
        for member in members
    ]
    answer = fits(_gone(spare, users)) if spare else None
    if not isinstance(answer, GangPlaced):
        return None
    gone, answer = in_the_way(spare, answer, fits=lambda rest: fits(_gone(rest, users)) if rest else None)
    return gone, frozenset(placed.node for placed in answer.members)


def in_the_way(
    gone: Sequence[_Victim], answer: GangPlaced, *, fits: Callable[[Sequence[_Victim]], GangAnswer | None]
) -> tuple[list[_Victim], GangPlaced]:
    """Who of these has to go, and the gang's places then. Put back in the order given: who of the first half
    may stay, all at once where that goes, then of the other half. So whoever may stay beside those before him
    stays, as if each had been put back alone, and a few who have to go cost a few questions, however many are
    asked about. `answer`: the places without all of them; `fits`: the answer if only these are gone, None
    where that is known not to do.

    There is no bound of its own: each question counts as what a gang may cost a pass (`koordra.effort`), and
    once that is spent nothing fits, so those go who were not asked about yet."""
    left, parts = list(gone), [list(gone)] if gone else []
    while parts:
        part = parts.pop()
        stay = set(map(id, part))
        rest = [one for one in left if id(one) not in stay]
        without = fits(rest)
        if isinstance(without, GangPlaced):
            left, answer = rest, without
        elif len(part) > 1 and not is_spent():
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
    return left, answer


def spare_members(gang: Gang) -> list[Member]:
    """Members that run beyond the least, and make room for others: the last ones."""
    if gang.terms.shrink is not Shrink.FOR_OTHERS:
        return []
    return [member for member in beyond_least(gang) if member.ours]


def beyond_least(gang: Gang) -> tuple[Member, ...]:
    """Members of a started gang that run and without which it has its least: the last ones. Nobody where its
    group says that all end together."""
    if gang.terms.disruption.mode is DisruptionMode.ALL or not gang.committed:
        return ()
    running = [one for one in gang.members if one.is_bound and not gang.is_without_claims(one)]
    most = len(running) - max(0, (gang.terms.least or len(running)) - gang.others)
    needed = {role: sum(one.uid in role.pods for one in running) - role.least for role in gang.terms.roles}
    found: list[Member] = []
    for member in running[::-1]:
        roles = [role for role in needed if member.uid in role.pods]
        if len(found) < most and all(needed[role] > 0 for role in roles):
            found.append(member)
            for role in roles:
                needed[role] -= 1
    return tuple(found[::-1])


def evicted_with(gang: Gang) -> dict[str, tuple[Object, ...]]:
    """Whom each member, by uid, is evicted with: all that were let go, nobody while the gang is not started
    yet; itself, where it is beyond the least and the group says that its pods end one by one."""
    is_single = gang.terms.disruption.mode is DisruptionMode.SINGLE
    alone = {member.uid for member in beyond_least(gang)} if is_single else set()
    started = tuple(member.pod for member in gang.committed)
    return {
        member.uid: (member.pod,) if member.uid in alone else started if member.is_committed else ()
        for member in gang.members
    }


def _gone(entries: Iterable[tuple[Gang, Member]], users: Users) -> frozenset[str]:
    members = [member for _, member in entries]
    pods = {member.uid for member in members}
    claims = {
        objects.uid(claim)
        for member in members
        for claim in member.ours
        if {objects.uid(pod) for pod in users.get(objects.key(claim), ())} <= pods
        and not claims_of.outlives_pods(claim)
    }
    return frozenset(pods | claims)

"""What is to be done next for a gang. Pure: the API objects decide, so a controller that starts anew goes on
from here.

Not committed (no gate of the gang is lifted):

    phase                what is there                               what is done
    -------------------  ------------------------------------------  -----------------------------------------
    Refused              invalid terms, or a member that is not      told; nothing is allocated
                         gated
    Unconfirmed          a gate may have been lifted, no answer      the pod is written anew, so that the
                         came, and not enough members are placed     write cannot come late; then it is one of
                         any more                                    the others
    Gathering            fewer members than the least are there and  told; what is allocated is given back
                         plannable, and nobody goes first
    Ready                enough members have all their devices, on   the gates are lifted
                         nodes that exist; those that are to come
                         have places that are held
    PartiallyAllocated   some claims have devices, too few members   given back: a write was cut off
                         all of them
    Waiting              nothing is allocated                        planned, all or none of the least
    Growing              the least are done, or run past their gate  planned one by one, after everybody else

Committed (a gate was lifted, or a member has its node):

    BelowMinMember       fewer members than the least have devices,  those are planned together; after the
                         and some wait                               timeout the policy decides
    Growing              the least are there, others wait            planned one by one, after everybody else
    Whole                nobody waits                                nothing

Where roles start one after the other (koordra.io/gang-start-after) all have their devices, and gates are
lifted as those before are Ready. Where members are made only after others have started (expected/), they are
planned with these, and count as placed while places are held for them.

A gang holds devices across passes only when Ready (all of the least are written) or committed. So of two
gangs that do not fit together one is whole and the other has nothing. What is left is a gang that lost
members after its commit: refused by the scheduler, on a lost node, deleted. It is BelowMinMember, comes
before everything of its priority, and after its timeout gives up all it has (policy Restart). So nobody waits
for ever for somebody who waits.

Members beyond a quota (quota/) are not planned; where too few are left, the gang waits as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Users
from koordra.controller.gangs.declared.annotations import GANG_BY, GANG_START_AFTER, starts_after
from koordra.controller.gangs.declared.gang_by import WHOLE
from koordra.controller.gangs.declared.member_index import role_of_pod
from koordra.controller.gangs.declared.workload_kind import late_words

if TYPE_CHECKING:
    from koordra.controller.gangs.membership import Gang, Member


class GangPhase(StrEnum):
    REFUSED = "Refused"
    UNCONFIRMED = "Unconfirmed"
    GATHERING = "Gathering"
    READY = "Ready"
    PARTIALLY_ALLOCATED = "PartiallyAllocated"
    WAITING = "Waiting"
    BELOW_MIN_MEMBER = "BelowMinMember"
    GROWING = "Growing"
    WHOLE = "Whole"


_IDLE: Final = frozenset(
    {GangPhase.REFUSED, GangPhase.GATHERING, GangPhase.PARTIALLY_ALLOCATED, GangPhase.WAITING}
)
"""Of gangs that need nothing of what they hold."""


@dataclass(frozen=True, slots=True)
class GangStatus:
    """`give_back`: claims to free now, `release`: and the places that are held for members to come. `ungate`:
    members to let go now. `plan`: members to find places for, `needed`: how many of them at the least;
    `coming`: members to hold places for. `doubts`: members whose ungating has
    to be ruled out. `holds`: of one that needs nothing, whether some of its claims have devices."""

    phase: GangPhase
    give_back: tuple[Object, ...] = ()
    release: bool = False
    ungate: tuple[Member, ...] = ()
    plan: tuple[Member, ...] = ()
    needed: int = 0
    coming: tuple[Member, ...] = ()
    doubts: tuple[Member, ...] = ()
    why: str = ""
    holds: bool = False


def status_of(
    gang: Gang,
    *,
    nodes: Collection[str],
    users: Users,
    idle: frozenset[str] = frozenset(),
) -> GangStatus:
    """`nodes` that exist; `users`: claim key -> the pods that use it; `idle`: uids of members of other gangs
    that hold devices for nothing either."""
    if gang.committed:
        return _committed(gang)
    found = _uncommitted(gang, nodes, users, idle)
    doubts = tuple(member for member in gang.held if member.in_doubt)
    if doubts and found.phase is not GangPhase.READY:
        return GangStatus(GangPhase.UNCONFIRMED, doubts=doubts, why=found.why)
    holds = any(claims_of.is_allocated(claim) for member in gang.held for claim in member.ours)
    return replace(found, holds=holds)


def statuses_of(
    gangs: Mapping[str, Gang],
    alone: dict[str, GangStatus],
    changed: Iterable[str],
    *,
    nodes: Collection[str],
    users: Users,
) -> dict[str, GangStatus]:
    """By key. A claim that two gangs share is kept by neither while both of them wait. `alone`: the statuses
    without regard to other gangs, which are brought up to date for those that have changed."""
    for key in changed:
        alone[key] = status_of(gangs[key], nodes=nodes, users=users)
    found = dict(alone)
    waiting = [key for key, status in alone.items() if status.phase in _IDLE]
    holding = [gangs[key] for key in waiting if alone[key].holds]
    idle = frozenset(member.uid for key in waiting for member in gangs[key].held) if holding else frozenset()
    for gang in holding:
        if len(takeable(gang, users, idle)) > len(takeable(gang, users)):
            found[gang.key] = status_of(gang, nodes=nodes, users=users, idle=idle)
    return found


def within_quota(gang: Gang, status: GangStatus, beyond_quota: Mapping[str, str]) -> GangStatus:
    """Without the members that a quota holds (by uid, with the words); nobody where they are too few, of the
    gang or of a role, or where some are not counted yet."""
    words = [beyond_quota.get(member.uid) for member in status.plan]
    if all(why is None for why in words):
        return status
    free = tuple(member for member, why in zip(status.plan, words, strict=True) if why is None)
    held = frozenset(member.uid for member in status.plan) - {member.uid for member in free}
    few = len(free) < status.needed or any(
        role.lacks({member.uid for member in gang.members} - held) for role in gang.terms.roles if role.pods
    )
    return replace(status, plan=() if "" in words or few else free)


def _uncommitted(gang: Gang, nodes: Collection[str], users: Users, idle: frozenset[str]) -> GangStatus:
    touched = takeable(gang, users, idle)
    why = _refused_because(gang)
    if why:
        return GangStatus(GangPhase.REFUSED, give_back=touched, release=bool(gang.unused), why=why)
    ready = tuple(member for member in gang.held if member.may_be_planned)
    least, others, coming = gang.terms.least, gang.others, gang.coming
    short = _short_role(gang, (*ready, *coming))
    if least is None or len(ready) + others + len(coming) < least or short:
        why, release = _lacking(gang, len(ready) + others, short), bool(gang.unused)
        return GangStatus(GangPhase.GATHERING, give_back=touched, release=release, why=why)
    placed = tuple(member for member in ready if member.is_placed)
    lost = sorted(node for member in placed for node in places(member) if node not in nodes)
    have = len(placed) + others
    have += max(gang.kept, min(gang.unused, least - have)) if placed else 0
    enough = have >= least and not _short_role(gang, (*placed, *coming))
    if enough and not lost and (touched or len(placed) == len(ready)):
        return GangStatus(GangPhase.READY, ungate=_startable(gang, placed))
    if touched or gang.unused:
        why = f"node {lost[0]} is gone" if lost else "not all of its members could be written"
        release = bool(gang.unused)
        return GangStatus(GangPhase.PARTIALLY_ALLOCATED, give_back=touched, release=release, why=why)
    plan = _at_most(gang, ready, others, ())
    if others >= least and not _missing_in_roles(gang, [], plan):
        return GangStatus(GangPhase.GROWING, plan=plan, needed=1)
    needed = max(1, least - others - len(coming))
    return GangStatus(GangPhase.WAITING, plan=plan, needed=needed, coming=coming)


def _committed(gang: Gang) -> GangStatus:
    committed = gang.committed
    placed = tuple(member for member in gang.held if member.may_be_planned and member.is_placed)
    waiting = [
        member for member in (*committed, *gang.held) if member.may_be_planned and not member.is_placed
    ]
    have = [*(member for member in committed if member.is_bound or member.is_placed), *placed]
    present, least, ungate = len(have) + gang.others, gang.terms.least or 0, _startable(gang, placed)
    plan = _at_most(gang, waiting, present, have)
    needed = max(least - present, _missing_in_roles(gang, have, plan))
    if needed > 0 and waiting:
        return GangStatus(GangPhase.BELOW_MIN_MEMBER, ungate=ungate, plan=plan, needed=needed)
    if plan:
        return GangStatus(GangPhase.GROWING, ungate=ungate, plan=plan, needed=1)
    return GangStatus(GangPhase.WHOLE, ungate=ungate)


def turn_of(gang: Gang, member: Member) -> str:
    """For what a member waits that has its devices; empty where for nothing."""
    if not gang.terms.order or not (member.is_held and member.is_placed and member.may_be_planned):
        return ""
    if _startable(gang, (member,)):
        return ""
    roles = objects.annotations_of(member.pod).get(GANG_START_AFTER, "")
    return f"it has its devices, and starts once {roles} is Ready ({GANG_START_AFTER})"


def _startable(gang: Gang, placed: tuple[Member, ...]) -> tuple[Member, ...]:
    """Those of them whose turn has come: of the roles that they start after somebody is Ready, or has ended
    well, and everybody who has devices; or others of their own have started."""
    order = gang.terms.order
    if not order:
        return placed
    ready = gang.ended | {member.uid for member in gang.members if objects.pod_is_ready(member.pod)}
    without = {member.uid for member in gang.members if not (member.is_committed or member.is_placed)}
    there = ready | without
    started = {order[member.uid] for member in gang.committed if member.uid in order}
    may = {
        before: before in started or (before <= there and not before.isdisjoint(ready))
        for before in {order[member.uid] for member in placed if member.uid in order}
    }
    return tuple(member for member in placed if member.uid not in order or may[order[member.uid]])


def _short_role(gang: Gang, have: Sequence[Member]) -> str:
    """What the first role that has too few of these lacks."""
    if not gang.terms.roles:
        return ""
    uids = {member.uid for member in have}
    for role in gang.terms.roles:
        missing = role.lacks(uids)
        if (
            missing
            and not role.pods
            and any(role.name in starts_after(objects.annotations_of(one.pod)) for one in gang.members)
        ):
            there = ", ".join(sorted({role_of_pod(member.pod) for member in gang.members} - {""})) or "none"
            return f"of role {role.name[:60]!r}, which {GANG_START_AFTER} names, nobody (roles that are there: {there})"
        if missing:
            return f"of role {role.name} {role.least - missing} of {role.least} members"
    return ""


def _missing_in_roles(gang: Gang, have: Sequence[Member], plan: Sequence[Member]) -> int:
    """Of those who are planned, how many the roles need that have too few."""
    if not gang.terms.roles:
        return 0
    uids, coming = {member.uid for member in have}, {member.uid for member in plan}
    return sum(min(role.lacks(uids), len(role.pods & coming)) for role in gang.terms.roles)


def takeable(gang: Gang, users: Users, idle: frozenset[str] = frozenset()) -> tuple[Object, ...]:
    """Allocated claims of members that are held, that nobody has reserved and nobody but them and the idle
    waits for."""
    inside = frozenset(member.uid for member in gang.held) | idle
    return claims_of.unused((claim for member in gang.held for claim in member.ours), inside, users)


def places(member: Member) -> set[str]:
    """The nodes that the member's allocated claims pin it to."""
    return {node for claim in member.ours if (node := claims_of.node_of(claim)) is not None}


def _at_most(
    gang: Gang, members: Sequence[Member], present: int, have: Sequence[Member]
) -> tuple[Member, ...]:
    """As many as the gang and each role may have beside those that it has."""
    for role in gang.terms.roles:
        if role.most is not None:
            left = max(0, role.most - sum(member.uid in role.pods for member in have))
            inside = [member for member in members if member.uid in role.pods]
            beyond = {member.uid for member in inside[left:]}
            members = [member for member in members if member.uid not in beyond]
    if gang.terms.most is None:
        return tuple(members)
    return tuple(members[: max(0, gang.terms.most - present)])


def _refused_because(gang: Gang) -> str:
    if gang.terms.problems:
        return "; ".join(gang.terms.problems)
    ungated = gang.ungated
    if not ungated:
        return ""
    more = f" and {len(ungated) - 1} more are" if len(ungated) > 1 else " is"
    return (
        f"pod {ungated[0].key}{more} not held by the scheduling gate koordra.io/joint-allocation, so it could start without the "
        "others: delete it, and see that koordra's webhook is reached when it is made anew"
    )


def _lacking(gang: Gang, count: int, short: str) -> str:
    least = gang.terms.least
    if least is None:
        return f"how many members it needs is not known: there is no pod group {gang.ref.key}"
    foreign = sum(1 for member in gang.held if not member.may_be_planned)
    wait = "waits" if foreign == 1 else "wait"
    waiting = f", {foreign} more {wait} for another gate or for a claim" if foreign else ""
    apart = (
        f"; its replicas are gangs of their own ({GANG_BY}: {WHOLE} joins them)" if gang.ref.replica else ""
    )
    there = f"{count} of {least} members are there" + (f", {short}" if short else "")
    return f"{there}{waiting}{apart}{_comes_late(gang)}"


def _comes_late(gang: Gang) -> str:
    """Why those who are missing may wait for those who are there. Of an MPIJob only if it has no launcher."""
    if gang.terms.start is not None or any(
        one.index and one.index.role == "launcher" for one in gang.members
    ):
        return ""
    return next((f"; {words}" for member in gang.members if (words := late_words(member.pod))), "")

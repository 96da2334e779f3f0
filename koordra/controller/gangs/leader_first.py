"""Members that are not made before those that are there have started: places are kept for them, so that their
leaders can go first. Pure.

Whoever makes a job's pods may wait for some of them:

    LeaderWorkerSet    workers come after the leader is Ready (startupPolicy LeaderReady) or scheduled
                       (exclusive-topology); else at once
    JobSet             pods beside the first of a Job after that is scheduled (exclusive-topology); Jobs after
                       those that they depend on (dependsOn, startupPolicy InOrder)
    StatefulSet        one after the other, but with podManagementPolicy Parallel

Held until all of them are there, such pods would wait for ever; let go without the others, two leaders of
different groups could start where there is room for one group, and wait for their workers for ever. So the
gang is planned with the members that will come, which are taken to ask what those ask that are there, and
their places are held (seats/) before the first gate is lifted.

That is done where `koordra.io/gang-start: LeaderFirst` says so, where pods bear the annotation
exclusive-topology, and for leaders of a LeaderWorkerSet that have been alone for LONELY seconds: its pods do
not tell the startupPolicy. Not where nothing can be held: with `koordra.io/gang-hold: 0`, or where those that
are there only have claims that others have too. Leaders without any claims go, and nothing is held for who
comes: they have no devices that others would wait for, and their workers are then placed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.gangs.declared.member_index import MemberIndex
from koordra.controller.gangs.declared.terms import Start
from koordra.controller.gangs.declared.workload_kind import LWS, kind_of, told
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.seats.recorded import Kept, seat_name

LONELY: Final = 10.0
_EXCLUSIVE: Final = (f"{LWS}exclusive-topology", "alpha.jobset.sigs.k8s.io/exclusive-topology")
_NEVER: Final = float("inf")


class Coming(NamedTuple):
    """`members` that are expected. `at`: when some may be, as a POSIX timestamp, if nobody comes until
    then."""

    members: tuple[Member, ...] = ()
    at: float | None = None


def coming(gang: Gang, now: float) -> Coming:
    """Those that a gang lacks which is to start without them. `now`: a POSIX timestamp."""
    ready = [member for member in gang.held if member.may_be_planned]
    short = (gang.terms.least or 0) - len(ready) - gang.others
    samples = [member for member in ready if made_claims(member)]
    if not any(member.ours for member in ready):
        samples = ready
    if gang.committed or gang.terms.problems or not gang.terms.hold or not samples or short <= 0:
        return Coming()
    at = _goes_first_at(gang, ready)
    if at > now:
        return Coming(at=None if at == _NEVER else at)
    places = _places(samples)
    return Coming(tuple(_to_come(*next(places), number) for number in range(1, short + 1)))


def awaiting(gang: Gang, kept: Kept, now: float) -> tuple[Gang, float | None]:
    """The gang with those who come, and what is kept for them; and when some may come, if nobody does."""
    found = coming(gang, now)
    named = sum(
        seat_name(member) in kept.names or not member.ours
        for member in found.members
        if member.index is not None or not member.ours
    )
    return replace(gang, coming=found.members, kept=named, unused=kept.unused), found.at


def may_go_first(gang: Gang) -> bool:
    """Whether some of its members may start before the others are there."""
    if gang.terms.start is not None:
        return gang.terms.start is Start.LEADER_FIRST
    kinds = [kind_of(member.pod) for member in gang.members]
    return _is_exclusive(gang.members) or all(kind is not None and kind.leads for kind in kinds)


def _goes_first_at(gang: Gang, ready: Sequence[Member]) -> float:
    if not may_go_first(gang):
        return _NEVER
    if gang.terms.start is not None or _is_exclusive(ready):
        return 0.0
    if any(member.index is None or member.index.numbers[-1] for member in ready):
        return _NEVER
    made = [str(objects.metadata(member.pod).get("creationTimestamp") or "") for member in ready]
    return datetime.fromisoformat(max(made)).timestamp() + LONELY if all(made) else _NEVER


def _is_exclusive(members: Sequence[Member]) -> bool:
    return any(told(member.pod, name) for member in members for name in _EXCLUSIVE)


def made_claims(member: Member) -> tuple[Object, ...]:
    """Those of koordra's that were made for the pod alone, and will be for one like it."""
    return tuple(claim for claim in member.ours if claims_of.is_made_for(claim, member.uid))


def _places(samples: Sequence[Member]) -> Iterator[tuple[Member, MemberIndex | None]]:
    """A member that is there and the position of one like it that is not, without end: the first number that
    is free in each row, row by row, then the next ones."""
    rows: dict[object, tuple[Member, set[int]]] = {}
    for member in samples:
        index = member.index
        _, numbers = rows.setdefault(index and index.row, (member, set()))
        numbers |= set(index.numbers[-1:]) if index is not None else set()
    for number in count():
        for member, numbers in rows.values():
            if number not in numbers:
                yield member, member.index and member.index.at(number)


def _to_come(like: Member, index: MemberIndex | None, number: int) -> Member:
    """A member like this one, with claims like its own."""
    suffix = f"-to-come-{number}"
    pod = _renamed(like.pod, suffix)
    claims = tuple({**_renamed(claim, suffix), "status": {}} for claim in made_claims(like))
    return Member(pod, PodClaims(pod, claims), index)


def _renamed(obj: Object, suffix: str) -> Object:
    metadata = objects.metadata(obj)
    told = {name: f"{metadata.get(name)}{suffix}" for name in ("name", "uid")}
    return {**obj, "metadata": {**metadata, **told}}

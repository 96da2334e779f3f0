"""Members that are not made before those that are there have started: places are kept for them, so that their
leaders can go first. Pure.

Whoever makes a job's pods may wait for some of them (`job_pods`). Held until all of them are there, such pods
would wait for ever; let go without the others, two leaders of different groups could start where there is
room for one group, and wait for their workers for ever. So the gang is planned with the members that will
come, and their places are held (seats/) before the first gate is lifted.

    the job can be read       those who are to come ask what their own template says, and the gang goes on as
                              soon as everybody is there whom the others' maker does not wait for
    it cannot be, or its      they are taken to ask what those ask that are there. That is done where pods
    pods are rewritten when   bear the annotation exclusive-topology, and for leaders of a LeaderWorkerSet
    they are made (shim)      that have been alone for LONELY seconds

`koordra.io/gang-start` says otherwise: LeaderFirst lets those go that are there, Together nobody. Not where
nothing can be held: with `koordra.io/gang-hold: 0`, or where of those that come nothing is known and those
that are there only have claims that others have too. Leaders without any claims go, and nothing is held for
who is unknown: they have no devices that others would wait for, and their workers are then placed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.claims import Owner
from koordra.controller.gangs.declared.gang_by import replica_of
from koordra.controller.gangs.declared.gang_ref import Source, gang_of
from koordra.controller.gangs.declared.member_index import MemberIndex, member_index_of, role_of_pod
from koordra.controller.gangs.declared.terms import Start, terms_of
from koordra.controller.gangs.declared.workload_kind import EXCLUSIVE, is_ahead, kind_of, told
from koordra.controller.gangs.expected.job_pods import Job, claim_templates, pods_of
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.seats.recorded import Kept, seat_name
from koordra.placement.holders.device_hold import Seat

LONELY: Final = 10.0
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside the gang: its `job`, None where nobody says; the DeviceClasses and pod groups."""

    job: Job | None = None
    classes: Mapping[str, Object] = field(default_factory=dict)
    pod_groups: Mapping[str, Object] = field(default_factory=dict)


NOTHING: Final = Known()


class Coming(NamedTuple):
    """`members` that are expected. `at`: when some may be, as a POSIX timestamp, if nobody comes until then.
    `like`: whose claims those are taken to have of whom nothing is known, empty where all is."""

    members: tuple[Member, ...] = ()
    at: float | None = None
    like: str = ""


def lacking(gang: Gang) -> int:
    """How many members a gang lacks that could start without them, 0 where it could not."""
    if gang.committed or gang.terms.problems or not gang.terms.hold:
        return 0
    if gang.terms.start is Start.TOGETHER:
        return 0
    ready = sum(member.may_be_planned for member in gang.held)
    return max(0, (gang.terms.least or 0) - ready - gang.others) if ready else 0


def coming(gang: Gang, now: float, known: Known = NOTHING) -> Coming:
    """Those that a gang lacks which is to start without them. `now`: a POSIX timestamp."""
    short = lacking(gang)
    if not short:
        return Coming()
    ready = [member for member in gang.held if member.may_be_planned]
    if known.job is not None:
        return _of_job(gang, ready, short, known.job, known.classes)
    samples = [member for member in ready if made_claims(member)]
    if not any(member.ours for member in ready):
        samples = ready
    at = _goes_first_at(gang, ready)
    if at > now or not samples:
        return Coming(at=None if at == _NEVER or not samples else at)
    places = _places(samples)
    found = tuple(to_come(*next(places), number) for number in range(1, short + 1))
    return Coming(found, like=samples[0].key)


def _of_job(
    gang: Gang, ready: Sequence[Member], short: int, job: Job, classes: Mapping[str, Object]
) -> Coming:
    """As its object says."""
    there = {member.index for member in gang.members}
    first: tuple[int, ...] | None = None
    missing = []
    for pod, stage in pods_of(job.obj, [member.pod for member in gang.members], least=gang.terms.least or 0):
        if _is_in(gang, pod) and not is_ahead(pod):
            first = stage if first is None else min(first, stage)
            index = member_index_of(pod)
            if index is not None and index not in there:
                missing.append((stage, index, pod))
    missing.sort(key=lambda one: one[:2])
    is_late = all(stage != first for stage, *_ in missing)
    if not missing or not (is_late or gang.terms.start is Start.LEADER_FIRST):
        return Coming()
    like, members = "", []
    for _, index, pod in missing[:short]:
        sample = next((one for one in ready if _same_role(one.index, index)), None)
        if sample is None and not _is_told(pod, job):
            sample = ready[0]
            like = sample.key
        if sample is not None:
            pod["spec"] = _spec(sample)  # as it was admitted
        claims = _claims(pod, job, classes) if sample is None else _copies(sample, pod)
        members.append(Member(pod, claims, index, like="" if sample is None else sample.uid))
    return Coming(tuple(members), like=like)


def of_seats(
    gang: Gang, seats: Mapping[int, Seat], job: Job, classes: Mapping[str, Object]
) -> dict[int, Member]:
    """Whom the job makes at the positions of these seats, which have names, where it is known what they ask;
    each with its number."""
    there = [member.pod for member in gang.members]
    rows: dict[tuple[str, str], tuple[Object, MemberIndex]] = {}
    for pod, _ in pods_of(job.obj, there, least=gang.terms.least or 0):
        if (index := member_index_of(pod)) is not None:
            rows.setdefault((str(index).rpartition("/")[0], role_of_pod(pod)), (pod, index))
    found = {}
    for number, seat in seats.items():
        row, _, position = seat.name.rpartition("/")
        known = rows.get((row, seat.role))
        if position.isdecimal() and known is not None and _is_told(known[0], job):
            like, index = known
            pod = _renamed(like, f"-to-come-{number}")
            found[number] = Member(pod, _claims(pod, job, classes), index.at(int(position)))
    return found


def _is_in(gang: Gang, pod: Object) -> bool:
    """Pods that say nothing are in the group that others put their job's pods in."""
    named = gang_of(pod)
    if named is not None or gang.ref.source is Source.KOORDRA:
        return named == gang.ref
    return replica_of(pod, default=False).values == gang.ref.replica


def _same_role(index: MemberIndex | None, other: MemberIndex) -> bool:
    return index is not None and (index.role, index.apart) == (other.role, other.apart)


def _is_told(pod: Object, job: Job) -> bool:
    """Whether its template says all that it asks: its claims are known, and it is not one that asks for
    devices in other ways, which are claims once it is there."""
    containers = objects.spec_of(pod).get("containers") or ()
    asked = [name for one in containers for name in objects.fields(one.get("resources")).get("limits") or ()]
    is_rewritten = any("/" in name for name in asked)
    return not is_rewritten and all(name in job.claim_templates for name in claim_templates(pod).values())


def _claims(pod: Object, job: Job, classes: Mapping[str, Object]) -> PodClaims:
    found = list[tuple[Object, Owner]]()
    for entry, name in claim_templates(pod).items():
        template = objects.fields(objects.spec_of(job.claim_templates[name]))
        said = objects.fields(template.get("metadata"))
        claim: Object = {
            "kind": "ResourceClaim",
            "metadata": {
                **said,
                "namespace": objects.namespace(pod),
                "name": f"{objects.name(pod)}-{entry}",
                "uid": f"{entry} of {objects.uid(pod)}",
            },
            "spec": dict(objects.fields(template.get("spec"))),
            "status": {},
        }
        found.append((claim, claims_of.owner(claim, classes)))
    return PodClaims(pod, tuple(claim for claim, owner in found if owner is Owner.KOORDRA))


def awaiting(gang: Gang, kept: Kept, now: float, known: Known) -> tuple[Gang, float | None]:
    """The gang with those who come, and what is kept for them; and when some may come, if nobody does."""
    found = coming(gang, now, known)
    named = sum(
        seat_name(member) in kept.names or not member.ours
        for member in found.members
        if member.index is not None or not member.ours
    )
    terms = gang.terms
    if found.members:  # they may have a role of their own, or another opinion
        pods = [member.pod for member in (*gang.members, *found.members)]
        terms = terms_of(gang.ref, pods, known.pod_groups, ended=gang.ended) or terms
    changed = replace(
        gang, terms=terms, coming=found.members, coming_like=found.like, kept=named, unused=kept.unused
    )
    return changed, found.at


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
    return any(told(member.pod, name) for member in members for name in EXCLUSIVE)


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


def _spec(like: Member) -> Object:
    """Of a pod like this one that is nowhere yet."""
    return {name: value for name, value in objects.spec_of(like.pod).items() if name != "nodeName"}


def to_come(like: Member, index: MemberIndex | None, number: int) -> Member:
    """A member like this one, with claims like its own, that is nowhere yet."""
    pod = {**_renamed(like.pod, f"-to-come-{number}"), "spec": _spec(like)}
    return Member(pod, _copies(like, pod), index, like=like.uid)


def placed_at(member: Member, node: str) -> Member:
    """One who is to come, as if it were there already; its devices are counted as held."""
    pod = {**member.pod, "spec": {**objects.spec_of(member.pod), "nodeName": node}}
    return replace(member, pod=pod, claims=PodClaims(pod, ()))


def _copies(like: Member, pod: Object) -> PodClaims:
    claims = made_claims(like)
    copies = [{**_renamed(claim, f"-of-{objects.name(pod)}"), "status": {}} for claim in claims]
    return PodClaims(pod, tuple(copies))


def _renamed(obj: Object, suffix: str) -> Object:
    metadata = objects.metadata(obj)
    told = {name: f"{metadata.get(name)}{suffix}" for name in ("name", "uid")}
    return {**obj, "metadata": {**metadata, **told}}

"""What is to be done next for a TrainingJob: pods to delete, pods to make, what to remember. Pure.

    the job has ended           what still lives goes; logs of what has ended stay
    two pods of one replica     the one that moves takes over once it runs; of others the later one goes
    released                    its pods go, and nothing is made before the pause is over
    beyond maxReplicas          goes, the last first
    not elastic, one lost       all that have started go, and nothing is made before they are gone: ranks of a
                                static rendezvous, or a hostfile, name the one that is lost
    stuck                       placed for `pendingSeconds`, and not running: released. All, where fewer than
                                minReplicas run; only those that are stuck, where the others get on without
    missing                     made, after a pause where it failed before

Pauses: 10 s after a failure, doubled by each of the replica (of the job, where all start anew), 6 min at
most; 10 s after a disruption; 60 s after a release, doubled by each within MEMORY, 30 min at most.

Who goes for good says so to the gang first (`frees`), in a write of its own, and is deleted once the gang has
that in its record: else its place would be held for the pod that comes instead of a lost one.

Every step may be the last one before a crash: the next look decides anew from what is there. Pods have names
that follow from what is there, so what was made, and not seen yet, is not made twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from koordra.controller.training.members import OVERDUE, Member, Phase
from koordra.controller.training.standing import Standing, failures, latest, standing_of
from koordra.controller.training.training_job import (
    LAUNCHER_SLOT,
    MOST_RELEASES,
    Framework,
    Memory,
    Release,
    State,
    TrainingJob,
)

_SECOND: Final = timedelta(seconds=1)
FIRST_PAUSE: Final = 10 * _SECOND
LONGEST_PAUSE: Final = 360 * _SECOND
RELEASED: Final = 60 * _SECOND
LONGEST_RELEASE: Final = 1800 * _SECOND
MEMORY: Final = timedelta(hours=2)
AVOIDED: Final = timedelta(minutes=30)
"""For how long new pods keep off a node on which others were stuck."""
MOST_AVOIDED: Final = 32
MOVES_WITHIN: Final = timedelta(minutes=2)
"""For how long what moves may wait for the room that was foretold."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """`keep_to`: names of the only nodes that it may have; `keep_off`: those that it may not. `until`: for
    how long it may wait for such."""

    slot: int
    moved: bool
    attempt: int
    replaces: str = ""
    keep_off: tuple[str, ...] = ()
    keep_to: tuple[str, ...] = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Going:
    """A pod that is to be deleted. `frees`: its place is nobody's then; else its gang holds it for the pod
    that comes instead."""

    member: Member
    why: str
    frees: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """`memory` is written before anything is deleted, and that is done before anything is made. `look`: when
    to decide anew if nothing changes; `released`: why nothing is asked for now."""

    standing: Standing
    memory: Memory
    delete: Mapping[str, Going] = field(default_factory=dict)
    make: tuple[NewPod, ...] = ()
    look: datetime | None = None
    released: str = ""


def decide(
    job: TrainingJob,
    members: Sequence[Member],
    memory: Memory,
    *,
    now: datetime,
    since: Mapping[str, float],
) -> Decision:
    """`since`: for how many seconds a pod, by uid, has been seen to be PLACED, or to have ended."""
    standing = standing_of(job, members, memory)
    living = [one for one in members if one.is_living]
    if standing.state.is_final:
        gone = {one.uid: Going(one, "the job has ended") for one in living}
        return Decision(standing, replace(memory, ended=standing.state), gone)
    memory, wakes = _remembered(job, members, memory, standing, now=now, since=since)
    released = [one for one in memory.releases if one.until > now]
    delete = {
        **_doubles(job, living, since),
        **_of_ended(members),
        **_outdated(living, now),
        **{one.uid: Going(one, "beyond maxReplicas") for one in living if one.slot >= job.most},
        **_torn(job, members),
        **_superfluous(job, members),
        **{
            one.uid: Going(one, "its place is released: it did not come up")
            for one in living
            if any(release.covers(one.slot) for release in released)
        },
    }
    make, later = _missing(job, _by_this_clock(members, now, since), delete.keys(), memory, now)
    wakes += [*later, *(one.until for one in released)]
    wakes += [one.until for one in living if one.until is not None and one.until > now]
    whole = next((one for one in released if not one.slots), None)
    why = "" if whole is None else f"pods did not come up; asked for again at {whole.until:%H:%M:%S} UTC"
    return Decision(standing, memory, delete, make, min(wakes, default=None), why)


def _doubles(job: TrainingJob, living: Sequence[Member], since: Mapping[str, float]) -> dict[str, Going]:
    found = {}
    for slot in {one.slot for one in living}:
        here = [one for one in living if one.slot == slot]
        names = {one.name: one for one in here}
        movers = [one for one in here if one.replaces in names and names[one.replaces] is not one]
        for one in movers:
            old = names[one.replaces]
            if one.phase is Phase.RUNNING or old.phase is Phase.WAITING:
                found[old.uid] = Going(old, f"{one.name} has taken its place")
            elif since.get(one.uid, 0.0) >= job.pending:
                found[one.uid] = Going(one, "it did not come up where it was to move")
        others = sorted(
            (one for one in here if one not in movers),
            key=lambda one: (one.phase is not Phase.RUNNING, one.created, one.name),
        )
        found |= {one.uid: Going(one, "its replica has another pod") for one in others[1:]}
    return found


def _outdated(living: Sequence[Member], now: datetime) -> dict[str, Going]:
    return {
        one.uid: Going(one, "it waits for nodes that it need not have any more")
        for one in living
        if one.phase is Phase.WAITING and one.until is not None and one.until <= now
    }


def _of_ended(members: Sequence[Member]) -> dict[str, Going]:
    """Of pods that something else has ended, the last one of a replica tells when; the others go."""
    disrupted = [one for one in members if one.phase is Phase.DISRUPTED and one.gone_at is None]
    newest = {one.slot: one for one in sorted(disrupted, key=lambda one: one.ended)}
    return {
        one.uid: Going(one, "a later pod tells more", frees=False)
        for one in disrupted
        if one is not newest[one.slot]
    }


def _lacks(job: TrainingJob, members: Sequence[Member]) -> bool:
    """Whether a job whose replicas start together is without one."""
    there = {one.slot for one in members if one.is_living or one.phase is Phase.SUCCEEDED}
    return not job.framework.is_elastic and not there.issuperset(job.slots)


def _torn(job: TrainingJob, members: Sequence[Member]) -> dict[str, Going]:
    if not _lacks(job, members):
        return {}
    return {
        one.uid: Going(one, "another replica was lost: all start together again", frees=False)
        for one in members
        if (one.has_started or one.phase is Phase.SUCCEEDED) and one.gone_at is None
    }


def _superfluous(job: TrainingJob, members: Sequence[Member]) -> dict[str, Going]:
    """Of ElasticPyTorch, once a replica has ended well: those that have not started."""
    if job.framework is not Framework.ELASTIC_PYTORCH or not _has_ended_well(members):
        return {}
    waiting = [one for one in members if one.is_living and not one.has_started]
    return {one.uid: Going(one, "the training has ended") for one in waiting}


def _has_ended_well(members: Sequence[Member]) -> bool:
    return any(one.phase is Phase.SUCCEEDED for one in members)


def _remembered(
    job: TrainingJob,
    members: Sequence[Member],
    memory: Memory,
    standing: Standing,
    *,
    now: datetime,
    since: Mapping[str, float],
) -> tuple[Memory, list[datetime]]:
    """With a release of what is stuck, and when the next would be."""
    living = {one.name for one in members if one.is_living}
    waits = [
        (since.get(one.uid, 0.0), one)
        for one in members
        if one.has_started and one.phase is Phase.PLACED and one.replaces not in living
    ]
    stuck = [one for seconds, one in waits if seconds >= job.pending]
    wakes = [now + timedelta(seconds=job.pending - seconds) for seconds, _ in waits if seconds < job.pending]
    if not stuck or any(one.until > now and not one.slots for one in memory.releases):
        return memory, wakes
    some = standing.running >= job.least and LAUNCHER_SLOT not in {one.slot for one in stuck}
    some = some and job.framework.is_elastic
    recent = [one for one in memory.releases if one.at > now - MEMORY]
    pause = min(LONGEST_RELEASE, RELEASED * 2 ** min(len(recent), 10))
    release = Release(
        now,
        now + pause,
        tuple(sorted({one.slot for one in stuck})) if some else (),
        tuple(sorted({one.node for one in stuck if one.node})[:MOST_AVOIDED]),
    )
    kept = (*recent, release)[-MOST_RELEASES:]
    return replace(memory, releases=kept), wakes


def _missing(
    job: TrainingJob,
    members: Sequence[Member],
    deleted: Iterable[str],
    memory: Memory,
    now: datetime,
) -> tuple[tuple[NewPod, ...], list[datetime]]:
    """Pods to make now, and when others may be made."""
    gone = set(deleted)
    if job.framework is Framework.ELASTIC_PYTORCH and _has_ended_well(members):
        return (), []
    wakes = [one.gone_at + OVERDUE for one in members if one.gone_at is not None and one.is_leaving(now)]
    if _lacks(job, members) and (wakes or _torn(job, members)):
        return (), wakes  # one that came back now would start, and miss the others
    there = {
        one.slot
        for one in members
        if one.is_living or one.is_leaving(now) or (one.phase is Phase.SUCCEEDED and one.uid not in gone)
    }
    avoided = [one for one in memory.releases if one.at > now - AVOIDED and one.nodes]
    off = sorted({node for one in avoided for node in one.nodes})[:MOST_AVOIDED]
    until = max((one.at + AVOIDED for one in avoided), default=None)
    made = list[NewPod]()
    for slot in job.slots:
        if slot in there:
            continue
        at = _earliest(job, members, memory, slot)
        if at is not None and at > now:
            wakes.append(at)
            continue
        last = latest(members, slot)
        moved = last is not None and last.moved
        attempt = _next_attempt(members, slot, moved)
        made.append(NewPod(slot, moved, attempt, keep_off=tuple(off), until=until))
    return tuple(made), wakes


def _by_this_clock(members: Sequence[Member], now: datetime, since: Mapping[str, float]) -> list[Member]:
    """The clock of a node may be ahead: nobody ended after he was seen to have."""
    return [
        replace(one, ended=min(one.ended, now - timedelta(seconds=since.get(one.uid, 0.0))))
        for one in members
    ]


def _next_attempt(members: Sequence[Member], slot: int, moved: bool) -> int:
    return 1 + max((one.attempt for one in members if (one.slot, one.moved) == (slot, moved)), default=-1)


def _earliest(job: TrainingJob, members: Sequence[Member], memory: Memory, slot: int) -> datetime | None:
    """When a pod of the replica may be made again, None where at once."""
    alike = members if not job.framework.is_elastic else [one for one in members if one.slot == slot]
    times = [one.until for one in memory.releases if one.covers(slot)]
    times += [one.ended + FIRST_PAUSE for one in alike if one.phase is Phase.DISRUPTED]
    failed = [one for one in alike if one.phase is Phase.FAILED]
    if failed:
        number = max(failures(failed).values())
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(number - 1, 10))
        times.append(max(one.ended for one in failed) + pause)
    return max(times, default=None)


def move_of(members: Sequence[Member], member: Member, nodes: Sequence[str], *, now: datetime) -> NewPod:
    """The pod that a replica moves to."""
    moved = not member.moved
    attempt = _next_attempt(members, member.slot, moved)
    return NewPod(
        member.slot, moved, attempt, replaces=member.name, keep_to=tuple(nodes), until=now + MOVES_WITHIN
    )


def is_settled(decision: Decision) -> bool:
    """Whether nothing else is going on, so that a replica may move."""
    return (
        decision.standing.state is State.RUNNING
        and decision.standing.reason == "Whole"
        and not (decision.delete or decision.make or decision.released)
    )

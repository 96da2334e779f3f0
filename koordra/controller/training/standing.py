"""In which of six states a TrainingJob is, by its pods and their claims. Pure.

    Waiting     fewer than minReplicas have devices: its gang gathers, or waits for room; or places were
                released, and are not asked for again yet
    Pending     minReplicas have devices, and fewer of them run
    Running     minReplicas run; or some do, and the others were lost (condition Short)
    Migrating   a replica has a second place, and has not given up the first
    Complete    it has ended well (training_job says when)
    Failed      a replica has failed more often than backoffLimit allows, or the job has ended in part

Complete and Failed stay, once the status says so. Every other state is left by what happens to the pods: none
waits for something that nobody does.

    Waiting ──devices──> Pending ──pods run──> Running <──> Migrating
       ^                    │                     │
       └──released, lost────┴─────────lost────────┘          any ──> Complete, Failed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from koordra.controller.training.members import Member, Phase
from koordra.controller.training.training_job import (
    LAUNCHER_SLOT,
    Framework,
    Memory,
    State,
    TrainingJob,
)


@dataclass(frozen=True, slots=True)
class Standing:
    """`placed`: replicas that have their devices, running ones included; `running`: those that run. A replica
    that moves counts once, the launcher not at all. `why`: in words for the status."""

    state: State
    placed: int
    running: int
    reason: str
    why: str

    @property
    def is_short(self) -> bool:
        return self.reason == "Short"


def standing_of(job: TrainingJob, members: Sequence[Member], memory: Memory) -> Standing:
    workers = [one for one in members if one.slot != LAUNCHER_SLOT and one.is_living]
    placed = len({one.slot for one in workers if one.has_started and one.has_claims})
    running = len({one.slot for one in workers if one.phase is Phase.RUNNING})

    def standing(state: State, reason: str, why: str) -> Standing:
        return Standing(state, placed, running, reason, why)

    if memory.ended is not None:
        return standing(memory.ended, *_ended_words(memory.ended))
    if failed := _failure(job, members):
        return standing(State.FAILED, *failed)
    if _is_complete(job, members):
        return standing(State.COMPLETE, *_ended_words(State.COMPLETE))
    if moving := [one for one in workers if _moves(one, workers)]:
        names = ", ".join(one.name for one in moving)
        return standing(State.MIGRATING, "Migrating", f"{names}: placed before what it replaces goes")
    numbers = f"{running} of {job.least} to {job.most} replicas run"
    if running >= job.least:
        return standing(State.RUNNING, "Whole" if running == job.most else "Growing", numbers)
    done = {one.slot for one in members if one.phase is Phase.SUCCEEDED} - {LAUNCHER_SLOT}
    if running and done:
        return standing(State.RUNNING, "Ending", f"{running} replicas run, {len(done)} have ended well")
    if running and placed < job.least:
        return standing(State.RUNNING, "Short", f"{numbers}: fewer than start together; the others wait")
    if placed >= job.least:
        return standing(State.PENDING, "Starting", f"{placed} replicas have their devices; {numbers}")
    return standing(
        State.WAITING,
        "WaitingForDevices",
        f"{placed} of {job.least} replicas that start together have devices; koordra explain gang/{job.name} says why",
    )


def failures(members: Sequence[Member]) -> Counter[int]:
    """By slot."""
    return Counter(one.slot for one in members if one.phase is Phase.FAILED)


def latest(members: Sequence[Member], slot: int) -> Member | None:
    """The last one that was made of a replica, whatever became of it."""
    of_slot = [one for one in members if one.slot == slot]
    return max(of_slot, key=lambda one: (one.created, one.moved, one.attempt), default=None)


def _moves(member: Member, members: Sequence[Member]) -> bool:
    """Whether what it replaces is still there."""
    return member.is_living and any(one.name == member.replaces and one.is_living for one in members)


def _is_complete(job: TrainingJob, members: Sequence[Member]) -> bool:
    done = {one.slot for one in members if one.phase is Phase.SUCCEEDED}
    if job.framework.has_launcher:
        return LAUNCHER_SLOT in done
    if job.framework is Framework.PYTORCH:
        return done.issuperset(job.slots)
    return bool(done) and not any(one.has_started for one in members)


def _failure(job: TrainingJob, members: Sequence[Member]) -> tuple[str, str] | None:
    for slot, number in sorted(failures(members).items()):
        if number > job.backoff_limit:
            last = latest([one for one in members if one.phase is Phase.FAILED], slot)
            name = "" if last is None else last.name
            return "BackoffLimitExceeded", (
                f"replica {slot if slot != LAUNCHER_SLOT else 'launcher'} has failed {number} times, backoffLimit is "
                f"{job.backoff_limit}; kubectl logs {name} says why"
            )
    if job.framework is Framework.ELASTIC_PYTORCH and _is_complete(job, members):
        failed = [slot for slot in job.slots if (one := latest(members, slot)) and one.phase is Phase.FAILED]
        if failed:
            numbers = ", ".join(map(str, failed))
            return "EndedInPart", f"some replicas have ended well, and replicas {numbers} have failed"
    return None


def _ended_words(state: State) -> tuple[str, str]:
    if state is State.COMPLETE:
        return "Completed", "the job has ended well"
    return "Failed", "the job has failed"

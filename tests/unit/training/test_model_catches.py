"""The model of TrainingJobs is worth something: each rule of docs/training-jobs.md, broken once as a careless
change might, does not survive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from koordra.controller.training import decisions, moves, reconcile
from koordra.controller.training.decisions import Decision, Going, decide, is_settled
from koordra.controller.training.members import Member, Phase
from koordra.controller.training.standing import standing_of
from koordra.controller.training.training_job import Memory, TrainingJob, memory_fields
from tests.unit.training.training_model import drawn, play

MOST = 400
"""Schedules that are tried for each; most need a few."""


def living_stay(*given: Any, **known: Any) -> Decision:
    """A job that has ended leaves what lives."""
    found = decide(*given, **known)
    return replace(found, delete={}) if found.standing.state.is_final else found


def beyond_stay(job: TrainingJob, *given: Any, **known: Any) -> Decision:
    """maxReplicas is made smaller, and nobody goes."""
    found = decide(job, *given, **known)
    kept = {uid: going for uid, going in found.delete.items() if going.why != "beyond maxReplicas"}
    return replace(found, delete=kept)


def at_once(*_given: Any) -> None:
    """What has failed is made again without a pause."""


def alone(*_given: Any) -> dict[str, Going]:
    """Of a job that is not elastic the lost one alone is made anew."""
    return {}


def while_others_end(job: TrainingJob, members: Sequence[Member]) -> bool:
    """Of a job that is not elastic new ones are made while old ones end."""
    del job, members
    return False


def stuck_for_ever(_job: object, _members: object, memory: Memory, *_given: Any, **_known: Any) -> Any:
    """Who does not come up keeps his place."""
    return memory, []


def forgets_releases(memory: Memory) -> dict[str, Any]:
    """What was released is not remembered."""
    return {**memory_fields(memory), "releases": None}


def pays_always(*_given: Any, **_known: Any) -> bool:
    return True


def placed_is_enough(job: TrainingJob, living: Sequence[Member], since: Any) -> dict[str, Going]:
    """The old pod goes before the new one runs."""
    as_if = [replace(one, phase=Phase.RUNNING) if one.replaces and one.has_started else one for one in living]
    return doubles(job, as_if, since)


def both_stay(*_given: Any) -> dict[str, Going]:
    """Nobody takes over."""
    return {}


doubles = decisions._doubles


def moves_again(decision: Decision) -> bool:
    """Who moves already is moved once more."""
    return is_settled(decision) or decision.standing.reason == "Migrating"


def never_again(*_given: Any) -> int:
    """A pod has one name for ever."""
    return 0


def without_a_word(*_given: Any) -> Any:
    """The gang is told of those who go, and not waited for."""
    return set()


def revives(job: TrainingJob, members: Sequence[Member], memory: Memory) -> Any:
    """The end is worked out again of what is left."""
    return standing_of(job, members, replace(memory, ended=None))


Patch = tuple[object, str, Any]

FROM = {
    "does not wait for the gang": 21,
    "moves who moves": 11,
    "moves whether or not it pays": 11,
    "never takes over": 11,
    "revives what has ended": 9,
    "takes over before it runs": 35,
}
"""Where to begin the search, so that it is short; a model that draws otherwise only makes it longer."""

BROKEN: dict[str, list[Patch]] = {
    "leaves what lives of an ended job": [(reconcile, "decide", living_stay)],
    "keeps those beyond the most": [(reconcile, "decide", beyond_stay)],
    "makes failed ones at once": [(decisions, "_earliest", at_once)],
    "remakes one of a static job alone": [(decisions, "_torn", alone)],
    "does not wait for the old ones": [(decisions, "_torn", alone), (decisions, "_lacks", while_others_end)],
    "releases nothing": [(decisions, "_remembered", stuck_for_ever)],
    "forgets what it released": [(reconcile, "memory_fields", forgets_releases)],
    "moves whether or not it pays": [(moves, "pays", pays_always)],
    "takes over before it runs": [(decisions, "_doubles", placed_is_enough)],
    "never takes over": [(decisions, "_doubles", both_stay)],
    "moves who moves": [(reconcile, "is_settled", moves_again)],
    "has one name for all pods of a replica": [(decisions, "_next_attempt", never_again)],
    "does not wait for the gang": [(reconcile, "kept_for", without_a_word)],
    "tells the gang nothing": [(reconcile, "LEAVES", "example.com/leaves")],
    "revives what has ended": [(decisions, "standing_of", revives)],
    "waits no time after a disruption": [(decisions, "FIRST_PAUSE", timedelta())],
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_code_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, broken in BROKEN[name]:
        monkeypatch.setattr(target, attribute, broken)
    start = FROM.get(name, 0)
    for seed in range(start, start + MOST):
        try:
            play(drawn(seed))
        except AssertionError as caught:
            print(f"{name}: seed {seed}: {caught}")
            return
    pytest.fail(f"{MOST} schedules and nobody noticed: {name}")

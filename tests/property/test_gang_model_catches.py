"""The gang model is worth something: code that is broken in one place does not survive it.

Each case breaks the controller as a careless change might, and looks for a schedule that fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.controller.gangs import commit, eviction, member_placement, phase
from koordra.controller.gangs.commit import allocate
from koordra.controller.gangs.declared import gang_ref
from koordra.controller.gangs.declared.gang_by import Replica
from koordra.controller.gangs.declared.parts import fabric_request
from koordra.controller.gangs.expected import seat_exchange
from koordra.controller.gangs.live.writes import LiveFiles
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase, GangStatus, status_of
from koordra.controller.gangs.seats import device_holds
from koordra.controller.gangs.seats.device_holds import DeviceHolds
from koordra.controller.gangs.seats.recorded import renewed
from koordra.placement.gang import kept_seats, place
from koordra.placement.holders import reserved_seats
from tests.property.test_gang_model import one_schedule

MOST = 1500
"""Schedules that are tried for each case; most need a few dozen."""


def starts_with_fewer(gang: Gang, **known: Any) -> GangStatus:
    """Gates are lifted as soon as one member has its devices."""
    found = status_of(gang, **known)
    placed = tuple(
        member for member in gang.held if member.is_placed and member.claims and member.claims.ours
    )
    if found.phase in {GangPhase.PARTIALLY_ALLOCATED, GangPhase.GATHERING} and placed:
        return GangStatus(GangPhase.READY, ungate=placed)
    return found


def plans_a_part(gang: Gang, **known: Any) -> GangStatus:
    """One member is enough for the allocations to be written."""
    found = status_of(gang, **known)
    return replace(found, needed=1) if found.phase is GangPhase.WAITING else found


def keeps_what_was_cut_off(gang: Gang, **known: Any) -> GangStatus:
    """What a cut-off pass has left stays."""
    return replace(status_of(gang, **known), give_back=())


def counts_the_gathered(gang: Gang, **known: Any) -> GangStatus:
    """A gang is ready although members are missing."""
    return status_of(replace(gang, terms=replace(gang.terms, least=1)), **known)


def never_restarts(self: Any, gang: Gang, now: float) -> None:
    """A gang that cannot complete itself holds what it has for ever."""
    del self, gang, now


def never_lifts_again(gang: Gang, **known: Any) -> GangStatus:
    """Gates of members that a killed controller has left are nobody's business."""
    found = status_of(gang, **known)
    return replace(found, ungate=()) if gang.committed else found


def forgets_to_undo(*given: Any, undo: bool, **named: Any) -> bool:
    """A write that fails leaves those before it, and the next pass does not look."""
    del undo
    return allocate(*given, **named, undo=False)


def sees_no_replicas(*_pod: Any, **_default: Any) -> Replica:
    """Replicas of one name are one gang."""
    return Replica()


def tells_at_the_start_alone(self: Any, gangs: Any) -> None:
    """Members that run do not hear of those that come and go."""
    del self, gangs


def counts_from_zero(placed: Any, fixed: Any) -> list[Any]:
    """Members that are placed again get ranks that others have."""
    del fixed
    return [replace(one, rank=at) for at, (_, one) in enumerate(placed)]


def holds_nothing(self: Any, gangs: Any) -> None:
    """What is lost is anybody's."""
    del self, gangs


def lets_anybody_in(self: Any, priority: int) -> list[Any]:
    """Whoever waits takes what is held."""
    return weaker_than(self, priority + 1)


def holds_for_ever(recorded: Any, had: Any, now: Any) -> Any:
    """The end of a hold is nobody's business."""
    return renewed(recorded, had, replace(now, is_over=lambda _seat: False))


weaker_than = DeviceHolds.weaker_than


def counts_who_is_to_come(gang: Gang, **known: Any) -> GangStatus:
    """Leaders go although nothing is held for those who come after them."""
    return status_of(replace(gang, kept=len(gang.coming)), **known)


def reserves_nothing(*_given: Any) -> bool:
    """The places of those who come are not kept for them."""
    return True


def whoever_runs(self: Member) -> bool:
    """A launcher that came past its gate starts its gang."""
    return self.is_committed


def starts_all_at_once(gang: Gang, placed: Any) -> Any:
    """Roles do not wait for each other."""
    del gang
    return placed


def all_but_one(gang: Gang) -> Any:
    """A gang that makes room keeps one member."""
    return gang.committed[1:]


def requires_nothing(*given: Any) -> Any:
    """Levels are wishes."""
    found = fabric_request(*given)
    return replace(found, required=None, parts=tuple(replace(part, required=None) for part in found.parts))


def moves_alone(self: Any, uid: str, pod_groups: Any) -> Any:
    """A held seat is exchanged as if nothing were held for the others."""
    del uid, pod_groups
    return replace(self.gang, members=self.members)


def of_whomever(*_given: Any) -> bool:
    """What is reserved is anybody's."""
    return True


Patch = tuple[object, str, Any]

FROM = {
    "never restarts": 517,
    "leaves gates behind": 66,
    "keeps what was cut off": 20,
    "gives ranks twice": 340,
    "whoever runs starts the gang": 9_002_307,
    "reserves for whomever comes": 53,
    "requires no level": 41,
    "moves seats out of their zone": 257,
}
"""Where to begin the search, so that it is short; a model that draws otherwise only makes it longer."""

BROKEN: dict[str, list[Patch]] = {
    "starts with fewer than the least": [(phase, "status_of", starts_with_fewer)],
    "allocates a part": [(phase, "status_of", plans_a_part), (commit, "allocate", forgets_to_undo)],
    "keeps what was cut off": [(phase, "status_of", keeps_what_was_cut_off)],
    "does not count": [(phase, "status_of", counts_the_gathered)],
    "never restarts": [(eviction.GangRestarts, "sync", never_restarts)],
    "sees no replicas": [(gang_ref, "replica_of", sees_no_replicas)],
    "holds nothing": [(DeviceHolds, "sync", holds_nothing)],
    "lets anybody in": [(DeviceHolds, "weaker_than", lets_anybody_in)],
    "holds for ever": [(device_holds, "renewed", holds_for_ever)],
    "gives ranks twice": [
        (module, "ranks", counts_from_zero) for module in (place, kept_seats, member_placement)
    ],
    "leaders go alone": [
        (phase, "status_of", counts_who_is_to_come),
        (DeviceHolds, "reserve", reserves_nothing),
    ],
    "starts all roles at once": [(phase, "_startable", starts_all_at_once)],
    "makes room with all but one": [(eviction, "beyond_least", all_but_one)],
    "requires no level": [(member_placement, "fabric_request", requires_nothing)],
    "moves seats out of their zone": [(seat_exchange._Beside, "seen_from", moves_alone)],
    "reserves for whomever comes": [(reserved_seats, "owns", of_whomever)],
    "tells at the start alone": [(LiveFiles, "sync", tells_at_the_start_alone)],
    "whoever runs starts the gang": [(Member, "commits", property(whoever_runs))],
    "leaves gates behind": [(phase, "status_of", never_lifts_again)],
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_code_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, broken in BROKEN[name]:
        monkeypatch.setattr(target, attribute, broken)
    start = FROM.get(name, 0)
    for seed in range(start, start + MOST):
        try:
            one_schedule(seed)
        except AssertionError as caught:
            print(f"{name}: {str(caught).splitlines()[0]}")
            return
    pytest.fail(f"{MOST} schedules and nobody noticed: {name}")

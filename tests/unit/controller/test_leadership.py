"""The lease's rules with a clock that the test turns: at no moment may two writers write."""

from __future__ import annotations

import time
from typing import Any

import pytest

from koordra.api.kinds import LEASES
from koordra.controller import run
from koordra.controller.reconcile.leadership import LeaderLease, LeaseTimes, Standing
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import explode_at
from tests.fakes.kube_api import FakeKubeApi

TIMES = LeaseTimes(lease=15.0, retry=2.0, timeout=5.0)


class Replica:
    """A candidate with a clock of its own (an offset: monotonic clocks of two machines have nothing in
    common)."""

    def __init__(self, api: FakeKubeApi, name: str, offset: float = 0.0) -> None:
        self.now = offset
        self.is_well = True
        self.lease = LeaderLease(
            api,
            namespace="koordra-system",
            name="koordra-controller",
            identity=name,
            clock=lambda: self.now,
            now=lambda: f"at {self.now}",
            times=TIMES,
            is_well=lambda: self.is_well,
        )


def with_free_lease() -> FakeKubeApi:
    """An API server with a Lease that its last holder gave away."""
    api = FakeKubeApi()
    place = {"namespace": "koordra-system", "name": "koordra-controller"}
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
    api.create(LEASES, {"metadata": place, "spec": spec}, namespace="koordra-system")
    return api


def advance(seconds: float, *replicas: Replica) -> None:
    for replica in replicas:
        replica.now += seconds


def test_a_free_lease_is_taken_at_once_and_kept() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 5000.0)
    assert one.lease.step() is Standing.LEADER
    for _ in range(40):
        assert two.lease.step() is Standing.CANDIDATE
        assert two.lease.holder == "one"
        advance(TIMES.retry, one, two)
        assert one.lease.step() is Standing.LEADER
        assert one.lease.may_write()
        assert not two.lease.may_write()


def test_a_writer_stops_one_timeout_before_its_lease_ends_and_a_successor_starts_one_after() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 5000.0)
    one.lease.step()
    two.lease.step()
    stopped = began = None
    for tenth in range(400):
        if stopped is None and not one.lease.may_write():
            stopped = tenth / 10
        if tenth % 20 == 0:
            two.lease.step()
        if began is None and two.lease.may_write():
            began = tenth / 10
        assert not (one.lease.may_write() and two.lease.may_write())
        advance(0.1, one, two)
    assert stopped == pytest.approx(TIMES.lease - TIMES.timeout, abs=0.11)
    assert began is not None
    assert began >= TIMES.lease + TIMES.timeout
    assert began <= TIMES.lease + TIMES.timeout + TIMES.retry


def test_a_leader_that_cannot_renew_steps_down_by_its_own_clock() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    one.lease.step()

    def away(_write: object) -> None:
        raise ApiUnreachable("no route")

    api.before = away
    standings = []
    for _ in range(6):
        advance(TIMES.retry, one)
        standings.append(one.lease.step())
    assert standings == [Standing.LEADER] * 4 + [Standing.CANDIDATE] * 2


def test_a_renewal_whose_answer_is_lost_is_found_again() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    one.lease.step()
    advance(2, one)
    api.after = explode_at(0, lambda: ApiUnreachable("answer lost"))
    assert one.lease.step() is Standing.LEADER
    advance(2, one)
    assert one.lease.step() is Standing.LEADER
    advance(9, one)
    assert one.lease.may_write()


def test_a_leader_that_finds_another_holder_stops_at_once() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    one.lease.step()
    api.edit(
        LEASES,
        "koordra-controller",
        lambda lease: lease["spec"].update(holderIdentity="two"),
        namespace="koordra-system",
    )
    assert one.lease.step() is Standing.CANDIDATE
    assert not one.lease.may_write()


def test_who_stood_still_with_its_clock_repairs_no_lease_that_its_successor_gave_away() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    one.lease.step()
    two.lease.step()
    advance(TIMES.lease + TIMES.timeout, two)
    assert two.lease.step() is Standing.LEADER
    two.lease.release()
    assert one.lease.may_write()
    assert one.lease.step() is Standing.CANDIDATE
    assert not one.lease.may_write()
    assert spec_of(api)["holderIdentity"] == ""
    assert one.lease.step() is Standing.LEADER, "a term of its own, that lists anew"


def test_a_released_lease_is_taken_without_waiting() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 77.0)
    one.lease.step()
    two.lease.step()
    one.lease.release()
    assert not one.lease.may_write()
    assert two.lease.step() is Standing.LEADER
    spec = api.get(LEASES, "koordra-controller", namespace="koordra-system")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 2)


def test_the_same_identity_waits_like_any_other() -> None:
    """Whoever may edit the Lease can have written that name into it, while its holder still writes."""
    api = with_free_lease()
    Replica(api, "one").lease.step()
    again = Replica(api, "one", 300.0)
    assert again.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout - 0.1, again)
    assert again.lease.step() is Standing.CANDIDATE
    advance(0.1, again)
    assert again.lease.step() is Standing.LEADER


def test_a_lease_is_not_given_away_while_a_write_may_still_take_effect() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 9.0)
    assert one.lease.step() is Standing.LEADER
    one.lease.unanswered()
    advance(TIMES.timeout, one)
    one.lease.release()
    assert two.lease.step() is Standing.CANDIDATE
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 9.0)
    assert one.lease.step() is Standing.LEADER
    one.lease.unanswered()
    advance(TIMES.timeout + 0.1, one)
    one.lease.release()
    assert two.lease.step() is Standing.LEADER


def test_who_ends_after_its_time_leaves_the_lease_to_whom_has_it() -> None:
    api = with_free_lease()
    one, two, three = Replica(api, "one"), Replica(api, "two", 9.0), Replica(api, "three", 70.0)
    assert one.lease.step() is Standing.LEADER
    assert two.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout, two, three)
    assert two.lease.step() is Standing.LEADER
    one.lease.release()
    assert three.lease.step() is Standing.CANDIDATE
    assert three.lease.holder == "two"


def test_a_candidate_that_stood_still_while_it_looked_waits_from_the_answer_on() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    one.lease.step()
    answers = api.get

    def late(*what: Any, **where: Any) -> Any:
        found = answers(*what, **where)
        advance(TIMES.lease + TIMES.timeout, two)
        return found

    api.get = late  # type: ignore[method-assign]
    assert two.lease.step() is Standing.CANDIDATE
    api.get = answers  # type: ignore[method-assign]
    assert two.lease.step() is Standing.CANDIDATE
    assert spec_of(api)["holderIdentity"] == "one"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has a clock that counts suspensions")
def test_the_lease_runs_out_while_the_machine_is_suspended() -> None:
    assert run._AWAKE_OR_NOT == time.CLOCK_BOOTTIME


def test_of_two_candidates_one_gets_it() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 9.0)
    Replica(api, "dead").lease.step()
    one.lease.step()
    two.lease.step()
    advance(TIMES.lease + TIMES.timeout, one, two)
    assert {one.lease.step(), two.lease.step()} == {Standing.LEADER, Standing.CANDIDATE}


def test_a_lease_deleted_by_hand_is_made_again_by_its_holder() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    one.lease.step()
    for seen_first_by in (one, two):
        api.delete(LEASES, "koordra-controller", namespace="koordra-system")
        if seen_first_by is two:
            assert two.lease.step() is Standing.CANDIDATE
        advance(2, one, two)
        assert one.lease.step() is Standing.LEADER
        assert spec_of(api)["holderIdentity"] == "one"
        assert spec_of(api).get("leaseTransitions") == (0 if seen_first_by is one else None)
        assert two.lease.step() is Standing.CANDIDATE
        advance(TIMES.lease - TIMES.timeout - 0.1, one)
        assert one.lease.may_write()
        one.lease.step()


@pytest.mark.parametrize("has_seen_the_holder", [True, False])
def test_a_lease_that_is_gone_is_taken_once_its_holder_must_have_stopped(has_seen_the_holder: bool) -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    one.lease.step()
    if has_seen_the_holder:
        two.lease.step()
        advance(TIMES.lease + TIMES.timeout - 0.1, two)
        assert two.lease.step() is Standing.CANDIDATE
    api.delete(LEASES, "koordra-controller", namespace="koordra-system")
    assert two.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout - 0.1, two)
    assert two.lease.step() is Standing.CANDIDATE
    advance(0.1, two)
    assert two.lease.step() is Standing.LEADER


def test_a_lease_that_was_made_and_deleted_between_two_looks_is_waited_for_anew() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    two.lease.step()
    for replica in (two, one):
        advance(TIMES.lease + TIMES.timeout - 0.5, two)
        api.delete(LEASES, "koordra-controller", namespace="koordra-system")
        assert replica.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout, one)
    assert one.lease.step() is Standing.LEADER
    api.delete(LEASES, "koordra-controller", namespace="koordra-system")
    advance(1, one, two)
    assert two.lease.step() is Standing.CANDIDATE
    assert one.lease.may_write()


EDITS: list[dict[str, object]] = [
    {"holderIdentity": ""},
    {"holderIdentity": None},
    {"holderIdentity": "", "leaseDurationSeconds": 10**9},
    {"leaseDurationSeconds": 1},
    {"leaseDurationSeconds": 10**9},
    {"renewTime": "1970-01-01T00:00:00.000000Z"},
    {"renewTime": "2999-01-01T00:00:00.000000Z"},
    {"acquireTime": "nonsense", "leaseTransitions": 2**31 - 1},
]


def edit(api: FakeKubeApi, **spec: object) -> None:
    api.edit(
        LEASES,
        "koordra-controller",
        lambda lease: lease["spec"].update(spec),
        namespace="koordra-system",
    )


@pytest.mark.parametrize("change", EDITS, ids=str)
def test_what_a_stranger_edits_makes_nobody_lead_too_early(change: dict[str, object]) -> None:
    api = with_free_lease()
    one, two, new = Replica(api, "one"), Replica(api, "two", 70.0), Replica(api, "new", 900.0)
    one.lease.step()
    two.lease.step()
    advance(TIMES.lease + TIMES.timeout - 0.1, two)
    edit(api, **change)
    for candidate in (two, new):
        assert candidate.lease.step() is Standing.CANDIDATE
        advance(TIMES.lease + TIMES.timeout - 0.1, candidate)
        assert candidate.lease.step() is Standing.CANDIDATE
    advance(2, one)
    assert one.lease.step() is Standing.LEADER
    assert spec_of(api)["holderIdentity"] == "one"
    assert spec_of(api)["leaseDurationSeconds"] == TIMES.lease
    edit(api, **change)
    advance(TIMES.lease + TIMES.timeout + 0.2, two)
    assert two.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout, two)
    assert two.lease.step() is Standing.LEADER


def test_a_stranger_who_writes_a_candidates_name_gives_it_nothing() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 70.0)
    one.lease.step()
    two.lease.step()
    edit(api, holderIdentity="two")
    assert two.lease.step() is Standing.CANDIDATE
    advance(TIMES.lease + TIMES.timeout - 0.1, two)
    assert two.lease.step() is Standing.CANDIDATE
    advance(0.1, two)
    assert two.lease.step() is Standing.LEADER
    assert one.lease.step() is Standing.CANDIDATE


@pytest.mark.parametrize("change", [None, {"holderIdentity": ""}, {"leaseDurationSeconds": 9}], ids=str)
def test_who_stood_still_for_longer_than_the_lease_repairs_nothing(change: dict[str, object] | None) -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    one.lease.step()
    if change is None:
        api.delete(LEASES, "koordra-controller", namespace="koordra-system")
    else:
        edit(api, **change)
    before = api.all(LEASES)
    advance(TIMES.lease - TIMES.timeout, one)
    assert one.lease.step() is Standing.CANDIDATE
    assert not one.lease.may_write()
    assert api.all(LEASES) == before


def test_a_renewal_lasts_from_when_it_was_sent() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    one.lease.step()
    for change in (None, api.delete):
        advance(2, one)
        if change is not None:
            change(LEASES, "koordra-controller", namespace="koordra-system")
        assert one.lease.step() is Standing.LEADER
        advance(TIMES.lease - TIMES.timeout - 0.1, one)
        assert one.lease.may_write(), change
        assert one.lease.step() is Standing.LEADER


def test_an_answer_that_takes_long_makes_no_lease_longer() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    api.after = lambda _write: advance(4.0, one)
    assert one.lease.step() is Standing.LEADER
    advance(TIMES.lease - TIMES.timeout - 4.0 - 0.1, one)
    assert one.lease.may_write()
    advance(0.2, one)
    assert not one.lease.may_write()


def spec_of(api: FakeKubeApi) -> dict[str, object]:
    found: dict[str, object] = api.get(LEASES, "koordra-controller", namespace="koordra-system")["spec"]
    return found


def test_what_the_lease_says_to_people() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 100.0)
    one.lease.step()
    ours = {"holderIdentity": "one", "leaseDurationSeconds": 15, "acquireTime": "at 0.0"}
    assert spec_of(api) == {**ours, "renewTime": "at 0.0", "leaseTransitions": 1}
    advance(2, one)
    one.lease.step()
    assert spec_of(api) == {**ours, "renewTime": "at 2.0", "leaseTransitions": 1}
    one.lease.release()
    free = {**ours, "holderIdentity": "", "leaseDurationSeconds": 1}
    assert spec_of(api) == {**free, "renewTime": "at 2.0", "leaseTransitions": 1}
    for replica, transitions in ((two, 2), (one, 3)):
        assert replica.lease.step() is Standing.LEADER
        said = spec_of(api)
        assert (said["acquireTime"], said["leaseTransitions"]) == (f"at {replica.now}", transitions)
        replica.lease.release()


def test_who_never_held_the_lease_releases_nothing() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two")
    one.lease.step()
    two.lease.step()
    two.lease.release()
    assert spec_of(api)["holderIdentity"] == "one"


def test_whether_the_last_look_was_answered() -> None:
    api = with_free_lease()
    one = Replica(api, "one")
    assert not one.lease.is_reached
    one.lease.step()
    assert one.lease.is_reached
    advance(2, one)
    api.before = explode_at(0, lambda: ApiUnreachable("no route"))
    one.lease.step()
    assert not one.lease.is_reached
    one.lease.step()
    assert one.lease.is_reached


def test_the_times_are_the_ones_that_are_given() -> None:
    times = LeaseTimes(lease=60.0, retry=4.0, timeout=8.0)
    lease = LeaderLease(
        FakeKubeApi(), namespace="n", name="l", identity="one", clock=float, now=str, times=times
    )
    assert lease.times == times


@pytest.mark.parametrize(("lease", "retry"), [(8.0, 2.0), (9.0, 2.0), (10.5, 3.0)])
def test_times_that_leave_no_room_to_write_are_refused(lease: float, retry: float) -> None:
    with pytest.raises(ValueError, match="outlast"):
        LeaseTimes(lease=lease, retry=retry, timeout=5.0)
    LeaseTimes(lease=5.0 + 2 * retry + 0.1, retry=retry, timeout=5.0)


def test_a_process_that_is_stuck_does_not_renew_and_another_one_takes_over() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 5000.0)
    one.lease.step()
    two.lease.step()
    one.is_well = False
    requests = len(api.writes)
    standings, second = [], Standing.CANDIDATE
    while second is Standing.CANDIDATE:
        advance(TIMES.retry, one, two)
        standings.append(one.lease.step())
        assert len(api.writes) == requests, "it writes nothing"
        second = two.lease.step()
        assert not (one.lease.may_write() and two.lease.may_write())
    assert standings == [Standing.LEADER] * 4 + [Standing.CANDIDATE] * 6
    assert not one.lease.is_reached
    one.is_well = True
    assert one.lease.step() is Standing.CANDIDATE
    assert not one.lease.may_write()


def test_a_process_that_gets_on_again_in_time_goes_on_leading() -> None:
    api = with_free_lease()
    one, two = Replica(api, "one"), Replica(api, "two", 5000.0)
    one.lease.step()
    two.lease.step()
    one.is_well = False
    for _ in range(3):
        advance(TIMES.retry, one, two)
        one.lease.step()
    assert one.lease.may_write(), "what was renewed before is still good"
    one.is_well = True
    for _ in range(20):
        advance(TIMES.retry, one, two)
        assert one.lease.step() is Standing.LEADER
        assert two.lease.step() is Standing.CANDIDATE


def test_a_candidate_that_is_stuck_does_not_take_the_lease() -> None:
    api = with_free_lease()
    one, requests = Replica(api, "one"), len(api.writes)
    one.is_well = False
    for _ in range(30):
        assert one.lease.step() is Standing.CANDIDATE
        advance(TIMES.retry, one)
    assert len(api.writes) == requests
    assert not one.lease.is_reached
    one.is_well = True
    assert one.lease.step() is Standing.LEADER
    assert one.lease.is_reached

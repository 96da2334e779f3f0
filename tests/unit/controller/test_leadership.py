"""The lease's rules with a clock that the test turns: at no moment may two writers write."""

from __future__ import annotations

import pytest

from koordra.api.kinds import LEASES
from koordra.controller.leadership import LeaderLease, LeaseTimes, Standing
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import explode_at
from tests.fakes.kube_api import FakeKubeApi

TIMES = LeaseTimes(lease=15.0, retry=2.0, timeout=5.0)


class Replica:
    """A candidate with a clock of its own (an offset: monotonic clocks of two machines have nothing in
    common)."""

    def __init__(self, api: FakeKubeApi, name: str, offset: float = 0.0) -> None:
        self.now = offset
        self.lease = LeaderLease(
            api,
            namespace="koordra-system",
            name="koordra-controller",
            identity=name,
            clock=lambda: self.now,
            now=lambda: f"at {self.now}",
            times=TIMES,
        )


def advance(seconds: float, *replicas: Replica) -> None:
    for replica in replicas:
        replica.now += seconds


def test_the_first_takes_the_lease_at_once_and_keeps_it() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two", 5000.0)
    assert one.lease.step() is Standing.LEADER
    for _ in range(40):
        assert two.lease.step() is Standing.CANDIDATE
        advance(TIMES.retry, one, two)
        assert one.lease.step() is Standing.LEADER
        assert one.lease.may_write()
        assert not two.lease.may_write()


def test_a_writer_stops_one_timeout_before_its_lease_ends_and_a_successor_starts_one_after() -> None:
    api = FakeKubeApi()
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
    api = FakeKubeApi()
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
    api = FakeKubeApi()
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
    api = FakeKubeApi()
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


def test_a_released_lease_is_taken_without_waiting() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two", 77.0)
    one.lease.step()
    two.lease.step()
    one.lease.release()
    assert not one.lease.may_write()
    assert two.lease.step() is Standing.LEADER
    spec = api.get(LEASES, "koordra-controller", namespace="koordra-system")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 1)


def test_the_same_identity_comes_back_after_one_timeout() -> None:
    api = FakeKubeApi()
    Replica(api, "one").lease.step()
    again = Replica(api, "one", 300.0)
    assert again.lease.step() is Standing.CANDIDATE
    advance(TIMES.timeout - 0.1, again)
    assert again.lease.step() is Standing.CANDIDATE
    advance(0.1, again)
    assert again.lease.step() is Standing.LEADER


def test_of_two_candidates_one_gets_it() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two", 9.0)
    Replica(api, "dead").lease.step()
    one.lease.step()
    two.lease.step()
    advance(TIMES.lease + TIMES.timeout, one, two)
    assert {one.lease.step(), two.lease.step()} == {Standing.LEADER, Standing.CANDIDATE}


def test_a_lease_deleted_by_hand_is_made_again_by_its_holder() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two")
    one.lease.step()
    two.lease.step()
    api.delete(LEASES, "koordra-controller", namespace="koordra-system")
    assert two.lease.step() is Standing.CANDIDATE, "who has seen a holder waits for it to notice"
    advance(2, one, two)
    assert one.lease.step() is Standing.LEADER


def test_a_lease_deleted_by_hand_is_taken_once_its_holder_must_have_stopped() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two")
    one.lease.step()
    two.lease.step()
    api.delete(LEASES, "koordra-controller", namespace="koordra-system")
    advance(TIMES.lease + TIMES.timeout - 0.1, two)
    assert two.lease.step() is Standing.CANDIDATE
    advance(0.1, two)
    assert two.lease.step() is Standing.LEADER


def test_a_renewal_lasts_from_when_it_was_sent() -> None:
    api = FakeKubeApi()
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


def spec_of(api: FakeKubeApi) -> dict[str, object]:
    found: dict[str, object] = api.get(LEASES, "koordra-controller", namespace="koordra-system")["spec"]
    return found


def test_what_the_lease_says_to_people() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two", 100.0)
    one.lease.step()
    ours = {"holderIdentity": "one", "leaseDurationSeconds": 15, "acquireTime": "at 0.0"}
    assert spec_of(api) == {**ours, "renewTime": "at 0.0", "leaseTransitions": 0}
    advance(2, one)
    one.lease.step()
    assert spec_of(api) == {**ours, "renewTime": "at 2.0", "leaseTransitions": 0}
    one.lease.release()
    free = {**ours, "holderIdentity": "", "leaseDurationSeconds": 1}
    assert spec_of(api) == {**free, "renewTime": "at 2.0", "leaseTransitions": 0}
    for replica, transitions in ((two, 1), (one, 2)):
        assert replica.lease.step() is Standing.LEADER
        said = spec_of(api)
        assert (said["acquireTime"], said["leaseTransitions"]) == (f"at {replica.now}", transitions)
        replica.lease.release()


def test_who_never_held_the_lease_releases_nothing() -> None:
    api = FakeKubeApi()
    one, two = Replica(api, "one"), Replica(api, "two")
    one.lease.step()
    two.lease.step()
    two.lease.release()
    assert spec_of(api)["holderIdentity"] == "one"


def test_whether_the_last_look_was_answered() -> None:
    api = FakeKubeApi()
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

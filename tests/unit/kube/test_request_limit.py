"""One token bucket a process: Leases do not wait, Events give way, and the server's Retry-After is kept. On a
clock of its own: a pause moves it."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import urllib3

from koordra import errors
from koordra.api import kinds
from koordra.errors import ApiUnreachable
from koordra.kube.client import KubeClient
from koordra.kube.request_limit import LONGEST_REST, Lane, RequestLimit


class Time:
    """Passes by being waited for alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def limit(time: Time, qps: float = 10.0, burst: int = 4, drawn: float = 0.0) -> RequestLimit:
    return RequestLimit(qps, burst, clock=time.clock, sleep=time.sleep, draw=lambda: drawn)


def test_a_burst_goes_at_once_and_the_rest_at_the_rate(time: Time) -> None:
    bucket = limit(time)
    for _ in range(8):
        bucket.take(Lane.ORDINARY, within=5)
    assert time.pauses == pytest.approx([0.1] * 4)


def test_in_an_hour_of_haste_no_more_is_sent_than_was_said(time: Time) -> None:
    bucket, sent = limit(time, qps=2.0, burst=5), 0
    while time.now < 100 + 3600:
        bucket.take(Lane.ORDINARY, within=5)
        sent += 1
    assert 2 * 3600 <= sent <= 2 * 3600 + 5


def test_what_is_not_used_is_kept_up_to_the_burst(time: Time) -> None:
    bucket = limit(time)
    for _ in range(4):
        bucket.take(Lane.ORDINARY, within=5)
    time.now += 1000
    for _ in range(4):
        bucket.take(Lane.ORDINARY, within=5)
    assert not time.pauses
    bucket.take(Lane.ORDINARY, within=5)
    assert time.pauses == pytest.approx([0.1])


def test_those_who_wait_together_go_one_after_the_other(time: Time) -> None:
    """Each waiting thread has a token of its own before it sleeps."""
    pauses: list[float] = []
    bucket = RequestLimit(10.0, 1, clock=time.clock, sleep=pauses.append)
    for _ in range(4):
        bucket.take(Lane.ORDINARY, within=5)
    assert pauses == pytest.approx([0.1, 0.2, 0.3])


def test_waiting_counts_and_who_would_wait_too_long_is_not_sent(time: Time) -> None:
    """The lease's fence is asked before a request and rests on its time limit."""
    bucket = limit(time, qps=1.0, burst=1)
    assert bucket.take(Lane.ORDINARY, within=5) == 5.0
    assert bucket.take(Lane.ORDINARY, within=5) == pytest.approx(4.0)
    for _ in range(3):
        with pytest.raises(ApiUnreachable, match=r"not sent: --kube-api-qps leaves 1.0 s before") as caught:
            bucket.take(Lane.ORDINARY, within=0.5)
        assert caught.value.code == 0  # no answer of the server: to an eviction a 429 would be one
    assert bucket.take(Lane.ORDINARY, within=1.0) > 0  # what was not sent took no token


def test_leases_never_wait(time: Time) -> None:
    bucket = limit(time, qps=1.0, burst=1)
    bucket.take(Lane.ORDINARY, within=5)
    bucket.rest(30)
    for _ in range(3):
        assert bucket.take(Lane.LEASE, within=5) == 5.0
    assert not time.pauses
    time.now += 31
    bucket.take(Lane.ORDINARY, within=5)
    assert not time.pauses


def test_events_leave_half_of_the_bucket_to_everything_else(time: Time) -> None:
    bucket = limit(time, qps=10.0, burst=10)
    for _ in range(5):
        bucket.take(Lane.SPARE, within=5)
    assert not time.pauses
    bucket.take(Lane.SPARE, within=5)
    assert time.pauses == pytest.approx([0.1])
    for _ in range(5):
        bucket.take(Lane.ORDINARY, within=5)
    assert len(time.pauses) == 1


def test_an_event_that_waits_gives_way_to_whoever_comes_meanwhile(time: Time) -> None:
    order: list[str] = []

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if len(time.pauses) < 4:
            bucket.take(Lane.ORDINARY, within=5)
            order.append("allocation")

    bucket = RequestLimit(10.0, 2, clock=time.clock, sleep=sleep, draw=lambda: 0.0)
    for _ in range(2):
        bucket.take(Lane.ORDINARY, within=5)
    bucket.take(Lane.SPARE, within=5)
    order.append("event")
    assert order == ["allocation"] * 3 + ["event"]


def test_an_event_that_nobody_lets_through_is_not_sent(time: Time) -> None:
    bucket = limit(time, qps=1.0, burst=10)
    for _ in range(10):
        bucket.take(Lane.ORDINARY, within=5)
    with pytest.raises(ApiUnreachable):
        bucket.take(Lane.SPARE, within=5)
    bucket.take(Lane.ORDINARY, within=5)


def test_after_retry_after_nobody_asks_before_and_not_all_at_the_same_moment(time: Time) -> None:
    bucket = limit(time, drawn=0.5)
    bucket.rest(2)
    assert bucket.take(Lane.ORDINARY, within=5) == pytest.approx(2.5)
    assert time.pauses == pytest.approx([2.5])
    bucket.rest(20)
    bucket.rest(0)  # a later answer that says nothing shortens no rest
    with pytest.raises(ApiUnreachable, match=r"the API server asks for 25.0 s"):
        bucket.take(Lane.ORDINARY, within=5)


def test_a_rest_is_bounded(time: Time) -> None:
    bucket = limit(time)
    bucket.rest(1e9)
    time.now += LONGEST_REST + 0.1
    bucket.take(Lane.ORDINARY, within=5)
    assert not time.pauses


def test_no_limit_is_none_but_what_the_server_asks_for(time: Time) -> None:
    bucket = limit(time, qps=0.0, burst=1)
    for _ in range(100):
        for lane in Lane:
            bucket.take(lane, within=1)
    assert not time.pauses
    bucket.rest(0.5)
    bucket.take(Lane.ORDINARY, within=1)
    assert time.pauses == pytest.approx([0.5])


def test_threads_share_one_bucket() -> None:
    time, pauses = Time(), list[float]()
    bucket = RequestLimit(1.0, 10, clock=time.clock, sleep=pauses.append)

    def ask() -> None:
        for _ in range(10):
            bucket.take(Lane.ORDINARY, within=1000)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(pauses) == pytest.approx([float(number) for number in range(1, 41)])


class Pool:
    """Answers with what is scripted, and tells what each request was given."""

    def __init__(self, *answers: tuple[int, Mapping[str, str]]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.timeouts: list[urllib3.Timeout] = []
        self.headers: list[Mapping[str, str]] = []

    def request(
        self, method: str, url: str, *, timeout: urllib3.Timeout, headers: Mapping[str, str], **_: Any
    ) -> urllib3.HTTPResponse:
        self.asked.append((method, url))
        self.headers.append(headers)
        self.timeouts.append(timeout)
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return urllib3.HTTPResponse(io.BytesIO(b"{}"), headers, status=status, preload_content=False)


def client(pool: Pool, bucket: RequestLimit) -> KubeClient:
    return KubeClient("http://x", pool, dict, timeout=5.0, user_agent="u", limit=bucket)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [429, 503])
def test_the_server_s_retry_after_holds_back_all_but_leases(time: Time, status: int) -> None:
    pool = Pool((status, {"Retry-After": "3"}))
    api = client(pool, limit(time))
    with pytest.raises(errors.ApiUnreachable):
        api.get(kinds.NODES, "n")
    api.get(kinds.LEASES, "l", namespace="a")
    assert not time.pauses
    api.get(kinds.NODES, "n")
    assert time.pauses == pytest.approx([3.0])


@pytest.mark.parametrize("said", ["", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1e9", "²"])
def test_what_is_no_number_of_seconds_is_no_rest(time: Time, said: str) -> None:
    api = client(Pool((429, {"Retry-After": said})), limit(time))
    with pytest.raises(errors.ApiUnreachable):
        api.get(kinds.NODES, "n")
    api.get(kinds.NODES, "n")
    assert not time.pauses


def test_a_disruption_budget_that_says_no_holds_nobody_else_back(time: Time) -> None:
    api = client(Pool((429, {"Retry-After": "10"})), limit(time))
    with pytest.raises(errors.ApiUnreachable):
        api.create(kinds.PODS, {}, namespace="a", name="p", subresource="eviction")
    api.get(kinds.NODES, "n")
    assert not time.pauses


def test_the_time_that_a_request_waited_is_not_given_to_the_server_again(time: Time) -> None:
    pool = Pool()
    api = client(pool, limit(time, qps=0.5, burst=1))
    api.get(kinds.NODES, "n")
    api.get(kinds.NODES, "n")
    assert [timeout.total for timeout in pool.timeouts] == pytest.approx([5.0, 3.0])
    assert [timeout.connect_timeout for timeout in pool.timeouts] == pytest.approx([5.0, 3.0])
    pool.answers.append((429, {"Retry-After": "10"}))
    with pytest.raises(errors.ApiUnreachable):
        api.get(kinds.NODES, "n")
    sent = len(pool.asked)
    with pytest.raises(errors.ApiUnreachable, match="not sent"):
        api.get(kinds.NODES, "n")
    assert len(pool.asked) == sent


def test_events_and_leases_are_told_by_their_kind(time: Time) -> None:
    """A namespace or a pod that is called events is nothing else than others."""
    pool = Pool()
    api = client(pool, limit(time, qps=1.0, burst=4))
    for _ in range(2):
        api.create(kinds.EVENTS, {"metadata": {"name": "e", "namespace": "a"}})
    api.get(kinds.PODS, "events", namespace="events")
    api.get(kinds.PODS, "leases", namespace="leases")
    assert not time.pauses
    api.get(kinds.LEASES, "l", namespace="a")
    assert not time.pauses
    api.create(kinds.EVENTS, {"metadata": {"name": "e", "namespace": "a"}})
    assert time.pauses == pytest.approx([4.0])  # until half of the bucket is full again, and one more


def test_a_spare_look_up_gives_way_and_is_given_up_early(time: Time) -> None:
    pool = Pool()
    api = client(pool, limit(time, qps=1.0, burst=2))
    api.get(kinds.NODES, "n", spare_within=1.5)
    assert [timeout.total for timeout in pool.timeouts] == [1.5]
    api.get(kinds.NODES, "n", spare_within=1.5)
    assert time.pauses == pytest.approx([1.0])
    assert pool.timeouts[-1].total == pytest.approx(0.5)
    api.get(kinds.NODES, "n")
    assert len(time.pauses) == 1


def test_a_body_says_what_it_is_and_every_request_whose_it_is(time: Time) -> None:
    """The component's name is what audit logs and metrics of the API server count by."""
    pool = Pool()
    api = client(pool, limit(time))
    api.get(kinds.NODES, "n")
    api.patch(kinds.NODES, "n", {})
    assert [one.get("Content-Type") for one in pool.headers] == [None, "application/merge-patch+json"]
    assert {one["User-Agent"] for one in pool.headers} == {"u"}

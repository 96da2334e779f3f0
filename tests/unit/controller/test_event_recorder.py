"""Events are series: one object per reason, whose count rises, whoever writes it; each costs one request."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from koordra.api import names, objects
from koordra.api.kinds import EVENTS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.reporting import event_recorder
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_recorder import (
    MOST_PENDING,
    MOST_REFUSALS,
    EventRecorder,
    event_name,
)
from koordra.errors import ApiError, ApiUnreachable, Forbidden, Invalid, NotFound
from tests.fakes.clock import Clock
from tests.fakes.joint_cluster import JointCluster, claim, explode_at, pod
from tests.fakes.kube_api import FakeKubeApi, Write


def recorder(api: FakeKubeApi, identity: str = "one", clock: Clock | None = None) -> EventRecorder:
    clock = clock or Clock()
    return EventRecorder(api, now=lambda: "2026-11-21T00:00:00Z", identity=identity, clock=clock.monotonic)


class Counting(FakeKubeApi):
    """Counts what is read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        self.reads += 1
        return super().get(kind, name, namespace=namespace)


def verbs(api: FakeKubeApi) -> list[str]:
    return [write.verb for write in api.writes if write.kind == "events"]


def stored_claim(api: FakeKubeApi, name: str = "a") -> dict[str, object]:
    return api.create(RESOURCE_CLAIMS, claim(name))


def test_one_event_per_object_and_reason_and_its_count_rises() -> None:
    api = FakeKubeApi()
    about = stored_claim(api)
    records = recorder(api)
    for message in ("8 short", "7 short"):
        records(ClaimEvent("InsufficientCapacity", message, (about,)))
        records.flush()
    records(ClaimEvent("Allocated", "on n0", (about,), warning=False))
    records.flush()
    found = {event["reason"]: event for event in api.all(EVENTS)}
    assert {reason: event["count"] for reason, event in found.items()} == {
        "InsufficientCapacity": 2,
        "Allocated": 1,
    }
    event = found["InsufficientCapacity"]
    assert (event["message"], event["type"]) == ("7 short", "Warning")
    assert found["Allocated"]["type"] == "Normal"
    assert event["involvedObject"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": "default",
        "name": "a",
        "uid": objects.uid(about),
    }


def test_another_replica_counts_on() -> None:
    api = FakeKubeApi()
    about = stored_claim(api)
    for identity in ("one", "two"):
        records = recorder(api, identity)
        records(ClaimEvent("Tainted", "x", (about,)))
        records.flush()
    (event,) = api.all(EVENTS)
    assert event["count"] == 2


def test_each_event_costs_one_request_and_nothing_is_read() -> None:
    api = Counting()
    about = stored_claim(api)
    records = recorder(api)
    for message in ("8 short", "7 short", "6 short"):
        records(ClaimEvent("InsufficientCapacity", message, (about,)))
        records.flush()
    assert (verbs(api), api.reads) == (["create", "patch", "patch"], 0)
    assert [event["count"] for event in api.all(EVENTS)] == [3]


def test_what_a_predecessor_has_written_is_counted_on_from_the_answer_to_a_patch() -> None:
    """`get` on Events is a right that the controller does not need."""
    api = Counting()
    about = stored_claim(api)
    for identity in ("one", "two"):
        records = recorder(api, identity)
        for _ in range(3):
            records(ClaimEvent("Tainted", "x", (about,)))
            records.flush()
    assert api.reads == 0
    assert verbs(api) == ["create", "patch", "patch", *["create", "patch", "patch"], "patch", "patch"]
    assert [event["count"] for event in api.all(EVENTS)] == [6]


def test_of_the_events_that_are_there_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "MOST_KNOWN", 2)
    api = Counting()
    records = recorder(api)
    for _ in range(2):
        for number in range(3):
            records(ClaimEvent("Tainted", "x", (claim(f"c{number}", uid=str(number)),)))
            records.flush()
    assert verbs(api) == ["create"] * 3 + ["create", "patch", "patch"] * 3  # forgotten before it came again
    assert {event["count"] for event in api.all(EVENTS)} == {2}


def test_events_cost_less_than_the_allocations_that_they_tell_of() -> None:
    """A storm: more claims at once than there is room for, and the rest as devices come free."""
    cluster = JointCluster(nodes=4, gpus=4)
    api = cluster.api
    for number in range(24):
        cluster.claim(f"c{number}")
        cluster.pod(f"p{number}", f"c{number}", gates=[names.JOINT_GATE])
    of_claims = len(api.writes)
    given: set[str] = set()
    for _ in range(4):
        cluster.settle(passes=2)
        cluster.pass_time(5)
        new = {f"c{number}" for number in range(24) if cluster.node_of(f"c{number}")} - given
        for name in sorted(new):
            cluster.scheduler_binds(f"p{name[1:]}", name)
            cluster.pod_ends(f"p{name[1:]}", name)
        given |= new
    assert len(given) == 24
    asked = [write for write in api.writes[of_claims:] if write.verb == "patch"]
    events = Counting()
    records = recorder(events)
    for told in cluster.told:
        records(told)
        records.flush()
    allocated = sum(told.reason == "Allocated" for told in cluster.told)
    assert allocated == 24
    assert len(asked) == 3 * 24  # finalizer, allocation, gate
    assert events.reads == 0
    assert len(verbs(events)) == sum(len(told.about) for told in cluster.told) < len(asked)


def test_an_expired_event_is_made_again() -> None:
    api = FakeKubeApi()
    about = stored_claim(api)
    records = recorder(api)
    for _ in range(2):
        records(ClaimEvent("Tainted", "x", (about,)))
        records.flush()
        name = event_name(about, "Tainted")
        assert api.get(EVENTS, name)["count"] == 1
        api.delete(EVENTS, name)


def test_bursts_are_one_write_with_the_newest_message() -> None:
    api = FakeKubeApi()
    about = stored_claim(api)
    records = recorder(api)
    for number in range(5):
        records(ClaimEvent("Tainted", str(number), (about, pod("p", ["a"]))))
    before = len(api.writes)
    records.flush()
    assert len(api.writes) - before == 2
    assert {(event["count"], event["message"]) for event in api.all(EVENTS)} == {(5, "4")}


def test_an_event_that_the_server_refuses_stops_nothing() -> None:
    api = FakeKubeApi()
    first, second = stored_claim(api, "a"), stored_claim(api, "b")
    records = recorder(api)
    api.before = explode_at(0, lambda: Invalid("no such namespace", code=422))
    records(ClaimEvent("Tainted", "x", (first,)))
    records(ClaimEvent("Tainted", "x", (second,)))
    assert records.flush()
    assert [event["involvedObject"]["name"] for event in api.all(EVENTS)] == ["b"]


def test_events_are_kept_while_the_server_is_away_and_newer_words_win() -> None:
    api = FakeKubeApi()
    about = stored_claim(api, "a")
    records = recorder(api)
    api.before = explode_at(0, lambda: ApiUnreachable("away"))
    records(ClaimEvent("Tainted", "old", (about,)))
    records(ClaimEvent("Allocated", "on n0", (about,)))
    assert not records.flush()
    records(ClaimEvent("Tainted", "new", (about,)))
    assert records.flush()
    assert {event["reason"]: (event["message"], event["count"]) for event in api.all(EVENTS)} == {
        "Tainted": ("new", 2),
        "Allocated": ("on n0", 1),
    }


def test_what_waits_to_be_written_is_bounded() -> None:
    api = FakeKubeApi()
    records = recorder(api)
    for number in range(MOST_PENDING + 3):
        records(ClaimEvent("Tainted", "x", (claim(f"c{number}", uid=str(number)),)))
    records.flush()
    names = {event["involvedObject"]["name"] for event in api.all(EVENTS)}
    assert len(names) == MOST_PENDING
    assert "c0" not in names


def test_event_names_are_valid_for_the_longest_object_names() -> None:
    name = event_name(claim("a" * 252 + "b", uid="u"), "InsufficientCapacity")
    assert len(name) <= 253
    assert name == event_name(claim("a" * 252 + "b", uid="u"), "InsufficientCapacity")
    assert name != event_name(claim("a" * 252 + "b", uid="v"), "InsufficientCapacity")


STARTING = Forbidden("RBAC: not yet", code=403, reason="Forbidden")


class Refuses(FakeKubeApi):
    """Says no to what is written into some namespaces."""

    def __init__(self, **no: ApiError) -> None:
        super().__init__()
        self.no = no
        self.asked: list[str] = []

    def create(self, kind: Kind, body: Object, **more: object) -> Object:
        place = objects.namespace(body)
        self.asked.append(place)
        if place in self.no:
            raise self.no[place]
        return super().create(kind, body)


def told_in(*namespaces: str, number: int = 0) -> list[ClaimEvent]:
    about = [
        {
            **claim("c", uid=f"{place}-{number}"),
            "metadata": {"name": "c", "namespace": place, "uid": f"{place}-{number}"},
        }
        for place in namespaces
    ]
    return [ClaimEvent("Tainted", "x", (each,)) for each in about]


@pytest.mark.parametrize("code", [401, 403])
def test_an_api_server_that_has_just_started_refuses_for_a_moment_only(code: int) -> None:
    clock, api = Clock(), Refuses(a=Forbidden("not yet", code=code))
    records = recorder(api, clock=clock)
    for event in (*told_in("a"), *told_in("a", number=1)):
        records(event)
    assert records.flush()
    assert records.flush()
    assert api.asked == ["a"]  # one question for all that is kept, and none before its time
    del api.no["a"]
    clock.now += 1
    records.flush()
    assert len(api.all(EVENTS)) == 2


def test_a_namespace_that_refuses_events_keeps_nobody_else_s_back_and_is_asked_ever_less_often() -> None:
    clock, api = Clock(), Refuses(a=STARTING)
    records = recorder(api, clock=clock)
    for second in range(3600):
        clock.now += 1
        for event in (*told_in("a", number=second), *told_in("b", number=second)):
            records(event)
        assert records.flush()
    asked = Counter(api.asked)
    assert asked["b"] == 3600
    assert MOST_REFUSALS < asked["a"] < 3600 / 15 + MOST_REFUSALS
    assert not records.kept
    del api.no["a"]
    clock.now += 60
    for event in told_in("a", number=-1):
        records(event)
    records.flush()
    assert [
        event["involvedObject"]["uid"] for event in api.all(EVENTS) if objects.namespace(event) == "a"
    ] == ["a--1"]


def test_what_is_refused_for_good_is_dropped_after_a_minute() -> None:
    clock, api = Clock(), Refuses(a=STARTING)
    records = recorder(api, clock=clock)
    for event in told_in("a"):
        records(event)
    for _ in range(120):
        clock.now += 1
        records.flush()
    assert len(api.asked) == MOST_REFUSALS
    assert not records.kept


def test_a_namespace_that_took_an_event_has_all_its_tries_again() -> None:
    clock, api = Clock(), Refuses(a=STARTING)
    records = recorder(api, clock=clock)
    for outage in range(2):
        api.no["a"] = STARTING
        for event in told_in("a", number=outage):
            records(event)
        for _ in range(MOST_REFUSALS - 1):
            clock.now += 60
            records.flush()
        assert records.kept == 1
        del api.no["a"]
        clock.now += 60
        records.flush()
    assert len(api.all(EVENTS)) == 2


def test_an_event_of_a_namespace_that_is_gone_is_not_tried_again() -> None:
    clock, api = Clock(), Refuses(a=NotFound("namespace a is being terminated", code=403))
    records = recorder(api, clock=clock)
    for event in told_in("a"):
        records(event)
    for _ in range(3):
        clock.now += 60
        assert records.flush()
    assert api.asked == ["a"]


def test_an_object_of_which_too_much_is_told_keeps_its_newest_words_and_disturbs_no_other() -> None:
    clock, api = Clock(), FakeKubeApi()
    spam, calm = stored_claim(api, "spam"), stored_claim(api, "calm")
    records = recorder(api, clock=clock)
    for number in range(100):
        records(ClaimEvent("Tainted", str(number), (spam,)))
        records.flush()
    records(ClaimEvent("Tainted", "once", (calm,)))
    records.flush()
    found = {event["involvedObject"]["name"]: event for event in api.all(EVENTS)}
    assert (found["spam"]["message"], found["spam"]["count"]) == ("24", 25)
    assert found["calm"]["message"] == "once"
    clock.now += 299
    records.flush()
    assert len(verbs(api)) == 26
    clock.now += 1
    records.flush()
    found = {event["involvedObject"]["name"]: event for event in api.all(EVENTS)}
    assert (found["spam"]["message"], found["spam"]["count"]) == ("99", 100)


def test_an_answer_that_was_lost_is_no_second_event() -> None:
    api = Counting()
    about = stored_claim(api)
    records = recorder(api)
    api.after = explode_at(0, lambda: ApiUnreachable("cut off"))
    records(ClaimEvent("Tainted", "x", (about,)))
    assert not records.flush()
    assert records.flush()
    assert [event["message"] for event in api.all(EVENTS)] == ["x"]


def test_a_server_that_is_away_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordra.process.backoff.random.random", lambda: 0.5)
    api, waited = FakeKubeApi(), list[float]()
    records = recorder(api)

    def away(write: Write) -> None:
        assert write.step < 12, "asked without a pause"
        raise ApiUnreachable("away", code=503)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            records(ClaimEvent("Tainted", str(len(waited)), (claim("a", uid="a"),)))
            if len(waited) == 9:
                self.set()
            return self.is_set()

    api.before = away
    records(ClaimEvent("Tainted", "x", (claim("a", uid="a"),)))
    records.run(Stop())
    assert waited == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert len(api.writes) == 10  # each try is one request, and one more at the end

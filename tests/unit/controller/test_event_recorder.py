"""Events are series: one object per reason, whose count rises, whoever writes it."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.kinds import EVENTS, RESOURCE_CLAIMS
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_recorder import MOST_PENDING, EventRecorder, event_name
from koordra.errors import ApiUnreachable, Invalid
from tests.fakes.joint_cluster import claim, explode_at, pod
from tests.fakes.kube_api import FakeKubeApi


def recorder(api: FakeKubeApi, identity: str = "one") -> EventRecorder:
    return EventRecorder(api, now=lambda: "2026-11-21T00:00:00Z", identity=identity)


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

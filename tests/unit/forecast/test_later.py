"""When what waits will fit: from declared and learned ends, by the controller's own passes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.cli.cluster.explain import explain
from koordra.controller.allocation.learned.claim_durations import ClaimDurations
from koordra.controller.allocation.learned.leftover_store import (
    DURATIONS,
    MOST_OF_DURATIONS,
    durations_data,
    durations_of,
)
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.forecast.later import Later, fits_later, span
from koordra.controller.gangs.seats.job_owner import JOBS
from koordra.errors import InvalidManifest
from koordra.placement.policy.departures import Departures, spread
from koordra.placement.policy.durations import ENOUGH, HORIZON, MOST_KINDS, Durations, kind_of
from tests.unit.allocator.machines import request
from tests.unit.dashboard.scene import NOW, Site, fleet, running, waiting
from tests.unit.reservations.test_reservations import reservation
from tests.unit.reservations.test_reserved_seats import cluster, without_holds

HOUR = 3600.0


def full(*names: str) -> list[Object]:
    """As many nodes of eight cards, each taken by a claim since an hour."""
    made = fleet(f"hgx-h100:{len(names)}")
    for name in names:
        made += waiting(name, request("gpus", count=8))
    return running(made)


def pod_of(made: list[Object], name: str) -> Any:
    return next(one for one in made if one["kind"] == "Pod" and one["metadata"]["name"] == name)


def later(made: list[Object], **terms: Any) -> dict[str, Later]:
    found = fits_later(forecast(tables_of(made), Terms(NOW, **terms)))
    return {key.partition("/")[2]: one for key, one in found.items()}


def test_a_deadline_makes_room_for_who_is_first_in_the_queue() -> None:
    made = full("a", "b")
    pod_of(made, "a")["spec"]["activeDeadlineSeconds"] = 3 * 3600
    made += [*waiting("first", request("gpus", count=8)), *waiting("second", request("gpus", count=8))]
    pod_of(made, "second")["metadata"]["creationTimestamp"] = "2026-11-28T11:30:00Z"
    found = later(made)
    assert found["first"].at == 2 * HOUR
    assert found["first"].after == (("default/a", "activeDeadlineSeconds of pod default/a"),)
    assert (found["second"].at, found["second"].unknown, found["second"].running) == (None, 1, 2)
    assert "of 1 of the 2 claims with devices nobody says when they end" in str(found["second"])


def test_who_gets_its_devices_on_the_way_ends_in_its_turn() -> None:
    made = full("a")
    pod_of(made, "a")["metadata"]["annotations"] = {"koordra.io/expected-duration": "90m"}
    for name in ("one", "two", "three"):
        made += waiting(name, request("gpus", count=8))
        pod_of(made, name)["metadata"]["annotations"] = {"koordra.io/expected-duration": "1h"}
    found = sorted((one.at, name) for name, one in later(made).items() if one.at is not None)
    assert [at for at, _ in found] == [0.5 * HOUR, 1.5 * HOUR, 2.5 * HOUR]


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"annotations": {"koordra.io/expected-duration": "2h"}}, HOUR),
        ({"annotations": {"koordra.io/expected-duration": "10m"}}, None),  # it has run longer
        ({"annotations": {"koordra.io/expected-duration": "soon"}}, None),
        ({"annotations": {"koordra.io/expected-duration": "99999999999h"}}, None),
        ({"annotations": {"koordra.io/expected-duration": "4h"}, "deadline": 2 * 3600}, HOUR),
        ({"deadline": 600}, 0.0),  # past: the kubelet ends it now
        ({"deadline": "x"}, None),
        ({"ownerReferences": [{"kind": "Job", "name": "j", "controller": True}]}, 4 * HOUR),
        ({"ownerReferences": [{"kind": "Job", "name": "other", "controller": True}]}, None),
    ],
    ids=str,
)
def test_what_declares_an_end(change: dict[str, Any], at: float | None) -> None:
    made = full("a")
    pod = pod_of(made, "a")
    if "deadline" in change:
        pod["spec"]["activeDeadlineSeconds"] = change["deadline"]
    pod["metadata"] |= {name: value for name, value in change.items() if name != "deadline"}
    made += waiting("next", request("gpus", count=8))
    job = {"spec": {"activeDeadlineSeconds": 5 * 3600}, "status": {"startTime": "2026-11-28T11:00:00Z"}}
    found = later(made, read=lambda kind, name, _: job if (kind, name) == (JOBS, "j") else None)
    assert found["next"].at == at


def test_a_claim_of_several_pods_ends_with_the_last() -> None:
    made = full("a")
    other = json.loads(json.dumps(pod_of(made, "a")))
    other["metadata"] |= {"name": "b", "uid": "pod-b"}
    made.append(other)
    pod_of(made, "a")["spec"]["activeDeadlineSeconds"] = 2 * 3600
    made += waiting("next", request("gpus", count=8))
    assert later(made)["next"].at is None
    other["spec"]["activeDeadlineSeconds"] = 5 * 3600
    assert later(made)["next"].at == 4 * HOUR


def test_a_gang_fits_when_there_is_room_for_all_of_it() -> None:
    made = full("a", "b")
    for hours, name in ((2, "a"), (4, "b")):
        pod_of(made, name)["spec"]["activeDeadlineSeconds"] = hours * 3600
    for number in range(2):
        made += waiting(f"m{number}", request("gpus", count=8), gang="train", least=2)
    assert {one.at for one in later(made).values()} == {3 * HOUR}
    assert "forecast: it fits in about 3 h, when default/b has ended" in Site(made).page(
        "/gang/default/train"
    )


def test_ends_are_learned_from_claims_that_asked_the_same() -> None:
    made = [*full("a"), *waiting("next", request("gpus", count=8))]
    kind = kind_of(next(one for one in made if one["kind"] == "ResourceClaim"))
    durations = Durations()
    for _ in range(ENOUGH - 1):
        durations.add(kind, 5 * HOUR)
    assert later(made, durations=durations)["next"].at is None
    durations.add(kind, 5 * HOUR)
    found = later(made, durations=durations)["next"]
    assert found.at == pytest.approx(4 * HOUR, rel=0.2)
    assert found.after == (("default/a", "as 4 claims of its namespace did that asked the same"),)
    other = Durations()
    for _ in range(ENOUGH):
        other.add(kind.replace("default/", "stranger/"), 5 * HOUR)
    assert later(made, durations=other)["next"].at is None


@pytest.mark.parametrize("is_filled", [True, False])
def test_what_is_held_until_a_time_is_given_back_then(is_filled: bool) -> None:
    """Both cards of a node for an hour from a quarter past: by a DeviceHold that is there, or one that the
    passes make of the Reservation."""
    now = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
    asked = {"kind": "Reservation", "apiVersion": "koordra.io/v1alpha1", **reservation(count=2)}
    asked["metadata"] |= {"uid": "uid-r", "resourceVersion": "1", "creationTimestamp": "2026-11-21T00:15:00Z"}
    made = [*without_holds(team="b", count=1), asked]
    if is_filled:
        (hold,) = (one for one in cluster(team="b", count=1) if one["kind"] == "DeviceHold")
        metadata = {**hold["metadata"], "uid": "uid-h", "resourceVersion": "1"}
        made.append({**hold, "apiVersion": "koordra.io/v1alpha1", "metadata": metadata})
    (found,) = fits_later(forecast(tables_of(made), Terms(now))).values()
    assert (found.at, found.after) == (2700.0, ())
    assert str(found) == "forecast: it fits in about 45 min, when what is held is given back"


def test_what_never_fits_and_what_nobody_knows_is_said() -> None:
    made = full("a")
    made += waiting("never", request("gpus", count=9))
    assert "nobody says when any of the 1 claims with devices ends" in str(later(made)["never"])
    pod_of(made, "a")["spec"]["activeDeadlineSeconds"] = 2 * 3600
    assert (
        str(later(made)["never"])
        == "forecast: it does not fit when all 1 claims with devices have ended either"
    )
    assert str(Later(None)) == "forecast: no claim that ends makes room for it"
    assert [span(seconds) for seconds in (3, 89, 95, 5_000, 9_000, 86_400, 200_000)] == [
        "3 s", "89 s", "2 min", "83 min", "2 h", "24 h", "2 days",
    ]  # fmt: skip


def test_the_command_says_it_where_it_is_asked(tmp_path: Path) -> None:
    made = [*full("a"), *waiting("next", request("gpus", count=8))]
    pod_of(made, "a")["spec"]["activeDeadlineSeconds"] = 400 * 24 * 3600
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    plain = CliRunner().invoke(explain, ["-f", str(file), "next"], catch_exceptions=False)
    assert "forecast" not in plain.output
    told = CliRunner().invoke(explain, ["-f", str(file), "--when", "next"], catch_exceptions=False)
    assert "when default/a has ended" in " ".join(told.output.split())
    asked = CliRunner().invoke(
        explain, ["-f", str(file), "--when", "next", "-o", "json"], catch_exceptions=False
    )
    (entry,) = json.loads(asked.output)["claims"]
    assert entry["later"]["after"] == [
        {"claim": "default/a", "how": "activeDeadlineSeconds of pod default/a"}
    ]


def test_what_is_looked_at_is_bounded() -> None:
    made = full("a", "b", "c")
    for hours, name in ((2, "a"), (4, "b"), (8, "c")):
        pod_of(made, name)["spec"]["activeDeadlineSeconds"] = hours * 3600
    for name in ("one", "two", "three"):
        made += waiting(name, request("gpus", count=8))
    found = fits_later(forecast(tables_of(made), Terms(NOW)), most=4)
    assert sorted((one.at or -1, one.looked) for one in found.values()) == [
        (-1, HOUR),
        (-1, HOUR),
        (HOUR, None),
    ]
    assert next(str(one) for one in found.values() if one.at is None) == (
        "forecast: it does not fit within 60 min, and further it was not looked"
    )


# durations


def test_a_quantile_of_what_others_had_left() -> None:
    durations = Durations()
    for seconds in (10, 100, 1_000, 10_000):
        durations.add("k", seconds)
    ends = [durations.left("k", 0, quantile) for quantile in (0.2, 0.4, 0.6, 0.9)]
    assert all(end is not None for end in ends)
    for end, seconds in zip(ends, (10, 100, 1_000, 10_000), strict=True):
        assert end == pytest.approx(seconds, rel=0.25)
    assert durations.left("k", 50, 0.5) is None  # of three that ran longer nobody knows
    assert durations.number("k", 50) == 3
    for _ in range(8):
        durations.add("k", 10_000)
    left = durations.left("k", 5_000, 0.5)
    assert left == pytest.approx(5_000, rel=0.3)


def test_nobody_has_others_forgotten_and_old_ones_count_less() -> None:
    durations = Durations()
    for _ in range(3):
        durations.add("known", 60)
    for number in range(2 * MOST_KINDS):
        durations.add(f"made up {number}", 60)
    assert durations.number("known") == 3
    assert len(durations.to_document()) == MOST_KINDS
    for _ in range(3 * HORIZON):
        durations.add("known", 6_000)
    assert durations.number("known") < HORIZON
    assert durations.left("known", 0, 0.5) == pytest.approx(6_000, rel=0.25)


def test_what_is_kept_is_read_again_and_bounded() -> None:
    durations = Durations()
    for number in range(MOST_KINDS):
        durations.add(f"{'n' * 63}/{number:016}", 60 + number)
    text = durations_data(durations.to_document)
    assert len(text) <= MOST_OF_DURATIONS
    again = durations_of({DURATIONS: text})
    assert again.to_document() == json.loads(text)
    assert durations_of({}).to_document() == {}
    for wrong in ("[]", "{", '{"k": 3}', '{"k": {"x": 1}}', '{"k": {"1": "y"}}'):
        with pytest.raises(InvalidManifest):
            durations_of({DURATIONS: wrong})


def test_departures_come_in_order_and_those_close_together_as_one() -> None:
    found = Departures([(100.0, "b"), (5.0, "a"), (105.0, "c"), (5.5, "d"), (300.0, "e")])
    assert found.take() == (5.5, ["a", "d"])
    found.add(50.0, "f")
    assert [found.take() for _ in range(3)] == [(50.0, ["f"]), (105.0, ["b", "c"]), (300.0, ["e"])]
    assert not found
    quantiles = sorted(spread(number) for number in range(8))
    assert all(0 <= one < 1 for one in quantiles)
    assert max(after - before for before, after in pairwise(quantiles)) < 0.25


def test_claims_that_end_are_learned_from() -> None:
    now = [(NOW + timedelta(hours=2)).timestamp()]
    learned = ClaimDurations(now=lambda: now[0])
    made = full("a", "b")
    first, second = (one for one in made if one["kind"] == RESOURCE_CLAIMS.kind)
    for claim in (first, second):
        learned.on_claim("ADDED", claim)
        learned.on_claim("MODIFIED", claim)
    assert learned.version == 0
    learned.on_claim("MODIFIED", {**first, "status": {}})  # given back, and later deleted
    learned.on_claim("DELETED", {**first, "status": {}})
    learned.on_claim("DELETED", second)
    stranger = {**second, "metadata": {**second["metadata"], "uid": "unseen"}}
    learned.on_claim("DELETED", stranger)  # of which only the end was seen
    learned.on_claim("DELETED", {**stranger, "status": {"allocation": {"allocationTimestamp": "x"}}})
    assert learned.version == 3
    ((kind, counts),) = learned.to_document(9).items()
    assert kind == kind_of(first)
    assert sum(counts.values()) == 3
    again = Durations.from_document(learned.to_document(9))
    again.add(kind, 3 * HOUR)
    assert again.left(kind, 0, 0.5) == pytest.approx(3 * HOUR, rel=0.2)
    assert objects.namespace(first) == kind.partition("/")[0]

"""Each write alone: what it depends on, what it answers, and what it leaves as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from koordra.api import names
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller.allocation.writes import WriteOutcome, Writer, dropped_fields
from koordra.errors import ApiError, ApiUnreachable, Conflict, Invalid, NotFound
from tests.fakes.kube_api import FakeKubeApi

Object = dict[str, Any]


def writer(api: FakeKubeApi, *, leading: bool = True) -> Writer:
    return Writer(api, may_write=lambda: leading, now=lambda: "2026-11-21T00:00:00Z")


def pod(api: FakeKubeApi, *gates: str) -> Object:
    spec = {"schedulingGates": [{"name": gate} for gate in gates]}
    return api.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})


def claim(api: FakeKubeApi, **metadata: Any) -> Object:
    return api.create(
        RESOURCE_CLAIMS,
        {"metadata": {"name": "a", "namespace": "default", **metadata}, "spec": {}, "status": {}},
    )


def failing(error: Exception) -> Callable[[object], None]:
    def fail(_write: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("gone", code=404), WriteOutcome.GONE),
        (Conflict("another pod", code=409), WriteOutcome.GONE),
        (ApiUnreachable("a budget says no", code=429), WriteOutcome.REFUSED),
        (ApiUnreachable("no route"), WriteOutcome.UNREACHABLE),
        (Invalid("no", code=422), WriteOutcome.REFUSED),
    ],
)
def test_what_an_eviction_answers(error: Exception, outcome: WriteOutcome) -> None:
    api = FakeKubeApi()
    asked = pod(api)
    api.before = failing(error)
    assert writer(api).evict(asked).outcome is outcome


def test_nothing_is_written_once_the_lease_is_about_to_end() -> None:
    api = FakeKubeApi()
    asked, before = pod(api, names.JOINT_GATE), len(api.writes)
    fenced = writer(api, leading=False)
    answers = [fenced.evict(asked), fenced.hold(asked, {}), fenced.ungate_member(asked, {})]
    assert [answer.outcome for answer in answers] == [WriteOutcome.FENCED] * 3
    assert len(api.writes) == before


def test_a_member_is_let_go_with_its_annotations_and_keeps_the_gates_of_others() -> None:
    api = FakeKubeApi()
    asked = pod(api, "other", names.JOINT_GATE)
    assert writer(api).ungate_member(asked, {"k": "v"}).outcome is WriteOutcome.WRITTEN
    found = api.get(PODS, "p", namespace="default")
    assert found["spec"]["schedulingGates"] == [{"name": "other"}]
    assert found["metadata"]["annotations"] == {"k": "v"}


@pytest.mark.parametrize("write", ["hold", "ungate_member"])
def test_a_pod_is_annotated_in_the_version_that_was_planned_on(write: str) -> None:
    api = FakeKubeApi()
    asked = pod(api, names.JOINT_GATE)
    assert getattr(writer(api), write)(asked, {"k": "1"}).outcome is WriteOutcome.WRITTEN
    assert getattr(writer(api), write)(asked, {"k": "2"}).outcome is WriteOutcome.CONFLICT
    assert api.get(PODS, "p", namespace="default")["metadata"]["annotations"] == {"k": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"allocation": {"devices": {}}}},
        {"metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}},
    ],
    ids=["allocated", "being deleted"],
)
def test_a_claim_that_is_allocated_or_being_deleted_is_not_written(change: Object) -> None:
    api = FakeKubeApi()
    asked = claim(api)
    asked = {**asked, **change, "metadata": {**asked["metadata"], **change.get("metadata", {})}}
    before = len(api.writes)
    assert writer(api).allocate(asked, {"devices": {}}).outcome is WriteOutcome.TAKEN
    assert len(api.writes) == before


def test_an_allocation_that_somebody_else_wrote_between_the_two_writes_is_left_alone() -> None:
    api = FakeKubeApi()
    protected = claim(api, finalizers=[names.DELETE_PROTECTION])
    other = {"devices": {"results": [{"device": "gpu-9"}]}}
    api.edit(RESOURCE_CLAIMS, "a", lambda found: found.update(status={"allocation": other}))
    answer = writer(api).allocate_protected(
        protected, {"devices": {"results": [{"device": "gpu-0", "shareID": "1"}]}}
    )
    found = api.get(RESOURCE_CLAIMS, "a", namespace="default")
    assert (answer.outcome, answer.obj) == (WriteOutcome.CONFLICT, found)
    assert found["status"]["allocation"] == other


@pytest.mark.parametrize("finalizer", [names.DELETE_PROTECTION, names.RETAIN_FINALIZER])
def test_a_claim_with_either_finalizer_is_protected_already(finalizer: str) -> None:
    api = FakeKubeApi()
    asked, before = claim(api, finalizers=[finalizer]), len(api.writes)
    assert writer(api).allocate(asked, {"devices": {"results": []}}).outcome is WriteOutcome.WRITTEN
    assert len(api.writes) == before + 1
    assert api.get(RESOURCE_CLAIMS, "a", namespace="default")["metadata"]["finalizers"] == [finalizer]


def test_what_is_not_there_or_reserved_is_not_given_back() -> None:
    api = FakeKubeApi()
    asked, before = claim(api), len(api.writes)
    reserved = {**asked, "status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "p"}]}}
    for one in (asked, reserved):
        assert writer(api).give_back(one).outcome is WriteOutcome.TAKEN
    assert len(api.writes) == before


@pytest.mark.parametrize(
    ("devices", "change"),
    [([], {"allocation": None}), ([{"device": "gpu-0"}], {"allocation": None, "devices": None})],
)
def test_what_drivers_report_of_devices_goes_with_the_allocation(
    devices: list[Object], change: Object
) -> None:
    api = FakeKubeApi()
    allocated = claim(api)
    allocated["status"] = {"allocation": {"devices": {}}} | ({"devices": devices} if devices else {})
    patched = Mock(return_value=allocated)
    assert Writer(Mock(patch=patched), may_write=lambda: True, now=str).give_back(allocated).ok
    assert patched.call_args.args[2]["status"] == change


def test_an_answer_of_no_known_kind_refuses_the_write() -> None:
    api = FakeKubeApi()
    asked = pod(api, names.JOINT_GATE)
    api.before = failing(ApiError("internal error", code=500))
    answer = writer(api).ungate(asked)
    assert (answer.outcome, answer.message) == (WriteOutcome.REFUSED, "internal error")


def test_dropped_fields_are_named_and_added_ones_are_not() -> None:
    sent = {"a": {"b": [{"c": 1}, {"d": 2}]}, "empty": []}
    assert dropped_fields(sent, {"a": {"b": [{"c": 1}, {"d": 2, "e": 3}]}, "more": 1}) == []
    assert dropped_fields(sent, {"a": {"b": [{"c": 1}, {}]}}) == ["allocation.a.b[1].d"]
    assert dropped_fields(sent, {"a": {"b": [{"c": 1}]}}) == ["allocation.a.b"]
    assert dropped_fields(sent, {"a": 1}) == ["allocation.a"]
    assert dropped_fields(sent, {}) == ["allocation.a"]
    assert dropped_fields({"a": [1]}, {"a": [1, 2]}) == [], "an entry that the server added"

"""Watches: order, selectors, bookmarks, initial events, 410 Gone, the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from koordra_devcluster.apiserver.requests import Request
from koordra_devcluster.apiserver.serving import watches
from tests.unit.devcluster.calling import CLAIMS, PODS, RESOURCE, Caller
from tests.unit.devcluster.manifests import claim, pod, resource_slice

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def watch(api: Caller, path: str, query: str, **headers: str) -> Iterator[dict[str, Any]]:
    response = api.send("GET", f"{path}?watch=true&{query}", **headers)
    assert response.code == 200
    assert response.stream is not None
    return (json.loads(line) for line in response.stream if line)


def seen(events: Iterator[dict[str, Any]], count: int) -> list[tuple[str, str]]:
    return [
        (event["type"], event["object"]["metadata"].get("name", ""))
        for _, event in zip(range(count), events, strict=False)
    ]


def version(api: Caller, path: str = CLAIMS) -> str:
    return str(api.ok("GET", path)["metadata"]["resourceVersion"])


def test_changes_after_the_version_in_order(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("before"))
    since = version(api)
    events = watch(api, CLAIMS, f"resourceVersion={since}&timeoutSeconds=60")
    api.ok("POST", CLAIMS, claim("a"))
    api.patch(f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    api.ok("DELETE", f"{CLAIMS}/a")
    assert seen(events, 3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_without_a_version_the_present_comes_first(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    events = watch(api, CLAIMS, "timeoutSeconds=60")
    api.ok("POST", CLAIMS, claim("b"))
    assert seen(events, 2) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_deleted_object_carries_the_version_of_its_deletion(api: Caller) -> None:
    made = api.ok("POST", CLAIMS, claim("a"))
    events = watch(api, CLAIMS, f"resourceVersion={version(api)}&timeoutSeconds=60")
    api.ok("DELETE", f"{CLAIMS}/a")
    gone = next(events)["object"]
    assert int(gone["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


def test_objects_come_and_go_with_the_selector(api: Caller) -> None:
    api.ok("POST", PODS, pod("a"))
    events = watch(api, PODS, "timeoutSeconds=60&labelSelector=on")
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"on": "yes"}}})
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"on": "still"}}})
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"on": None}}})
    assert seen(events, 3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_one_namespace_only(api: Caller) -> None:
    events = watch(api, CLAIMS, "timeoutSeconds=60")
    other = claim("elsewhere") | {"metadata": {"name": "elsewhere", "namespace": "kube-system"}}
    api.ok("POST", f"{RESOURCE}/namespaces/kube-system/resourceclaims", other)
    api.ok("POST", CLAIMS, claim("here"))
    assert seen(events, 1) == [("ADDED", "here")]


def test_too_old_a_version_is_gone(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    old = version(api)
    api.ok("POST", CLAIMS, claim("b"))
    api.store.forget_history()
    event = next(watch(api, CLAIMS, f"resourceVersion={old}"))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_version_from_the_future_is_refused(api: Caller) -> None:
    refusal = api.refused(504, "GET", f"{CLAIMS}?watch=1&resourceVersion=999999")
    assert refusal["message"].startswith("Too large resource version: 999999")
    api.refused(400, "GET", f"{CLAIMS}?watch=1&resourceVersion=x")


def test_bookmarks_tell_a_quiet_watcher_how_far_it_is(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "BOOKMARK_PERIOD", 0.05)
    since = version(api)
    events = watch(api, CLAIMS, f"resourceVersion={since}&allowWatchBookmarks=true&timeoutSeconds=60")
    event = next(events)
    assert event["type"] == "BOOKMARK"
    assert event["object"] == {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"resourceVersion": since, "creationTimestamp": None},
    }


def test_the_stream_ends_after_its_timeout(api: Caller) -> None:
    assert list(watch(api, CLAIMS, "timeoutSeconds=0.05")) == []
    last = list(watch(api, CLAIMS, "timeoutSeconds=0.05&allowWatchBookmarks=true"))
    assert [event["type"] for event in last] == ["BOOKMARK"]


def test_initial_events_end_with_a_marked_bookmark(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    query = (
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"
    )
    events = watch(api, CLAIMS, query)
    assert next(events)["type"] == "ADDED"
    assert next(events)["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_watching_a_table_gives_rows(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    api.ok("POST", CLAIMS, claim("b"))
    events = watch(api, CLAIMS, "timeoutSeconds=60", accept=TABLE)
    first, second = next(events)["object"], next(events)["object"]
    assert first["kind"] == "Table"
    assert [column["name"] for column in first["columnDefinitions"]] == ["Name", "State", "Age"]
    assert second["columnDefinitions"] is None
    assert second["rows"][0]["cells"] == ["b", "pending", "0s"]


def test_slices_of_one_node_and_driver(api: Caller) -> None:
    slices = f"{RESOURCE}/resourceslices"
    api.ok("POST", slices, resource_slice())
    other = resource_slice(nodeName="n2")
    api.ok("POST", slices, other | {"metadata": {"name": "other"}})
    request = Request("GET", slices, {"fieldSelector": "spec.nodeName=n1,spec.driver=gpu.example.com"})
    items = json.loads(api.api.handle(request).body)["items"]
    assert [item["metadata"]["name"] for item in items] == ["s"]


def test_closing_the_store_ends_watches(api: Caller) -> None:
    response = api.send("GET", f"{CLAIMS}?watch=true&timeoutSeconds=60")
    assert response.stream is not None
    api.store.close()
    assert list(response.stream) == []

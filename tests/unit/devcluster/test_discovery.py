"""Discovery, OpenAPI and tables: what kubectl asks for before it does anything."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koordra_devcluster.apiserver.resources import GROUPS, SERVED
from koordra_devcluster.apiserver.serving import discovery, openapi, tables
from tests.unit.devcluster.calling import CLAIMS, NOW, PODS, RESOURCE, Caller
from tests.unit.devcluster.manifests import allocation, claim, node, pod, resource_slice

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def test_plain_discovery_lists_every_resource(api: Caller) -> None:
    assert api.ok("GET", "/api")["versions"] == ["v1"]
    groups = {group["name"] for group in api.ok("GET", "/apis")["groups"]}
    assert groups == {one.kind.group for one in SERVED if one.kind.group and not one.gate}
    assert api.ok("GET", "/apis/resource.k8s.io")["preferredVersion"]["version"] == "v1"
    names = {entry["name"] for entry in api.ok("GET", "/apis/resource.k8s.io/v1")["resources"]}
    assert {"resourceclaims", "resourceclaims/status", "deviceclasses", "devicetaintrules/status"} <= names
    assert {"pods/binding", "pods/eviction", "nodes/status"} <= {
        entry["name"] for entry in api.ok("GET", "/api/v1")["resources"]
    }


def test_aggregated_discovery_says_the_same(api: Caller) -> None:
    response = api.send("GET", "/apis", accept=AGGREGATED)
    assert response.content_type == discovery.AGGREGATED
    found = {
        (group["metadata"]["name"], resource["resource"])
        for group in json.loads(response.body)["items"]
        for version in group["versions"]
        for resource in version["resources"]
    }
    assert found == {(one.kind.group, one.kind.plural) for one in SERVED if one.kind.group and not one.gate}
    core = json.loads(api.send("GET", "/api", accept=AGGREGATED).body)["items"]
    assert [group["metadata"] for group in core] == [{}]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(inner) for inner in value.values()))
    return set().union(*(references(inner) for inner in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("place", GROUPS, ids=str)
def test_openapi_documents_are_complete(api: Caller, place: tuple[str, str]) -> None:
    group, version = place
    path = f"apis/{group}/{version}" if group else f"api/{version}"
    url = api.ok("GET", "/openapi/v3")["paths"][path]["serverRelativeURL"]
    document = api.ok("GET", url.partition("?")[0])
    schemas = document["components"]["schemas"]
    assert {f"#/components/schemas/{name}" for name in schemas} >= references(document)
    for served in SERVED:
        if (served.kind.group, served.kind.version) == place:
            one = document["paths"][served.kind.path(namespace="{namespace}", name="{name}")]
            assert "fieldValidation" in {parameter["name"] for parameter in one["patch"]["parameters"]}
            assert one["patch"]["x-kubernetes-group-version-kind"]["kind"] == served.kind.kind


def test_openapi_carries_merge_keys() -> None:
    schemas = openapi.document("", "v1")["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert (containers["x-kubernetes-patch-merge-key"], containers["x-kubernetes-patch-strategy"]) == (
        "name",
        "merge",
    )


def rows(api: Caller, path: str) -> list[list[Any]]:
    table = api.ok("GET", path, accept=TABLE)
    assert table["kind"] == "Table"
    assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])
    assert all(row["object"]["kind"] == "PartialObjectMetadata" for row in table["rows"])
    return [row["cells"] for row in table["rows"]]


def test_claims_show_their_state(api: Caller) -> None:
    for name in ("a", "b", "c"):
        api.ok("POST", CLAIMS, claim(name))
    for name, reserved in (("b", []), ("c", [{"resource": "pods", "name": "p", "uid": "u"}])):
        api.patch(
            f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation(), "reservedFor": reserved}}
        )
    assert rows(api, CLAIMS) == [
        ["a", "pending", "0s"],
        ["b", "allocated", "0s"],
        ["c", "allocated,reserved", "0s"],
    ]


def test_pods_show_what_keeps_them(api: Caller) -> None:
    api.ok("POST", PODS, pod("a", schedulingGates=[{"name": "example.com/g"}]))
    api.ok("POST", PODS, pod("b", nodeName="n1"))
    waiting = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    waiting |= {"state": {"waiting": {"reason": "CreateContainerError"}}}
    api.patch(f"{PODS}/b/status", {"status": {"containerStatuses": [waiting]}})
    api.ok("POST", PODS, pod("c", nodeName="n1"))
    api.ok("DELETE", f"{PODS}/c")
    assert [row[:4] for row in rows(api, PODS)] == [
        ["a", "0/1", "SchedulingGated", "0"],
        ["b", "0/1", "CreateContainerError", "0"],
        ["c", "0/1", "Terminating", "0"],
    ]


def test_other_tables(api: Caller) -> None:
    api.ok("POST", "/api/v1/nodes", node(unschedulable=True))
    assert rows(api, "/api/v1/nodes")[0][:4] == ["n1", "Ready,SchedulingDisabled", "<none>", "0s"]
    api.ok("POST", f"{RESOURCE}/resourceslices", resource_slice())
    assert rows(api, f"{RESOURCE}/resourceslices") == [["s", "n1", "gpu.example.com", "n1", "0s"]]
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "reason": "R",
        "message": "m",
    }
    api.ok("POST", "/api/v1/namespaces/default/events", event | {"type": "Normal"})
    assert rows(api, "/api/v1/namespaces/default/events")[0][1:4] == ["Normal", "R", "pod/p"]
    assert rows(api, "/apis/events.k8s.io/v1/namespaces/default/events")[0][1:4] == ["Normal", "R", "pod/p"]
    assert len(rows(api, "/api/v1/namespaces/default")) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"), (10800, "3h"), (86400 * 3, "3d"),
     (86400 * 10, "10d"), (86400 * 800, "2y70d"), (-60, "<invalid>")],
)  # fmt: skip
def test_ages_read_like_kubectls(seconds: int, text: str) -> None:
    then = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert tables.age(then, datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)) == text

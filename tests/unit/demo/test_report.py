"""The report is a function of the objects: what is missing, what waits and why, who has what."""

from __future__ import annotations

from typing import Any

from koordra.api import kinds
from koordra.api.objects import Object
from koordra_devcluster.demo import report
from koordra_devcluster.demo.manifests import Refused

DEVICE = {"name": "gpu-0", "attributes": {"koordra.io/type": {"string": "gpu"}}}


def claim(name: str, *, allocated: bool = False, expect: str = "") -> Object:
    result = {"request": "gpu", "driver": "koordra.io", "pool": "n", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}} if allocated else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": name,
            "annotations": {"koordra.io/demo-expect": expect} if expect else {},
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "absent"}}]}},
        "status": status,
    }


def pod(name: str, claim_name: str, phase: str = "Pending") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"containers": [], "resourceClaims": [{"name": "d", "resourceClaimName": claim_name}]},
        "status": {"phase": phase},
    }


def observation(claims: list[Object], pods: list[Object]) -> report.Observation:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    published = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}}
    published |= {"spec": {"driver": "koordra.io", "nodeName": "n", "pool": pool, "devices": [DEVICE]}}
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}]
    found: dict[kinds.Kind, list[Any]] = {
        kinds.RESOURCE_CLAIMS: claims,
        kinds.PODS: pods,
        kinds.RESOURCE_SLICES: [published],
        kinds.NODES: nodes,
    }
    return report.Observation({kind: found.get(kind, []) for kind in report.READ})


def test_done_means_allocated_and_running() -> None:
    done = observation([claim("c", allocated=True)], [pod("p", "c", "Running")])
    assert report.outstanding(done) == []
    starting = observation([claim("c", allocated=True)], [pod("p", "c")])
    assert report.outstanding(starting) == ["Pod a/p does not run yet"]
    waiting = observation([claim("c")], [pod("p", "c")])
    assert report.outstanding(waiting) == ["ResourceClaim a/c is not allocated", "Pod a/p does not run yet"]


def test_a_pod_whose_claim_does_not_exist_is_told_so() -> None:
    lost = observation([], [pod("p", "typo")])
    assert report.outstanding(lost) == ["Pod a/p does not run yet: ResourceClaim typo does not exist"]


def test_what_was_to_wait_may_wait_and_must_not_be_placed() -> None:
    assert report.outstanding(observation([claim("c", expect="Pending")], [pod("p", "c")])) == []
    placed = observation([claim("c", expect="Pending", allocated=True)], [pod("p", "c", "Running")])
    assert report.broken_expectations(placed) == ["ResourceClaim a/c was expected to wait and was placed"]


def test_every_waiting_claim_has_a_reason_with_a_detail() -> None:
    refused = [
        Refused(
            claim("cel"), 'spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: "x"'
        ),
        Refused(claim("zero"), "spec.devices.requests[0].exactly.count: Invalid value: 0"),
        Refused(pod("q", "cel"), "not a claim"),
    ]
    found = report.waiting(observation([claim("unused"), claim("used")], [pod("p", "used")]), refused)
    told = {entry["name"]: entry["reasons"][0]["reason"] for entry in found}
    assert told == {
        "cel": "SelectorError",
        "zero": "ConstraintViolated",
        "unused": "NodeUnsuitable",
        "used": "SelectorMismatch",
    }
    assert all(reason["detail"] for entry in found for reason in entry["reasons"])
    assert all(entry["reasons"][0]["detail"] in " ".join(entry["told"]) for entry in found)


def test_who_has_what() -> None:
    (entry,) = report.placed(observation([claim("c", allocated=True)], [pod("p", "c", "Running")]))
    assert entry == {
        "namespace": "a",
        "name": "c",
        "pods": ["p"],
        "node": "n",
        "devices": [{"request": "gpu", "device": "gpu-0", "type": "gpu", "consumedCapacity": {}}],
        "allocated": None,
        "level": None,
    }

"""Every field of what a tenant, an operator or a node writes, with what nobody should write there: no pass
ends in a traceback or costs much more than others, and the innocent claim is placed.

Objects of Kubernetes' own kinds are of their JSON types, as an API server sees to; opaque parameters,
annotations and texts are whatever somebody puts there. Half of these objects no API server would store:
koordra does not rely on its validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from koordra.api import names
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.compat.dialects import DIALECTS
from koordra.controller.webhook import handlers
from koordra.controller.webhook.review import AdmissionRequest, decode, encode
from koordra.errors import InvalidManifest
from tests.fakes.effort import calls
from tests.fakes.every_field import (
    ANYTHING,
    Path,
    allocated_claim,
    hostile,
    opaque,
    replaced,
    rich_claim,
    rich_pod,
)
from tests.fakes.joint_cluster import JointCluster, device_class, gpu_slice, node
from tests.unit.legacy.cluster import Cluster as LegacyCluster
from tests.unit.webhook.cluster import Known

FIXED: Final[frozenset[Path]] = frozenset(
    {
        ("apiVersion",),
        ("kind",),
        ("metadata",),
        ("metadata", "name"),
        ("metadata", "namespace"),
        ("metadata", "uid"),
    }
)
PARTS: Final = 100
"""Into so many tests the cases are dealt. `make test` runs the first, `make test-long` 10 more, `make
e2e-long` all."""
MOST: Final = 8
"""Times the work of two passes over the object as it was. A list of 300 entries and a text of 10 KB are
looked at, which is not for nothing."""


def node_of_the_attacker() -> Object:
    made = node("n1")
    made["metadata"]["labels"][names.MODE_LABEL] = "joint"
    made["metadata"]["annotations"] = {names.QUARANTINE_SEEN: "1", names.RELEASE_ANNOTATION: "Closing"}
    made["spec"] = {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}], "unschedulable": False}
    made["status"]["capacity"] = dict(made["status"]["allocatable"])
    made["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.1"}]
    return made


def slice_of_the_attacker() -> Object:
    made = gpu_slice("n1", 2)
    consumed = [{"counterSet": "cards", "counters": {"memory": {"value": "1"}}}]
    for device in made["spec"]["devices"]:
        device["consumesCounters"] = consumed
        device["attributes"]["uuid"] = {"string": "GPU-1"}
        device["attributes"]["driverVersion"] = {"version": "1.2.3"}
        device["attributes"]["numaNode"] = {"int": 0}
        device["attributes"]["rdma"] = {"bool": True}
        device["bindsToNode"] = False
        device["bindingConditions"] = ["koordra.io/ready"]
        device["taints"].append({"key": names.HELD_TAINT, "value": "x", "effect": "NoSchedule"})
    made["spec"]["sharedCounters"] = [{"name": "cards", "counters": {"memory": {"value": "8"}}}]
    return made


def class_with_everything() -> Object:
    made = device_class("odd.koordra.io", "gpu")
    config = opaque("GpuConfig", isolation="limiter", allowedIsolation=["limiter"])
    made["spec"]["config"] = [{"opaque": config["opaque"]}]
    made["spec"]["extendedResourceName"] = "example.org/gpu"
    return made


def taint_rule() -> Object:
    return {
        "metadata": {"name": "rule"},
        "spec": {
            "deviceSelector": {"driver": names.DRIVER, "pool": "n1", "device": "gpu-0"},
            "taint": {"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        },
    }


OBJECTS: Final[Mapping[str, tuple[Kind, Callable[[], Object]]]] = {
    "claim": (RESOURCE_CLAIMS, rich_claim),
    "allocated claim": (RESOURCE_CLAIMS, allocated_claim),
    "pod": (PODS, rich_pod),
    "node": (NODES, node_of_the_attacker),
    "slice": (RESOURCE_SLICES, slice_of_the_attacker),
    "class": (DEVICE_CLASSES, class_with_everything),
    "taint rule": (DEVICE_TAINT_RULES, taint_rule),
}


def parts() -> list[Any]:
    marks = [[], *[[pytest.mark.long]] * 10, *[[pytest.mark.slow]] * (PARTS - 11)]
    return [pytest.param(part, marks=mark) for part, mark in enumerate(marks)]


def cases(made: Object, part: int) -> Iterator[tuple[Path, Any]]:
    found = [case for case in hostile(made) if case[0] not in FIXED]
    yield from found[part::PARTS]


def work(kind: Kind, obj: Object) -> int:
    """Calls that two passes make in a cluster to which the object comes. Fails where the innocent claim is
    not placed, or somebody else's object ends in a traceback."""
    nodes = 1 if kind in (NODES, RESOURCE_SLICES) else 2
    cluster = JointCluster(nodes=nodes)
    if kind is NODES:
        cluster.api.create(RESOURCE_SLICES, gpu_slice("n1", 2))
    if kind is RESOURCE_SLICES:
        cluster.api.create(NODES, node("n1"))
    cluster.claim("innocent")
    where = {"nodeSelector": {"kubernetes.io/hostname": "n0"}} if kind in (NODES, RESOURCE_SLICES) else {}
    cluster.pod("innocent", "innocent", **where)

    def run() -> None:
        cluster.api.create(kind, obj)
        if kind is PODS:
            cluster.api.create(RESOURCE_CLAIMS, rich_claim())
        else:
            used = obj["metadata"]["name"] if kind is RESOURCE_CLAIMS else "other"
            if kind is not RESOURCE_CLAIMS:
                asked = "odd.koordra.io" if kind is DEVICE_CLASSES else names.CLASS_GPU
                cluster.claim("other", device_class=asked)
            cluster.pod("uses-it", used)
        cluster.settle(passes=2)

    with capture_logs() as logged:
        count = calls(run)
    # A rule for every device, which is the operator's to write, keeps everybody off them.
    assert cluster.allocation("innocent") is not None or kind is DEVICE_TAINT_RULES
    assert not [entry for entry in logged if "traceback" in entry or "exc_info" in entry]
    return count


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("which", OBJECTS)
def test_an_object_stops_no_pass(which: str, part: int) -> None:
    kind, make = OBJECTS[which]
    usual = work(kind, make())
    for place, value in cases(make(), part):
        count = work(kind, replaced(make(), place, value))
        assert count < MOST * usual, (place, repr(value)[:80], count / usual)


TEMPLATE: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t", "namespace": "team", "annotations": {"koordra.io/allocation-mode": "native"}},
    "spec": {"metadata": {"labels": {"a": "b"}}, "spec": rich_claim()["spec"]},
}
ADMITTED: Final[Mapping[str, Callable[[], Object]]] = {
    "claim": rich_claim,
    "pod": rich_pod,
    "template": lambda: TEMPLATE,
    "class": lambda: {"kind": "DeviceClass", **class_with_everything()},
}


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("which", ADMITTED)
def test_an_object_is_admitted_or_refused_in_words(which: str, part: int) -> None:
    lookups: Any = Known(rich_claim(), TEMPLATE)
    made = ADMITTED[which]()
    for place, value in cases(made, part):
        body = {"uid": "u", "operation": "CREATE", "kind": {"kind": made["kind"]}, "namespace": "team"}
        review = json.dumps({"request": {**body, "object": replaced(made, place, value)}})
        for path, decide in handlers.paths(lookups).items():
            try:
                asked = decode(review.encode())
            except InvalidManifest:
                continue
            answer = decide(asked)
            assert encode(asked, answer), path
            assert all(map(str, answer.problems))


REVIEW: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "team",
        "dryRun": False,
        "object": {"metadata": {"name": "p"}, "spec": {}},
    },
}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(place, value, id=f"{'.'.join(map(str, place))} {number}")
        for place, _ in {place: None for place, _ in hostile(REVIEW)}.items()
        for number, value in enumerate(ANYTHING)
    ],
)
def test_a_review_of_any_shape_is_answered(place: Path, value: Any) -> None:
    lookups: Any = Known()
    try:
        asked = decode(json.dumps(replaced(REVIEW, place, value)).encode())
    except InvalidManifest as error:
        assert str(error)
        return
    for decide in handlers.paths(lookups).values():
        assert encode(asked, decide(asked))


def legacy_pods() -> Iterator[Object]:
    """One of each dialect, with all that it reads."""
    for dialect in DIALECTS:
        asked = {name.replace("*", "x"): "1" for name in dialect.resources}
        made = rich_pod()
        made["metadata"]["annotations"] = {name.replace("*", "x"): "1" for name in dialect.annotations}
        made["metadata"]["labels"] = {name.replace("*", "x"): "1" for name in dialect.labels}
        made["spec"] = {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": asked, "requests": dict(asked)}},
                {"name": "side", "image": "x"},
            ],
            "initContainers": [{"name": "i", "image": "x", "resources": {"limits": asked}}],
        }
        made["metadata"].pop("ownerReferences")
        yield made


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("native", [False, True])
def test_a_legacy_pod_is_admitted_or_refused_in_words(native: bool, part: int) -> None:
    for made in legacy_pods():
        for place, value in cases(made, part):
            cluster = LegacyCluster()
            answer = cluster.ask(replaced(made, place, value), native=native)
            assert encode(AdmissionRequest("u", "CREATE", "Pod", "team", made), answer)

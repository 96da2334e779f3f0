"""What a tenant's objects leave behind, in bytes: nothing once they are deleted, and of their fields no more
than what is read."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.cel.selectors import _outcomes, _programs
from koordra.controller.cache.kept_fields import LONGEST_ANNOTATION, MOST_ANNOTATIONS, kept_of
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.placement.request.request_class import MOST_TEXT
from koordra.process.lifecycle import collect_seldom
from tests.fakes.joint_cluster import JointCluster, claim
from tests.long import mostly_long

BIG = 1 << 19
PART = 10_000
"""Characters of one opaque parameter or selector, of which an object may have dozens."""


def annotated(number: int, made: Object) -> None:
    made["metadata"]["annotations"] = {f"tenant/{part}": text(number, part, BIG // 4) for part in range(4)}


def with_parameters_of(driver: str) -> Callable[[int, Object], None]:
    def write(number: int, made: Object) -> None:
        made["spec"]["devices"]["config"] = [
            {"opaque": {"driver": driver, "parameters": {**_OURS, "note": text(number, part, PART)}}}
            for part in range(32)
        ]

    return write


def selecting(number: int, made: Object) -> None:
    made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": f"device.driver != '{text(number, part, PART)}'"}} for part in range(32)
    ]


def managed(number: int, made: Object) -> None:
    fields = {f"f:{part}": text(number, part, PART) for part in range(50)}
    made["metadata"]["managedFields"] = [{"manager": "tenant", "fieldsV1": fields}]


_OURS = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig"}
WRITERS: dict[str, Callable[[int, Object], None]] = {
    "annotations": annotated,
    "parameters of another driver": with_parameters_of("tpu.example.org"),
    "parameters that koordra refuses": with_parameters_of(names.DRIVER),
    "selectors": selecting,
    "managed fields": managed,
}


def text(number: int, part: int, size: int) -> str:
    return f"{number}-{part}-".ljust(size, "x")


def come_and_go(cluster: JointCluster, write: Callable[[int, Object], None], numbers: range) -> None:
    """So many claims with a pod each, half of which fit; then they are deleted."""
    for number in numbers:
        made = claim(f"c{number}", memory="1Gi" if number % 2 else "900Gi")
        write(number, made)
        cluster.api.create(RESOURCE_CLAIMS, made)
        cluster.pod(f"p{number}", f"c{number}")
    cluster.settle(passes=2)
    for number in numbers:
        cluster.api.delete(PODS, f"p{number}")
        cluster.api.edit(RESOURCE_CLAIMS, f"c{number}", _freed)
        cluster.api.delete(RESOURCE_CLAIMS, f"c{number}")
    cluster.settle(passes=2)
    cluster.told.clear()
    cluster.api.history[:] = [("ADDED", "", {})] * len(cluster.api.history)
    cluster.api.writes.clear()


def _freed(made: Object) -> None:
    made["metadata"].pop("finalizers", None)
    made["status"] = {}


@pytest.fixture
def bytes_now() -> Iterator[Callable[[], int]]:
    """What Python's objects take, looking for cycles as seldom as the controller does."""
    gc.collect()
    before = gc.get_threshold()
    collect_seldom()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.set_threshold(*before)


FULL = 40
"""Turns after which what is bounded is full."""


@pytest.mark.parametrize("many", mostly_long([False, True]), ids=["few", "many"])
@pytest.mark.parametrize("what", WRITERS)
def test_deleted_claims_leave_nothing(what: str, many: bool, bytes_now: Callable[[], int]) -> None:
    """Of 5 claims of half a megabyte at a time. What stays is what bounded caches hold, of selectors and of
    what was asked, and the last claim that was placed; once they are full, not a kilobyte of each claim."""
    first, turns, most = (FULL, 60, BIG // 2) if many else (1, 2, 3 * BIG)
    cluster = JointCluster(nodes=2, gpus=2)
    for turn in range(first):
        come_and_go(cluster, WRITERS[what], range(5 * turn, 5 * (turn + 1)))
    _programs.clear()
    gc.collect()
    before = bytes_now()
    for turn in range(first, first + turns):
        come_and_go(cluster, WRITERS[what], range(5 * turn, 5 * (turn + 1)))
    if many:
        gc.collect()
    left = bytes_now() - before
    assert left < (MOST_TEXT + _programs.most if what == "selectors" else most)
    assert sum(len(key[0]) for key in _programs) <= _programs.most
    assert len(_outcomes) <= _outcomes.most // 256


def test_no_claim_that_is_gone_waits_for_the_cycle_collector(bytes_now: Callable[[], int]) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    come_and_go(cluster, annotated, range(4))
    gc.disable()
    seen = bytes_now()
    come_and_go(cluster, annotated, range(4, 8))
    left = bytes_now() - seen
    gc.enable()
    assert left < BIG // 4


# fields


def test_of_a_pod_is_kept_what_predicates_gates_and_gangs_read() -> None:
    container = {
        "name": "main",
        "image": "busybox",
        "env": [{"name": "A", "value": "b"}],
        "args": ["x"],
        "resources": {"limits": {"cpu": "1"}},
        "ports": [{"hostPort": 80}],
    }
    made = {
        "kind": "Pod",
        "metadata": {"name": "p", "managedFields": [{}], "annotations": {"a": "b"}, "labels": {"l": "m"}},
        "spec": {
            "containers": [container],
            "nodeName": "n0",
            "volumes": [
                {"name": "c", "configMap": {"name": "large"}},
                {"name": "v", "persistentVolumeClaim": {"claimName": "v"}},
                {
                    "name": "e",
                    "ephemeral": {"volumeClaimTemplate": {"metadata": {"annotations": {"x": "y"}}}},
                },
            ],
        },
        "status": {"phase": "Running", "containerStatuses": [{}]},
    }
    found = kept_of(PODS)(made)
    kept = {name: container[name] for name in ("name", "resources", "ports")}
    assert found["spec"]["containers"] == [kept]
    assert found["spec"]["nodeName"] == "n0"
    assert [volume["name"] for volume in found["spec"]["volumes"]] == ["v", "e"]
    assert found["status"] == {"phase": "Running"}
    assert found["metadata"] == {"name": "p", "annotations": {"a": "b"}, "labels": {"l": "m"}}
    assert made["spec"]["containers"] == [container]  # type: ignore[index]
    rewritten = {**made, "metadata": {"name": "p", "annotations": {names.DOMAIN + "asked": "{}"}}}
    assert kept_of(PODS)(rewritten)["spec"]["containers"] == [container]


def test_of_a_claim_goes_what_nobody_reads_once_it_has_its_devices() -> None:
    def config(driver: str) -> Any:
        return {"opaque": {"driver": driver, "parameters": {"note": "x"}}}

    both = {"config": [config("tpu.example.org"), config(names.DRIVER)]}
    status = {
        "allocation": {"devices": {**both, "results": [{"device": "gpu-0"}]}},
        "devices": [{"device": "gpu-0", "data": {"x": "y"}, "conditions": []}],
    }
    fields: Any = {"f:status": {"f:allocation": {"f:x": {}}, "f:devices": {}}}
    by = [{"manager": "tenant", "fieldsV1": {"f:spec": {}}}, {"manager": "thief", "fieldsV1": fields}]
    waits = {"metadata": {"name": "c", "managedFields": by}, "spec": {"devices": {**both, "requests": [1]}}}
    assert kept_of(RESOURCE_CLAIMS)(waits)["spec"] == waits["spec"]
    assert "status" not in kept_of(RESOURCE_CLAIMS)(waits)
    found = kept_of(RESOURCE_CLAIMS)({**waits, "status": status})
    own = {"config": [config(names.DRIVER)]}
    assert found["spec"] == {"devices": {**own, "requests": [1]}}
    assert found["status"]["allocation"] == {"devices": {**own, "results": [{"device": "gpu-0"}]}}
    assert found["status"]["devices"] == [{"device": "gpu-0", "conditions": []}]
    assert found["metadata"]["managedFields"] == [
        {"manager": "thief", "fieldsV1": {"f:status": {"f:allocation": {}}}}
    ]


def test_annotations_of_koordra_come_first_and_all_together_have_a_bound() -> None:
    there = {f"tenant/{number:03}": "x" * 1000 for number in range(60)}
    there |= {"tenant/long": "x" * (LONGEST_ANNOTATION + 1), names.DOMAIN + "gang": "g" * 20_000}
    there["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
    found = objects.annotations_of(kept_of(NODES)({"metadata": {"name": "n", "annotations": there}}))
    assert found[names.DOMAIN + "gang"] == there[names.DOMAIN + "gang"]
    assert len(found) == 1 + (MOST_ANNOTATIONS - 20_000) // 1000
    assert "tenant/long" not in found


def test_an_event_keeps_no_more_of_its_object_than_which_one_it_is() -> None:
    made = claim("c", uid="u", annotations={"x": "y" * BIG})
    (about,) = ClaimEvent("Allocated", "", ({**made, "kind": "ResourceClaim"},)).about
    assert about == {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
    }

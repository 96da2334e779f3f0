"""Manifests that cannot be meant: a clear word on the claim, everything else goes on, and PlanError when
nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from koordra.placement import PlanError, plan
from tests.unit.allocator.machines import (
    claim,
    config,
    device_classes,
    devices_of,
    joint,
    machine,
    pod,
    request,
)

Dict = dict[str, Any]


def cel(expression: str) -> list[Dict]:
    return [{"cel": {"expression": expression}}]


BAD = {
    "unknown-class": claim("bad", {"name": "gpu", "exactly": {"deviceClassName": "gpus.koordra.io"}}),
    "no-class": claim("bad", {"name": "gpu", "exactly": {"count": 1}}),
    "impossible-count": claim("bad", request("gpu", count=500)),
    "negative-count": claim("bad", request("gpu", count=-1)),
    "malformed-cel": claim("bad", request("gpu", selectors=cel("device.attributes["))),
    "cel-of-another-type": claim("bad", request("gpu", selectors=cel("1"))),
    "cel-runtime-error": claim(
        "bad", request("gpu", selectors=cel('device.attributes["koordra.io"].nope == 1'))
    ),
    "no-cel": claim("bad", request("gpu", selectors=[{}])),
    "unknown-opaque-field": claim(
        "bad", request("gpu"), configs=[config("JointAllocation", scop="PCIeRoot")]
    ),
    "unknown-opaque-kind": claim("bad", request("gpu"), configs=[config("JointAlloc", scope="PCIeRoot")]),
    "memory-of-zero": claim("bad", request("gpu", capacity={"memory": "0"})),
    "cores-below-the-smallest-share": claim(
        "bad", request("gpu", capacity={"memory": "10Gi", "cores": "500m"})
    ),
    "memory-of-nonsense": claim("bad", request("gpu", capacity={"memory": "10 Gi"})),
    "empty-constraint": claim("bad", request("gpu"), constraints=[{}]),
    "unknown-mode": claim("bad", request("gpu", allocationMode="Some")),
    "joint-of-an-unknown-request": claim(
        "bad", request("gpu"), request("nic", "nic"), configs=[joint("PCIeRoot", requests=["gpu", "nics"])]
    ),
    "constraint-on-an-unknown-request": claim(
        "bad", request("gpu"), constraints=[{"requests": ["gpu/large"], "matchAttribute": "koordra.io/model"}]
    ),
    "two-requests-of-one-name": claim("bad", request("gpu"), request("gpu", "nic")),
    "two-alternatives-of-one-name": claim(
        "bad", {"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "gpu.koordra.io"}] * 2}
    ),
    "requests-are-no-list": {**claim("bad"), "spec": {"devices": {"requests": "gpu"}}},
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_claim_does_not_stop_the_others(name: str) -> None:
    good = claim("good", request("gpu"))
    found = plan([*device_classes(), *machine(), BAD[name], good, pod("p", "bad"), pod("q", "good")])
    assert set(found.allocations) == {"default/good"}
    assert set(found.unsatisfiable) == {"default/bad"}


@pytest.mark.parametrize("name", BAD)
def test_alone_it_is_an_error_with_the_same_words(name: str) -> None:
    objects = [*device_classes(), *machine(), BAD[name]]
    with pytest.raises(PlanError) as error:
        plan(objects)
    reported = plan(objects, report_errors=True).unsatisfiable["default/bad"]
    assert reported[0].detail in str(error.value)


def test_without_pods_the_rest_of_the_claims_is_planned_too() -> None:
    good = claim("good", request("gpu"))
    too_many = claim("too-many", request("gpu", count=9))
    found = plan([*device_classes(), *machine(), *BAD_BY_NAME, good, too_many], report_errors=True)
    assert set(found.allocations) == {"default/good"}
    assert set(found.unsatisfiable) == {
        "default/too-many",
        *(f"default/{entry['metadata']['name']}" for entry in BAD_BY_NAME),
    }


BAD_BY_NAME = [{**entry, "metadata": {**entry["metadata"], "name": name}} for name, entry in BAD.items()]


def test_the_words(golden: Callable[[str, str], None]) -> None:
    told = {}
    for name, entry in BAD.items():
        found = plan([*device_classes(), *machine(1, 0), entry], report_errors=True)
        told[name] = [reason.to_dict() for reason in found.unsatisfiable["default/bad"]][:2]
    golden("allocator/bad-input.json", json.dumps(told, indent=1) + "\n")


def test_an_unreadable_slice_makes_only_its_pool_unusable() -> None:
    broken = machine(name="node-b")
    broken[1]["spec"]["devices"][0]["capacity"]["memory"]["value"] = "lots"
    objects = [*device_classes(), *machine(1, 0, name="node-a"), *broken, claim("a", request("gpu"))]
    assert plan(objects).nodes == {"default/a": "node-a"}


def test_an_unreadable_allocation_is_an_error() -> None:
    """It says what is taken; planning on without it could over-commit a device."""
    held = {**claim("held"), "status": {"allocation": {"devices": {"results": [{"driver": "koordra.io"}]}}}}
    with pytest.raises(PlanError, match="device"):
        plan([*device_classes(), *machine(), held, claim("a", request("gpu"))])


def test_an_unreadable_class_concerns_its_users_only() -> None:
    broken = {"kind": "DeviceClass", "metadata": {"name": "broken"}, "spec": {"selectors": "none"}}
    user = claim("user", {"name": "x", "exactly": {"deviceClassName": "broken"}})
    found = plan(
        [*device_classes(), broken, *machine(), user, claim("a", request("gpu"))], report_errors=True
    )
    assert set(found.allocations) == {"default/a"}
    assert "DeviceClass broken" in found.unsatisfiable["default/user"][0].detail


def test_a_count_of_zero_is_the_default_as_the_api_server_fills_it_in() -> None:
    found = plan([*device_classes(), *machine(), claim("a", request("gpu", count=0))])
    assert devices_of(found.allocations["default/a"]) == ["gpu-0"]


def test_references_to_alternatives_and_to_their_request_are_known() -> None:
    alternatives = [{"name": name, "deviceClassName": "gpu.koordra.io"} for name in ("a", "b")]
    wanted = claim(
        "a",
        {"name": "gpu", "firstAvailable": alternatives},
        request("nic", "nic"),
        configs=[joint("PCIeRoot", requests=["gpu/b", "nic"]), config("GpuConfig", requests=["gpu"])],
    )
    assert plan([*device_classes(), *machine(), wanted]).nodes == {"default/a": "node-1"}


def test_the_percentage_of_another_request_may_stand_beside_bytes() -> None:
    wanted = claim(
        "a",
        request("part", capacity={"memory": "20Gi"}),
        request("half"),
        configs=[config("GpuConfig", requests=["half"], memoryPercent=50)],
    )
    results = plan([*device_classes(), *machine(), wanted]).allocations["default/a"]["devices"]["results"]
    assert [entry["consumedCapacity"]["memory"] for entry in results] == ["20Gi", "40Gi"]


@pytest.mark.parametrize("features", [5, [5], ["DRAConsumableCapacity", None]])
def test_features_that_are_no_names(features: Any) -> None:
    with pytest.raises(PlanError, match="names of feature gates"):
        plan([*device_classes(), *machine(), claim("a", request("gpu"))], features=features)

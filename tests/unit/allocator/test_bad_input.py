"""Manifests that cannot be meant: a clear word on the claim, everything else goes on, and PlanError when nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from koordra.allocator import PlanError, plan
from tests.unit.allocator.machines import claim, config, device_classes, machine, pod, request

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
    "memory-of-nonsense": claim("bad", request("gpu", capacity={"memory": "10 Gi"})),
    "empty-constraint": claim("bad", request("gpu"), constraints=[{}]),
    "unknown-mode": claim("bad", request("gpu", allocationMode="Some")),
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

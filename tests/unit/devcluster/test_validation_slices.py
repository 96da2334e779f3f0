"""ResourceSlices: every rule with one broken example."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.devcluster.calling import RESOURCE, Caller
from tests.unit.devcluster.manifests import resource_slice

SLICES = f"{RESOURCE}/resourceslices"


def device(**fields: Any) -> dict[str, Any]:
    return resource_slice({"name": "gpu-0", **fields})


def policy(value: str = "100", **fields: Any) -> dict[str, Any]:
    capacity = {"memory": {"value": value, "requestPolicy": fields}}
    return device(allowMultipleAllocations=True, capacity=capacity)


def attributes(count: int) -> dict[str, Any]:
    return {f"a{number}": {"int": number} for number in range(count)}


def many(count: int, **fields: Any) -> dict[str, Any]:
    return resource_slice(*({"name": f"gpu-{number}", **fields} for number in range(count)))


TAINT = {"key": "example.com/x", "effect": "NoSchedule"}
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
COUNTERS = {"memory": {"value": "1"}}
BROKEN = [
    (resource_slice(driver="Gpu"), "spec.driver: Invalid value"),
    (resource_slice(pool={"name": "UP", "generation": 1, "resourceSliceCount": 1}), "spec.pool.name: Invalid value"),
    (resource_slice(pool={"name": "p", "generation": 1, "resourceSliceCount": 0}), "resourceSliceCount: Invalid value: 0"),
    (resource_slice(pool={"name": "p", "generation": -1, "resourceSliceCount": 1}), "spec.pool.generation: Invalid value: -1"),
    (resource_slice(allNodes=True), "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"),
    (resource_slice(nodeName=None), "spec: Required value: exactly one of"),
    (resource_slice(nodeName=None, allNodes=False), "spec.allNodes: Invalid value: false: must be either unset or set to true"),
    (
        resource_slice(nodeName=None, nodeSelector={"nodeSelectorTerms": SELECTOR["nodeSelectorTerms"] * 2}),
        "must have exactly one node selector term",
    ),
    (resource_slice(nodeName=None, perDeviceNodeSelection=True), "spec.devices[0]: Required value: exactly one of `nodeName`"),
    (resource_slice(sharedCounters=[{"name": "c", "counters": COUNTERS}]), "only one of `sharedCounters` or `devices` is allowed"),
    (many(129), "spec.devices: Too many: 129: must have at most 128 items"),
    (many(65, taints=[TAINT]), "spec.devices: Too many: 65: must have at most 64 items"),
    (resource_slice({"name": "a"}, {"name": "a"}), 'spec.devices[1].name: Duplicate value: "a"'),
    (resource_slice({"name": "gpu.0"}), "spec.devices[0].name: Invalid value"),
    (device(attributes=attributes(33)), "must not exceed 32"),
    (device(attributes={"x": {}}), "spec.devices[0].attributes[x]: Required value: exactly one value must be specified"),
    (device(attributes={"x": {"int": 1, "bool": True}}), "exactly one value must be specified"),
    (device(attributes={"x": {"string": "y" * 65}}), "spec.devices[0].attributes[x].string: Too long: may not be more than 64 bytes"),
    (device(attributes={"x": {"version": "v1.2.3"}}), "must be a string compatible with semver.org spec 2.0.0"),
    (device(attributes={"x": {"version": "1.2"}}), "must be a string compatible with semver.org spec 2.0.0"),
    (device(attributes={"a b": {"int": 1}}), "a valid C identifier"),
    (device(attributes={"/x": {"int": 1}}), "the domain must not be empty"),
    (device(capacity={"m": {"value": "-1"}}), "must be greater than or equal to 0"),
    (device(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}}), "Forbidden: allowMultipleAllocations must be true"),
    (policy(validRange={"min": "1"}), "requestPolicy.default: Required value"),
    (policy(default="0", validRange={"min": "1"}), "default is less than min"),
    (policy(default="200"), "default is larger than capacity value: 100"),
    (policy(default="60", validRange={"min": "1", "max": "50"}), "default is more than max: 50"),
    (policy(default="1", validRange={"min": "1", "max": "200"}), "max is larger than capacity value: 100"),
    (policy(default="5", validRange={"min": "5", "max": "4"}), "max is less than min: 5"),
    (policy(default="1", validRange={"min": "0", "max": "10", "step": "3"}), "not a multiple of a given step from (max-min)"),
    (policy(default="4", validRange={"min": "0", "step": "3"}), "not a multiple of a given step from (default-min)"),
    (policy(default="1", validRange={"min": "1", "step": "0"}), "must be greater than zero"),
    (policy(default="50", validRange={"min": "50", "step": "60"}), "is larger than capacity value"),
    (policy(default="3", validValues=["1", "2"]), "default value is not in the valid values"),
    (policy(default="1", validValues=["2", "1"]), "values must be sorted in ascending order"),
    (policy(default="1", validValues=["1", "1"]), "validValues[1]: Duplicate value"),
    (policy(default="1", validValues=["1", "101"]), "option is larger than capacity value"),
    (policy(default="1", validValues=[str(n) for n in range(1, 12)]), "Too many: 11: must have at most 10 items"),
    (policy(default="1", validValues=["1"], validRange={"min": "1"}), "exactly one policy can be specified"),
    (device(consumesCounters=[{"counterSet": "c", "counters": COUNTERS}] * 2), 'consumesCounters[1].counterSet: Duplicate value: "c"'),
    (
        device(consumesCounters=[{"counterSet": f"c{n}", "counters": COUNTERS} for n in range(3)]),
        "consumesCounters: Too many: 3: must have at most 2 items",
    ),
    (device(consumesCounters=[{"counterSet": "c", "counters": {}}]), "counters: Required value"),
    (device(taints=[TAINT] * 17), "taints: Too many: 17: must have at most 16 items"),
    (device(taints=[{"key": "x"}]), "taints[0].effect: Required value"),
    (device(bindingConditions=["a"] * 5), "bindingConditions: Too many: 5: must have at most 4 items"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), BROKEN, ids=[text[:60] for _, text in BROKEN])
def test_broken_slices_are_named(api: Caller, body: dict[str, Any], text: str) -> None:
    refusal = api.refused(422, "POST", SLICES, body)
    assert text in refusal["message"]
    assert refusal["details"]["causes"]


FINE = [
    resource_slice(devices=[]),
    many(128),
    many(64, taints=[TAINT]),
    device(attributes={"example.com/x": {"version": "1.2.3-rc.1+build"}, "y": {"string": ""}}),
    device(attributes=attributes(31), capacity={"m": {"value": "1"}}),
    policy("80Gi", default="80Gi", validRange={"min": "1Mi", "step": "1Mi"}),
    policy(default="0", validRange={"min": "0", "max": "100", "step": "1"}),
    policy(default="10", validValues=["10", "20"]),
    resource_slice(devices=[], sharedCounters=[{"name": "card-0", "counters": COUNTERS}]),
    resource_slice(nodeName=None, nodeSelector=SELECTOR),
    resource_slice({"name": "a", "allNodes": True}, nodeName=None, perDeviceNodeSelection=True),
]


@pytest.mark.parametrize("body", FINE, ids=range(len(FINE)))
def test_what_may_be_published(api: Caller, body: dict[str, Any]) -> None:
    api.ok("POST", f"{SLICES}?fieldValidation=Strict", body)


@pytest.mark.parametrize(
    ("path", "value"), [("driver", "other.example.com"), ("nodeName", "n2"), ("pool.name", "other")]
)
def test_driver_node_and_pool_of_a_slice_never_change(api: Caller, path: str, value: str) -> None:
    body = copy.deepcopy(api.ok("POST", SLICES, resource_slice()))
    target = body["spec"]
    *parents, last = path.split(".")
    for parent in parents:
        target = target[parent]
    target[last] = value
    refusal = api.refused(422, "PUT", f"{SLICES}/s", body)
    assert f'spec.{path}: Invalid value: "{value}": field is immutable' in refusal["message"]


def test_devices_and_generation_of_a_pool_change(api: Caller) -> None:
    body = api.ok("POST", SLICES, resource_slice())
    body["spec"]["pool"]["generation"] = 2
    body["spec"]["devices"].append({"name": "gpu-1"})
    assert api.ok("PUT", f"{SLICES}/s", body)["metadata"]["generation"] == 2

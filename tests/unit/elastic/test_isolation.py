"""What keeps a share that an ElasticGPUClaim asks for: the operator's policy, as for any other claim."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names
from koordra.api.elastic import elastic_gpu
from koordra.placement import Plan, plan
from tests.unit.allocator import machines

LIMITED = {"isolationNone": False, "isolationLimiter": True}
UNLIMITED = {"isolationNone": True}
COMPUTE = {"elasticgpu.io/gpu-core": "30"}
MEMORY = {"elasticgpu.io/gpu-memory": "8192"}


def asked_objects(asked: dict[str, str], parameters: dict[str, str]) -> list[dict[str, Any]]:
    """The class and the claim, as the controller makes them."""
    cls = {
        "kind": "ElasticGPUClass",
        "metadata": {"name": "shares", "uid": "1"},
        "provisioner": "qgpu.provisioner.elasticgpu.io",
        "parameters": parameters,
    }
    claim = {
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"elasticGPUClassName": "shares", "resources": {"requests": asked}},
    }
    read = elastic_gpu.read_class(cls)
    found: list[dict[str, Any]] = [elastic_gpu.device_class(cls)]
    found += machines.device_classes()
    spec = elastic_gpu.claim_spec(elastic_gpu.requested(claim, read), read)
    return [*found, {**machines.claim("c"), "spec": spec}]


def planned(asked: dict[str, str], parameters: dict[str, str], **nodes: dict[str, Any]) -> Plan:
    found = asked_objects(asked, parameters)
    for name, policy in nodes.items():
        cards = [machines.gpu(0, place=machines.place(0), **policy)]
        found += [machines.node(name), machines.slice_of(cards, name=name)]
    return plan(found)


@pytest.mark.parametrize("asked", [COMPUTE, {**COMPUTE, "elasticgpu.io/gpu-memory": "1"}])
def test_a_share_without_memory_goes_where_the_operator_allows_it(asked: dict[str, str]) -> None:
    """It asks for no limits, as 1Mi cannot be kept to."""
    assert planned(asked, {}, limited=LIMITED, open=UNLIMITED).nodes == {"default/c": "open"}
    found = planned(asked, {}, limited=LIMITED).unsatisfiable["default/c"]
    assert {reason.reason for reason in found} == {"BackendUnavailable"}


def test_the_classes_word_stands_above_it() -> None:
    assert planned(COMPUTE, {"isolation": "limiter"}, limited=LIMITED, open=UNLIMITED).nodes == {
        "default/c": "limited"
    }


def test_a_share_of_memory_is_limited() -> None:
    assert planned(MEMORY, {}, limited=LIMITED).nodes == {"default/c": "limited"}
    found = planned(MEMORY, {"isolation": "none"}, limited=LIMITED).unsatisfiable["default/c"]
    assert {reason.reason for reason in found} == {"BackendUnavailable"}


def test_tflops_go_to_a_card_that_has_them_in_the_precision_of_the_class() -> None:
    asked = {"elasticgpu.io/gpu-memory": "1024", "elasticgpu.io/gpu-tflops": "20"}
    cards = {
        "a100": {**LIMITED, "productName": "NVIDIA A100-SXM4-40GB"},
        "p4": {**LIMITED, "productName": "Tesla P4"},
    }
    found = planned(asked, {"tflopsPrecision": "FP16"}, **cards)
    assert found.nodes == {"default/c": "a100"}
    (result,) = found.allocations["default/c"]["devices"]["results"]
    assert result["consumedCapacity"]["cores"] == "7"
    refused = planned(asked, {}, **cards).unsatisfiable["default/c"]  # 20 in FP32 are more than both have
    assert {reason.reason for reason in refused} == {"ExceedsDevice"}


def test_whom_a_class_is_for_is_said_of_its_device_class_too() -> None:
    metadata = {
        "name": "shares",
        "uid": "1",
        "labels": {names.RESTRICTED_LABEL: "true", "team": "ml"},
        "annotations": {names.CLASS_NAMESPACES: "a, b", "note": "x"},
    }
    cls = {"kind": "ElasticGPUClass", "metadata": metadata, "provisioner": "qgpu.provisioner.elasticgpu.io"}
    made = elastic_gpu.device_class(cls)["metadata"]
    assert made["labels"][names.RESTRICTED_LABEL] == "true"
    assert made["annotations"][names.CLASS_NAMESPACES] == "a, b"
    assert "team" not in made["labels"]
    assert "note" not in made["annotations"]

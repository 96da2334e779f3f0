"""No field of ResourceClass and its parameters is a word without effect on the DeviceClass that it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES, ClassRefused, device_class

CRDS = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "crds"
NOTHING = {"structuredParameters"}
"""Classic DRA's switch, which v1 has for all classes: it stays readable."""
MEMORY = {"expression": 'device.capacity["koordra.io"].memory.compareTo(quantity("40Gi")) > 0'}
NODES = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
GPU_CONFIG = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "exclusive": True}
FIELDS: Mapping[str, Any] = {
    "driverName": "other.example.com",
    "deviceType": "gpu",
    "allocationMode": "Immediate",
    "selectors": [{"cel": MEMORY}],
    "parametersRef": {
        "apiGroup": "koordra.io",
        "kind": "ResourceClassParameters",
        "name": "p",
        "namespace": "n",
    },
    "suitableNodes": NODES,
    "policy.placement": {"node": "Spread"},
    "policy.gpu": {"exclusive": True},
    "policy.rdma": {"memlock": False},
}
PARAMETERS: Mapping[str, Any] = {
    "filters": [MEMORY],
    "vendorParameters": [{"driverName": "koordra.io", "parameters": GPU_CONFIG}],
    "base": {"name": "base"},
}


def schema(name: str) -> Mapping[str, Any]:
    (version,) = yaml.safe_load((CRDS / name).read_text())["spec"]["versions"]
    properties: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return {
        key: one for key, one in properties.items() if key not in ("apiVersion", "kind", "metadata", "status")
    }


def fields(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, one in properties.items():
        yield from (f"{name}.{inner}" for inner in one["properties"]) if name == "policy" else [name]


def meant(own: Mapping[str, Any], of_parameters: Mapping[str, Any] | None = None) -> Any:
    made: dict[str, Any] = {**RESOURCE_CLASSES.type_meta, "metadata": {"name": "c", "uid": "u"}}
    for path, value in own.items():
        outer, _, inner = path.partition(".")
        made[outer] = {inner: value} if inner else value
    there = {
        "p": {**CLASS_PARAMETERS.type_meta, "metadata": {"name": "p", "namespace": "n"}, **(of_parameters or PARAMETERS)},
        "base": {**CLASS_PARAMETERS.type_meta, "metadata": {"name": "base", "namespace": "n"}, "filters": [{"expression": "true"}]},
    }  # fmt: skip
    return device_class(
        made, lookup=lambda kind, namespace, name: there.get(name), own_namespace="koordra-system"
    )


def test_every_field_is_tried() -> None:
    assert {*fields(schema("resourceclasses.yaml"))} - NOTHING == FIELDS.keys()
    assert {*schema("resourceclassparameters.yaml")} == PARAMETERS.keys()


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_changes_the_device_class(path: str) -> None:
    assert meant({path: FIELDS[path]}) != meant({})


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_change_the_device_class(name: str) -> None:
    reference = {"parametersRef": FIELDS["parametersRef"]}
    others = {key: value for key, value in PARAMETERS.items() if key != name}
    assert meant(reference, PARAMETERS) != meant(reference, others)


def test_a_field_of_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ClassRefused, match="exlusive"):
        meant({"policy.gpu": {"exlusive": True}})

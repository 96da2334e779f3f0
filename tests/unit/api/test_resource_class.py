"""ResourceClass to DeviceClass: what it means, and every kind of bad input with the words that help."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import resource_class
from koordra.api.claims import DeviceClass
from koordra.api.opaque import parameters
from koordra.api.resource_class import CLASS_LABEL, ClassRefused, device_class
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.fields import structural
from tests.unit.api.parameter_schema import schema

ROOT = Path(__file__).resolve().parents[3]
Object = dict[str, Any]


def make(name: str = "fast", **fields: Any) -> Object:
    return {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name, "uid": "u-1"},
        **fields,
    }


def stored(*found: Object) -> resource_class.Lookup:
    def look(kind: Any, namespace: str, name: str) -> Object | None:
        return next(
            (
                one
                for one in found
                if (one["kind"], one["metadata"]["namespace"], one["metadata"]["name"])
                == (kind.kind, namespace, name)
            ),
            None,
        )

    return look


def shared(name: str, *, base: str = "", kind: str = "ResourceClassParameters", **fields: Any) -> Object:
    made = {"kind": kind, "metadata": {"name": name, "namespace": "koordra-system"}, **fields}
    return {**made, "base": {"name": base}} if base else made


def reference(name: str, **fields: Any) -> Object:
    return {"apiGroup": "koordra.io", "kind": "ResourceClassParameters", "name": name, **fields}


CONFIG_MAP = {"kind": "ConfigMap", "name": "m"}


def meant(obj: Object, *found: Object) -> Object:
    return device_class(obj, lookup=stored(*found), own_namespace="koordra-system")


def test_a_whole_class(golden: Callable[[str, str], None]) -> None:
    gpu = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": "limiter"}
    made = meant(
        make(
            driverName="koordra.io",
            deviceType="gpu",
            structuredParameters=True,
            selectors=[{"cel": {"expression": 'device.attributes["koordra.io"].model == "H100"'}}],
            parametersRef=reference("upper"),
            suitableNodes={
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
            },
            policy={"placement": {"node": "Spread"}, "gpu": {"priority": 3}, "rdma": {"mode": "Exclusive"}},
        ),
        shared("upper", base="lower", vendorParameters=[{"parameters": gpu}]),
        shared(
            "lower", filters=[{"expression": "lower"}, {"expression": "theirs", "driverName": "other.io"}]
        ),
    )
    golden("resource_class/whole.yaml", yaml.safe_dump(made, sort_keys=False))
    DeviceClass.from_dict(made)


def test_the_least_that_can_be_said_is_koordras_devices() -> None:
    made = meant(make())
    assert made["metadata"]["labels"][CLASS_LABEL] == "true"
    assert 'allocator == "scheduler"' in made["spec"]["selectors"][0]["cel"]["expression"]


def test_classes_of_another_driver_are_made_too() -> None:
    made = meant(make(driverName="gpu.example.com"))
    assert made["spec"] == {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}
    assert CLASS_LABEL not in made["metadata"]["labels"]


def test_parameters_may_stand_in_a_config_map() -> None:
    text = "apiVersion: koordra.io/v1alpha1\nkind: GpuConfig\npriority: 1\n---\napiVersion: koordra.io/v1alpha1\nkind: RdmaConfig\n"
    found = shared("m", kind="ConfigMap", data={"parameters": text})
    made = meant(make(parametersRef=CONFIG_MAP), found)
    kinds = [entry["opaque"]["parameters"]["kind"] for entry in made["spec"]["config"]]
    assert kinds == ["GpuConfig", "RdmaConfig"]


BAD: dict[str, tuple[Object, list[Object]]] = {
    "no-parameters": (make(parametersRef=reference("gone")), []),
    "foreign-parameters": (make(parametersRef={"apiGroup": "a.io", "kind": "B", "name": "c"}), []),
    "config-map-elsewhere": (make(parametersRef={**CONFIG_MAP, "namespace": "team"}), []),
    "config-map-without-key": (make(parametersRef=CONFIG_MAP), [shared("m", kind="ConfigMap", data={})]),
    "config-map-no-yaml": (
        make(parametersRef=CONFIG_MAP),
        [shared("m", kind="ConfigMap", data={"parameters": "{"})],
    ),
    "config-map-with-not-a-number": (
        make(parametersRef=CONFIG_MAP, driverName="a.io"),
        [shared("m", kind="ConfigMap", data={"parameters": "day: .nan"})],
    ),
    "own-cycle": (make(parametersRef=reference("a")), [shared("a", base="a")]),
    "cycle": (
        make(parametersRef=reference("a")),
        [shared("a", base="b"), shared("b", base="c"), shared("c", base="a")],
    ),
    "long-chain": (
        make(parametersRef=reference("p0")),
        [shared(f"p{n}", base=f"p{n + 1}") for n in range(20)],
    ),
    "misspelt-parameters": (
        make(parametersRef=reference("a")),
        [
            shared(
                "a",
                vendorParameters=[
                    {"parameters": {"apiVersion": parameters.API_VERSION, "kind": "RdmaConfig", "memlock": 7}}
                ],
            )
        ],
    ),
    "large-parameters": (
        make(parametersRef=reference("a"), driverName="a.io"),
        [shared("a", vendorParameters=[{"parameters": {"text": "x" * 10240}}])],
    ),
    "empty-filter": (make(parametersRef=reference("a")), [shared("a", filters=[{"expression": ""}])]),
    "no-type": (make(deviceType="fpga"), []),
    "type-of-another": (make(driverName="a.io", deviceType="gpu"), []),
    "policy-of-another": (make(driverName="a.io", policy={"gpu": {}}), []),
    "no-policy": (make(policy={"gpus": {}}), []),
    "bad-policy": (make(policy={"rdma": {"mode": "Alone"}}), []),
    "no-node": (make(suitableNodes={"nodeSelectorTerms": []}), []),
    "no-operator": (
        make(suitableNodes={"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}),
        [],
    ),
    "many-selectors": (make(selectors=[{"cel": {"expression": "true"}}] * 32), []),
    "text": (make(selectors="true"), []),
}


def test_every_refusal_has_a_reason_and_says_what_to_do(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, (obj, found) in BAD.items():
        obj["metadata"]["name"] = name
        with pytest.raises(ClassRefused) as refused:
            meant(obj, *found)
        lines.append(f"{refused.value.reason}: {refused.value}")
    golden("resource_class/refused.txt", "\n".join(lines) + "\n")


def test_the_crd_describes_the_policies_as_the_parameters_do() -> None:
    crd = yaml.safe_load((ROOT / "deploy/kustomize/crds/resourceclasses.yaml").read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert properties["deviceType"]["enum"] == list(resource_class.DEVICE_TYPES)
    schemas = {entry["title"]: entry["properties"] for entry in schema()["oneOf"]}
    policies = properties["policy"]["properties"]
    assert set(policies) == set(resource_class.POLICIES)
    for name, kind in resource_class.POLICIES.items():
        told = policies[name]["properties"]
        assert schemas[kind].keys() - told.keys() == {"apiVersion", "kind"} | UNTOLD.get(name, set())
        wanted = {field: rule for field, rule in schemas[kind].items() if field not in ("apiVersion", "kind")}
        # A field that the CRD does not describe yet is kept, and judged by the controller.
        assert policies[name]["x-kubernetes-preserve-unknown-fields"] is True
        for field, rule in told.items():
            if "solation" in field:
                # Installed packages add words: the CRD bounds them, the controller knows them.
                assert "enum" not in rule
                assert rule.get("items", rule).keys() >= {"type", "maxLength"}
                continue
            if field == "driverCapabilities":
                assert rule["items"].pop("type") == "string"
            assert {key: rule.get(key) for key in wanted[field]} == wanted[field], f"policy.{name}.{field}"


UNTOLD: dict[str, set[str]] = {"rdma": {"network", "fabric"}}
"""Objects of the operator's that the controller alone judges."""


@pytest.mark.parametrize("words", [["cuda"], ["compute", "compat32"], ["mofed"]])
def test_a_capability_that_is_none_is_refused_with_those_that_are(words: list[str]) -> None:
    """By the API server, and, where an older CRD is installed, by the controller."""
    crd = yaml.safe_load((ROOT / "deploy/kustomize/crds/resourceclasses.yaml").read_text())
    obj = make(deviceType="gpu", policy={"gpu": {"driverCapabilities": words}})
    errors = FieldErrors()
    structural.validate(errors, crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], obj)
    (error,) = errors.found
    where = f"policy.gpu.driverCapabilities[{len(words) - 1}]"
    assert str(error).startswith(
        f'{where}: Unsupported value: "{words[-1]}": supported values: "all", "compute", '
    )
    with pytest.raises(ClassRefused, match=re.escape(where)):
        meant(obj)


def test_a_class_gives_capabilities_and_imex_too() -> None:
    made = meant(make(deviceType="gpu", policy={"gpu": {"driverCapabilities": ["compute", "imex"]}}))
    (config,) = made["spec"]["config"]
    assert config["opaque"]["parameters"]["driverCapabilities"] == ["compute", "imex"]

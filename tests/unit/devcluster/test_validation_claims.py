"""ResourceClaims, templates, classes and taint rules: every rule with one broken example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra_devcluster.apiserver.validation.cel import accept_cel
from tests.unit.devcluster.calling import CLAIMS, RESOURCE, Caller
from tests.unit.devcluster.manifests import claim, device_class, template

LONG = "x" * 64
BIG = {"text": "x" * (10 * 1024)}


def exactly(**body: Any) -> dict[str, Any]:
    return {"name": "gpu", "exactly": {"deviceClassName": "c.example.com", **body}}


def devices(**fields: Any) -> dict[str, Any]:
    body = claim("a")
    body["spec"]["devices"] = {"requests": [exactly()], **fields}
    return body


def opaque(parameters: Any = None, driver: str = "d.example.com") -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": {} if parameters is None else parameters}}


ONE = "spec.devices.requests[0]"
BROKEN = [
    (devices(requests=[exactly() | {"name": ""}]), f"{ONE}.name: Invalid value: \"\""),
    (devices(requests=[exactly() | {"name": "Gpu"}]), f'{ONE}.name: Invalid value: "Gpu": a lowercase RFC 1123 label'),
    (devices(requests=[exactly() | {"name": LONG}]), "must be no more than 63 characters"),
    (devices(requests=[exactly(), exactly()]), 'spec.devices.requests[1]: Duplicate value: "gpu"'),
    (devices(requests=[{"name": "gpu"}]), f"{ONE}: Required value: exactly one of `exactly` or `firstAvailable`"),
    (
        devices(requests=[exactly() | {"firstAvailable": [{"name": "a", "deviceClassName": "c"}]}]),
        "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
    ),
    (devices(requests=[{"name": "gpu", "exactly": {"deviceClassName": ""}}]), f"{ONE}.exactly.deviceClassName: Required value"),
    (devices(requests=[exactly(count=-1)]), f"{ONE}.exactly.count: Invalid value: -1: must be greater than zero"),
    (devices(requests=[exactly(allocationMode="All", count=2)]), "must not be specified when allocationMode is 'All'"),
    (
        devices(requests=[exactly(allocationMode="Some")]),
        f'{ONE}.exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount"',
    ),
    (devices(requests=[exactly(selectors=[{}])]), f"{ONE}.exactly.selectors[0].cel: Required value"),
    (devices(requests=[exactly(selectors=[{"cel": {"expression": ""}}])]), "selectors[0].cel.expression: Invalid value"),
    (devices(requests=[exactly(selectors=[{"cel": {"expression": "device.driver == ("}}])]), "compilation failed: Syntax error"),
    (devices(requests=[exactly(selectors=[{"cel": {"expression": "x" * 10241}}])]), "Too long: may not be more than 10240 bytes"),
    (devices(requests=[exactly(selectors=[{"cel": {"expression": "true"}}] * 33)]), "Too many: 33: must have at most 32 items"),
    (devices(requests=[exactly(tolerations=[{"key": "a"}] * 17)]), "Too many: 17: must have at most 16 items"),
    (devices(requests=[exactly(tolerations=[{"key": "a", "operator": "In"}])]), 'Unsupported value: "In"'),
    (devices(requests=[exactly(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}])]), "must be empty for operator `Exists`"),
    (devices(requests=[exactly(tolerations=[{"key": "a", "effect": "Never"}])]), 'Unsupported value: "Never"'),
    (devices(requests=[exactly() | {"name": f"r{number}"} for number in range(33)]), "Too many: 33: must have at most 32 items"),
    (
        devices(requests=[{"name": "gpu", "firstAvailable": [{"name": f"a{n}", "deviceClassName": "c"} for n in range(9)]}]),
        "firstAvailable: Too many: 9: must have at most 8 items",
    ),
    (
        devices(requests=[{"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "c"}] * 2}]),
        f'{ONE}.firstAvailable[1].name: Duplicate value: "a"',
    ),
    (devices(constraints=[{}]), 'exactly one of "matchAttribute" or "distinctAttribute" is required'),
    (devices(constraints=[{"matchAttribute": "a.example.com/x", "distinctAttribute": "a.example.com/y"}]), "only one of"),
    (devices(constraints=[{"matchAttribute": "numa"}]), "a fully qualified name must be a domain and a name separated by a slash"),
    (devices(constraints=[{"matchAttribute": "a.example.com/" + "x" * 33}]), "may not be more than 32 bytes"),
    (devices(constraints=[{"matchAttribute": "a.example.com/x", "requests": ["nic"]}]), "must be the name of a request in the claim"),
    (devices(constraints=[{"matchAttribute": "a.example.com/x", "requests": ["gpu", "gpu"]}]), 'requests[1]: Duplicate value: "gpu"'),
    (devices(constraints=[{"matchAttribute": "a.example.com/x"}] * 33), "Too many: 33: must have at most 32 items"),
    (devices(config=[{}]), "spec.devices.config[0].opaque: Required value"),
    (devices(config=[opaque(driver="D")]), "spec.devices.config[0].opaque.driver: Invalid value"),
    (devices(config=[opaque(driver="d" * 64)]), "may not be more than 63 bytes"),
    (devices(config=[{"opaque": {"driver": "d.example.com"}}]), "opaque.parameters: Required value"),
    (devices(config=[opaque(["list"])]), "must be a valid JSON object"),
    (devices(config=[opaque(BIG)]), "opaque.parameters: Too long: may not be more than 10240 bytes"),
    (devices(config=[opaque() | {"requests": ["nic"]}]), 'config[0].requests[0]: Invalid value: "nic"'),
    (devices(config=[opaque()] * 33), "Too many: 33: must have at most 32 items"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), BROKEN, ids=[text[:60] for _, text in BROKEN])
def test_broken_claims_are_named(api: Caller, body: dict[str, Any], text: str) -> None:
    refusal = api.refused(422, "POST", CLAIMS, body)
    assert refusal["reason"] == "Invalid"
    assert text in refusal["message"]
    causes = refusal["details"]["causes"]
    assert all(cause["field"].startswith("spec.") and cause["message"] for cause in causes)


def test_all_problems_come_in_one_answer(api: Caller) -> None:
    body = devices(requests=[{"name": "", "exactly": {"deviceClassName": "", "count": -2}}])
    refusal = api.refused(422, "POST", CLAIMS, body)
    assert [cause["field"] for cause in refusal["details"]["causes"]] == [
        f"{ONE}.name",
        f"{ONE}.exactly.deviceClassName",
        f"{ONE}.exactly.count",
    ]
    assert refusal["message"].startswith('ResourceClaim.resource.k8s.io "a" is invalid: [')


def test_mode_count_and_operator_are_defaulted(api: Caller) -> None:
    body = devices(
        requests=[exactly(tolerations=[{"key": "a"}]), exactly(allocationMode="All") | {"name": "all"}]
    )
    first, second = api.ok("POST", CLAIMS, body)["spec"]["devices"]["requests"]
    assert (first["exactly"]["allocationMode"], first["exactly"]["count"]) == ("ExactCount", 1)
    assert first["exactly"]["tolerations"] == [{"key": "a", "operator": "Equal"}]
    assert "count" not in second["exactly"]


def test_references_to_alternatives_are_known(api: Caller) -> None:
    alternatives = [
        {"name": "big", "deviceClassName": "c"},
        {"name": "small", "deviceClassName": "c", "count": 2},
    ]
    body = devices(
        requests=[{"name": "gpu", "firstAvailable": alternatives}],
        constraints=[{"matchAttribute": "a.example.com/x", "requests": ["gpu/small"]}],
        config=[opaque() | {"requests": ["gpu/big"]}],
    )
    api.ok("POST", CLAIMS, body)


@pytest.mark.parametrize("plural", ["resourceclaims", "resourceclaimtemplates"])
def test_specs_never_change(api: Caller, plural: str) -> None:
    path = f"{RESOURCE}/namespaces/default/{plural}"
    made = api.ok("POST", path, claim("a") if plural == "resourceclaims" else template("a"))
    changed = json.loads(json.dumps(made).replace("gpu.example.com", "other.example.com"))
    refusal = api.refused(422, "PUT", f"{path}/a", changed)
    assert refusal["details"]["causes"][0]["field"] == "spec"
    assert "field is immutable" in refusal["message"]


def test_templates_are_held_to_the_rules_of_claims(api: Caller) -> None:
    body = template("a")
    body["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = -1
    body["spec"]["metadata"]["labels"] = {"bad key": "x"}
    refusal = api.refused(422, "POST", f"{RESOURCE}/namespaces/default/resourceclaimtemplates", body)
    fields = {cause["field"] for cause in refusal["details"]["causes"]}
    assert fields == {"spec.spec.devices.requests[0].exactly.count", "spec.metadata.labels"}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"selectors": [{"cel": {"expression": "(("}}]}, "spec.selectors[0].cel.expression: Invalid value"),
        ({"config": [{}]}, "spec.config[0].opaque: Required value"),
        ({"config": [opaque()] * 33}, "must have at most 32 items"),
        ({"extendedResourceName": "a b"}, "spec.extendedResourceName: Invalid value"),
    ],
)
def test_broken_classes_are_named(api: Caller, spec: dict[str, Any], text: str) -> None:
    path = f"{RESOURCE}/deviceclasses"
    assert text in api.refused(422, "POST", path, device_class() | {"spec": spec})["message"]
    made = api.ok("POST", path, device_class())
    assert text in api.refused(422, "PUT", f"{path}/gpu.example.com", made | {"spec": spec})["message"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"taint": {"effect": "NoSchedule"}}, "spec.taint.key: Required value"),
        ({"taint": {"key": "a"}}, "spec.taint.effect: Required value"),
        ({"taint": {"key": "a", "effect": "Go"}}, 'spec.taint.effect: Unsupported value: "Go"'),
        ({"taint": {"key": "a", "effect": "NoExecute"}, "deviceSelector": {"device": "A"}}, "spec.deviceSelector.device"),
    ],
)  # fmt: skip
def test_broken_taint_rules_are_named(api: Caller, spec: dict[str, Any], text: str) -> None:
    body = {"metadata": {"name": "r"}, "spec": spec}
    assert text in api.refused(422, "POST", f"{RESOURCE}/devicetaintrules", body)["message"]


def test_a_taint_gets_the_time_it_was_added(api: Caller) -> None:
    body = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "a", "effect": "NoExecute"}}}
    made = api.ok("POST", f"{RESOURCE}/devicetaintrules", body)
    assert made["spec"]["taint"]["timeAdded"] == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ('device.driver == "a"', True),
        ("a[(b)]", True),
        ('x == "("', True),
        ("a)", False),
        ("((a)", False),
        (")(", False),
    ],
)
def test_without_a_compiler_brackets_must_balance(expression: str, fine: bool) -> None:
    assert (accept_cel(expression) is None) is fine

"""Strict decoding, warnings, dropped fields, normal forms."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.errors import InvalidQuantity
from koordra_devcluster.apiserver.fields.quantities import canonical
from koordra_devcluster.apiserver.fields.schema import GATED_OFF, types
from koordra_devcluster.apiserver.resources import SERVED
from tests.unit.devcluster.calling import CLAIMS, PODS, RESOURCE, Caller
from tests.unit.devcluster.manifests import claim, pod, resource_slice

SLICES = f"{RESOURCE}/resourceslices"


def misspelt() -> dict[str, Any]:
    body = claim("a")
    body["spec"]["devices"]["requests"][0]["exactly"]["deviceClas"] = "x"
    return body


def test_strict_refuses_unknown_fields_by_path(api: Caller) -> None:
    refusal = api.refused(400, "POST", f"{CLAIMS}?fieldValidation=Strict", misspelt())
    assert refusal["message"] == (
        'ResourceClaim in version "v1" cannot be handled as a ResourceClaim: strict decoding error:'
        ' unknown field "spec.devices.requests[0].exactly.deviceClas"'
    )


def test_without_strict_they_are_dropped_with_a_warning(api: Caller) -> None:
    response = api.send("POST", CLAIMS, misspelt())
    assert response.code == 201
    assert b'deviceClas"' not in response.body
    assert response.headers == (
        ("Warning", '299 - "unknown field "spec.devices.requests[0].exactly.deviceClas""'),
    )


def test_ignore_drops_them_silently(api: Caller) -> None:
    response = api.send("POST", f"{CLAIMS}?fieldValidation=Ignore", misspelt())
    assert (response.code, response.headers) == (201, ())


def test_strict_holds_for_patches(api: Caller) -> None:
    api.ok("POST", PODS, pod("a"))
    path = f"{PODS}/a?fieldValidation=Strict"
    refusal = api.refused(
        422, "PATCH", path, {"spec": {"nodeSelecto": {}}}, content_type="application/merge-patch+json"
    )
    assert 'unknown field "spec.nodeSelecto"' in refusal["message"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": []}, "cannot unmarshal array into Go struct field ResourceClaim.spec of type ResourceClaimSpec"),
        ({"spec": {"devices": {"requests": {}}}}, "spec.devices.requests of type []DeviceRequest"),
        ({"metadata": {"name": 5}}, "cannot unmarshal number into Go struct field ResourceClaim.metadata.name of type string"),
        ({"metadata": {"name": "a", "labels": {"x": True}}}, "metadata.labels.x of type string"),
    ],
)  # fmt: skip
def test_wrong_types_are_bad_requests(api: Caller, change: dict[str, Any], text: str) -> None:
    assert text in api.refused(400, "POST", CLAIMS, claim("a") | change)["message"]


def test_wrong_kind_and_version_are_bad_requests(api: Caller) -> None:
    api.refused(400, "POST", CLAIMS, claim("a") | {"kind": "Pod"})
    api.refused(400, "POST", CLAIMS, claim("a") | {"apiVersion": "resource.k8s.io/v1beta1"})


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("1024Mi", "1Gi"), ("80Gi", "80Gi"), ("1000m", "1"), ("500m", "500m"), ("0.5", "500m"), ("1000", "1k"),
        ("1024", "1024"), ("1e3", "1e3"), ("1500", "1500"), ("1.5Gi", "1536Mi"), ("0", "0"), ("100", "100"), ("2E", "2E"),
        ("1Ei", "1Ei"), ("512", "512"), ("-1Ki", "-1Ki"), ("3e6", "3e6"), ("5n", "5n"), ("0.1Ki", "102400m"),
    ],
)  # fmt: skip
def test_quantities_come_back_canonical(written: str, printed: str) -> None:
    assert canonical(written) == printed


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1GiB", "0x10", "1.2.3"])
def test_what_is_not_a_quantity(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        canonical(text)


def test_quantities_and_times_are_normalised(api: Caller) -> None:
    device = {"name": "d", "capacity": {"memory": {"value": "81920Mi"}}}
    made = api.ok("POST", SLICES, resource_slice(device))
    assert made["spec"]["devices"][0]["capacity"]["memory"]["value"] == "80Gi"
    lease = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-11-21T12:00:00+02:00"}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert api.ok("POST", leases, lease)["spec"]["renewTime"] == "2026-11-21T10:00:00.000000Z"
    lease["spec"] = {"renewTime": "yesterday"}
    assert "cannot parse" in api.refused(400, "POST", leases, lease)["message"]


def test_a_number_is_a_quantity_too(api: Caller) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 2}}
    resources = api.ok("POST", PODS, body)["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}


def test_fields_behind_gates_that_are_off_vanish_silently(api: Caller) -> None:
    device = {"name": "d", "nodeAllocatableResources": {"cpu": {}}, "attributes": {"ok": {"bool": True}}}
    response = api.send("POST", f"{SLICES}?fieldValidation=Strict", resource_slice(device))
    assert response.code == 201
    assert b"nodeAllocatableResources" not in response.body
    assert all(field in types()[type_name] for type_name, field in GATED_OFF)


def test_nulls_and_empty_collections_vanish(api: Caller) -> None:
    body = claim("a")
    body["metadata"] |= {"labels": {}, "annotations": None, "finalizers": []}
    assert not {"labels", "annotations", "finalizers"} & api.ok("POST", CLAIMS, body)["metadata"].keys()


def test_opaque_parameters_are_kept_verbatim(api: Caller) -> None:
    parameters = {"apiVersion": "x/v1", "kind": "K", "list": [], "nothing": None, "text": ""}
    body = claim("a")
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": "d.example.com", "parameters": parameters}}]
    made = api.ok("POST", CLAIMS, body)
    assert made["spec"]["devices"]["config"][0]["opaque"]["parameters"] == parameters


def test_every_named_type_of_the_tables_exists() -> None:
    scalars = {"string", "int", "float", "bool", "any", "time", "microtime", "quantity"}
    for name, fields in types().items():
        for field, known in fields.items():
            assert known.base in scalars or known.base in types(), f"{name}.{field}: {known.base}"
    assert {served.type_name for served in SERVED} <= types().keys()

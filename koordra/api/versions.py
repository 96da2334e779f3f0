"""The served versions of resource.k8s.io, and the way between them and v1.

    v1          1.34 on                    what koordra speaks inside
    v1beta2     1.33 to 1.38               the same shapes
    v1beta1     1.32 to 1.37               a request's body stands beside its name (v1: under `exactly`), a device's body
                                           under `basic` (v1: beside its name)
    v1alpha3    DeviceTaintRule only (1.33 to 1.35)

Objects are converted where they cross the border (koordra.kube); metadata and status have one shape in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api.objects import Object

GROUP: Final = "resource.k8s.io"
V1: Final = "v1"
V1BETA1: Final = "v1beta1"
SERVED: Final = (V1, "v1beta2", V1BETA1, "v1alpha3")
"""In the order of preference."""

_NAME: Final = ("name", "firstAvailable")


def to_v1(obj: Object) -> Object:
    """An object of resource.k8s.io as v1 has it; the same value where nothing is to be done."""
    version = str(obj.get("apiVersion", "")).rpartition("/")[2]
    if version == V1 or not str(obj.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return obj
    changed = {**obj, "apiVersion": f"{GROUP}/{V1}"}
    return _with_spec(changed, _request_to_v1, _device_to_v1) if version == V1BETA1 else changed


def from_v1(obj: Object, version: str) -> Object:
    """An object of v1 as `version` has it."""
    if version == V1:
        return obj
    changed = {**obj, "apiVersion": f"{GROUP}/{version}"}
    return _with_spec(changed, _request_from_v1, _device_from_v1) if version == V1BETA1 else changed


def _with_spec(obj: Object, request: Any, device: Any) -> Object:
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return obj
    kind = obj.get("kind")
    if kind == "ResourceClaim":
        return {**obj, "spec": _claim_spec(spec, request)}
    if kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), Mapping):
        return {**obj, "spec": {**spec, "spec": _claim_spec(spec["spec"], request)}}
    if kind == "ResourceSlice" and spec.get("devices"):
        return {**obj, "spec": {**spec, "devices": [device(entry) for entry in spec["devices"]]}}
    return obj


def _claim_spec(spec: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, Mapping) or not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [request(entry) for entry in devices["requests"]]}}


def _request_to_v1(request: Mapping[str, Any]) -> Mapping[str, Any]:
    if request.get("firstAvailable") or "exactly" in request:
        return request
    return {
        "name": request.get("name"),
        "exactly": {name: value for name, value in request.items() if name not in _NAME},
    }


def _request_from_v1(request: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(request.get("exactly"), Mapping):
        return request
    return {"name": request.get("name"), **request["exactly"]}


def _device_to_v1(device: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(device.get("basic"), Mapping):
        return device
    return {"name": device.get("name"), **device["basic"]}


def _device_from_v1(device: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "name": device.get("name"),
        "basic": {name: value for name, value in device.items() if name != "name"},
    }

"""Small objects for the tests of the development cluster."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def claim(name: str = "c", **body: Any) -> Object:
    """A claim for one device; keywords go into `exactly`."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", **body}}]
            }
        },
    }


def template(name: str = "t") -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"metadata": {"labels": {"from": "template"}}, "spec": claim()["spec"]},
    }


def device_class(name: str = "gpu.example.com") -> Object:
    selector = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": [selector]}}


def allocation(
    node: str | None = "n1", *, device: str = "gpu-0", driver: str = "gpu.example.com", timestamp: bool = True
) -> Object:
    """An allocation of one device; `node` None is available everywhere."""
    found: Object = {
        "devices": {"results": [{"request": "gpu", "driver": driver, "pool": "n1", "device": device}]}
    }
    if timestamp:
        found["allocationTimestamp"] = "2026-11-21T10:00:00Z"
    if node is not None:
        requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    return found


def pod(name: str = "p", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec},
    }


def claiming_pod(
    name: str = "p", *, claim: str = "", template: str = "", request: str = "", **spec: Any
) -> Object:
    """A pod whose one container uses one claim."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    reference = {"name": "devices"} | ({"request": request} if request else {})
    container = {"name": "main", "image": "busybox:1", "resources": {"claims": [reference]}}
    return pod(name, **{"containers": [container], "resourceClaims": [{"name": "devices", **source}], **spec})


def node(name: str = "n1", *, cpu: str = "8", labels: dict[str, str] | None = None, **spec: Any) -> Object:
    resources = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def resource_slice(*devices: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "n1",
            "devices": list(devices) or [{"name": "gpu-0"}],
            **spec,
        },
    }

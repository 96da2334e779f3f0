"""Objects and look-ups for the webhook's tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.allocator.request.classes import shipped_classes
from koordra.api import objects
from koordra.api.kinds import Kind

Object = dict[str, Any]


def request(name: str, device_class: str = "gpu.koordra.io", **fields: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def parameters(kind: str, requests: list[str] | None = None, **fields: Any) -> Object:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": kind, **fields}
    entry: Object = {"opaque": {"driver": "koordra.io", "parameters": body}}
    return {"requests": requests, **entry} if requests else entry


def claim(
    requests: list[Object], config: list[Object] | None = None, name: str = "c", **metadata: Any
) -> Object:
    devices: Object = {"requests": requests}
    if config:
        devices["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": {"devices": devices},
    }


def template(of: Object, name: str = "t") -> Object:
    return {
        **of,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"spec": of["spec"]},
    }


def pod(*claims: Object, **spec: Any) -> Object:
    entries = [{"name": f"claim-{number}", **entry} for number, entry in enumerate(claims)]
    containers = [{"name": "main", "image": "x"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"containers": containers, "resourceClaims": entries, **spec},
    }


class Known:
    """Look-ups over given objects, and koordra's own classes."""

    def __init__(self, *known: Object) -> None:
        self._known = known
        self._classes = {
            objects.name(one): one for one in (*shipped_classes(), *known) if one["kind"] == "DeviceClass"
        }

    def for_review(self) -> Known:
        return self

    def claim(self, namespace: str, name: str) -> Object | None:
        return self._find("ResourceClaim", namespace, name)

    def template(self, namespace: str, name: str) -> Object | None:
        return self._find("ResourceClaimTemplate", namespace, name)

    def classes(self) -> Mapping[str, Object]:
        return self._classes

    def known(self, kind: Kind, key: str) -> Object | None:
        return self._find(kind.kind, *key.split("/"))

    def _find(self, kind: str, namespace: str, name: str) -> Object | None:
        return next(
            (one for one in self._known if (one["kind"], objects.key(one)) == (kind, f"{namespace}/{name}")),
            None,
        )

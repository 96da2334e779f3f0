"""The Kubernetes API resources koordra reads and writes, where they live under the server's URL, and the
served versions of resource.k8s.io with the way between them and v1.

    v1          1.34 on                    what koordra speaks inside
    v1beta2     1.33 to 1.38               the same shapes
    v1beta1     1.32 to 1.37               a request's body stands beside its name (v1: under `exactly`), a
                                           device's body under `basic` (v1: beside its name)
    v1alpha3    DeviceTaintRule only (1.33 to 1.35)

Objects are converted where they cross the border (koordra.kube.client); metadata and status have one shape in
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from koordra.api.objects import Fields, Object, without


@dataclass(frozen=True, slots=True)
class Kind:
    """One API resource: `resource.k8s.io/v1 ResourceClaim`, plural `resourceclaims`."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1` or `resource.k8s.io/v1`: what manifests carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def type_meta(self) -> Object:
        """The first two fields of an object of this kind."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """URL path; without a namespace a namespaced kind is addressed over all namespaces. Every part is
        quoted."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(["", *(quote(part, safe="") for part in parts)])

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


COMPOSITE: Final = "CompositePodGroup"
"""Kind of the groups of PodGroups (1.37, alpha). They stand in one table with these; their keys name the
kind."""

NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Kind("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Kind("", "v1", "pods", "Pod")
EVENTS: Final = Kind("", "v1", "events", "Event")
RESOURCE_QUOTAS: Final = Kind("", "v1", "resourcequotas", "ResourceQuota")
PERSISTENT_VOLUMES: Final = Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICES: Final = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNTS: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount")
POD_DISRUPTION_BUDGETS: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
TOKEN_REVIEWS: Final = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS: Final = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")

RESOURCE_GROUP: Final = "resource.k8s.io"
RESOURCE_SLICES: Final = Kind(RESOURCE_GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS: Final = Kind(RESOURCE_GROUP, "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES: Final = Kind(
    RESOURCE_GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEVICE_CLASSES: Final = Kind(RESOURCE_GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES: Final = Kind(
    RESOURCE_GROUP, "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False
)

DEVICE_HOLDS: Final = Kind("koordra.io", "v1alpha1", "deviceholds", "DeviceHold")
RESERVATIONS: Final = Kind("koordra.io", "v1alpha1", "reservations", "Reservation")
TRAINING_JOBS: Final = Kind("koordra.io", "v1alpha1", "trainingjobs", "TrainingJob")

V1: Final = "v1"
V1BETA1: Final = "v1beta1"
SERVED: Final = (V1, "v1beta2", V1BETA1, "v1alpha3")
"""In the order of preference."""


def to_v1(obj: Object) -> Object:
    """An object of resource.k8s.io as v1 has it; the same value where nothing is to be done."""
    group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
    if version == V1 or group != RESOURCE_GROUP:
        return obj
    changed = {**obj, "apiVersion": f"{RESOURCE_GROUP}/{V1}"}
    return _with_bodies(changed, request=_nested, device=_flat) if version == V1BETA1 else changed


def from_v1(obj: Object, version: str) -> Object:
    """An object of v1 as `version` has it."""
    if version == V1:
        return obj
    changed = {**obj, "apiVersion": f"{RESOURCE_GROUP}/{version}"}
    return _with_bodies(changed, request=_flat, device=_nested) if version == V1BETA1 else changed


_Change = Callable[[Fields, str], Fields]


def _with_bodies(obj: Object, *, request: _Change, device: _Change) -> Object:
    spec, kind = obj.get("spec"), obj.get("kind")
    if not isinstance(spec, Mapping):
        return obj
    if kind == "ResourceClaim":
        return {**obj, "spec": _claim_spec(spec, request)}
    if kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), Mapping):
        return {**obj, "spec": {**spec, "spec": _claim_spec(spec["spec"], request)}}
    if kind == "ResourceSlice" and spec.get("devices"):
        return {**obj, "spec": {**spec, "devices": [device(entry, "basic") for entry in spec["devices"]]}}
    return obj


def _claim_spec(spec: Fields, change: _Change) -> Fields:
    devices = spec.get("devices")
    if not isinstance(devices, Mapping) or not devices.get("requests"):
        return spec
    requests = [change(entry, "exactly") for entry in devices["requests"]]
    return {**spec, "devices": {**devices, "requests": requests}}


def _nested(entry: Fields, field: str) -> Fields:
    """With the body of a request or device in a field beside its name; alternatives have no body."""
    if entry.get("firstAvailable") or field in entry:
        return entry
    return {
        "name": entry.get("name"),
        field: without(entry, "name", "firstAvailable"),
    }


def _flat(entry: Fields, field: str) -> Fields:
    """With the body beside the name."""
    if not isinstance(entry.get(field), Mapping):
        return entry
    return {"name": entry.get("name"), **entry[field]}

"""The Kubernetes API resources koordra reads and writes, and where they live under the server's URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Kind:
    """One API resource: `resource.k8s.io/v1 ResourceClaim`, plural `resourceclaims`."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """`v1` or `resource.k8s.io/v1`: what manifests carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """URL path; without a namespace a namespaced kind is addressed over all namespaces. Every part is quoted."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(["", *(quote(part, safe="") for part in parts)])

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Kind("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Kind("", "v1", "pods", "Pod", namespaced=True)
EVENTS: Final = Kind("", "v1", "events", "Event", namespaced=True)
RESOURCE_QUOTAS: Final = Kind("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
PERSISTENT_VOLUMES: Final = Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Kind(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True
)
SERVICE_ACCOUNTS: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)

RESOURCE_GROUP: Final = "resource.k8s.io"
RESOURCE_SLICES: Final = Kind(RESOURCE_GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS: Final = Kind(RESOURCE_GROUP, "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES: Final = Kind(
    RESOURCE_GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
DEVICE_CLASSES: Final = Kind(RESOURCE_GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES: Final = Kind(
    RESOURCE_GROUP, "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False
)

ALL: Final = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    SERVICE_ACCOUNTS,
    LEASES,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
)


def of_manifest(api_version: str, kind: str) -> Kind | None:
    """The resource a manifest's apiVersion and kind name, or None where koordra does not know it."""
    return next((known for known in ALL if (known.api_version, known.kind) == (api_version, kind)), None)

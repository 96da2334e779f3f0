"""What is served: kinds with their short names, categories and subresources.

`SERVED` are the built-in kinds, some of them behind a feature gate; what CustomResourceDefinitions add is in
custom.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import kinds
from koordra.api.kinds import Kind

EVENTS_V1: Final = Kind("events.k8s.io", "v1", "events", "Event")

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Served:
    """One resource. `type_name` is its field table; `stored` where its objects are kept (two event APIs share
    theirs)."""

    kind: Kind
    type_name: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(name, kind of the body, verbs)."""
    schema: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)
    """The OpenAPI schema of a custom kind; built-in kinds have field tables."""
    columns: Sequence[Mapping[str, Any]] = field(default=(), compare=False, hash=False)
    """additionalPrinterColumns of a custom kind."""
    gate: str = ""
    """The feature gate that has to be on for the kind to be served."""

    @property
    def stored(self) -> str:
        return "events" if self.kind == EVENTS_V1 else str(self.kind)

    @property
    def singular(self) -> str:
        return self.kind.kind.lower()


def _status(kind: str) -> tuple[str, str, tuple[str, ...]]:
    return ("status", kind, ("get", "patch", "update"))


SCALE: Final = ("scale", "Scale", ("get", "patch", "update"))
"""The subresource that `kubectl scale` and autoscalers speak to: autoscaling/v1."""


def _core(plural: str, kind: str) -> Kind:
    return Kind("", "v1", plural, kind)


def _apps(plural: str, kind: str) -> Kind:
    return Kind("apps", "v1", plural, kind)


def _rbac(plural: str, kind: str, *, namespaced: bool) -> Kind:
    return Kind("rbac.authorization.k8s.io", "v1", plural, kind, namespaced=namespaced)


def _admission(plural: str, kind: str) -> Kind:
    return Kind("admissionregistration.k8s.io", "v1", plural, kind, namespaced=False)


CONFIG_MAPS: Final = _core("configmaps", "ConfigMap")
_PROXIED: Final = ("create", "delete", "get", "patch", "update")
SERVICES: Final = _core("services", "Service")
ENDPOINT_SLICES: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
DEPLOYMENTS: Final = _apps("deployments", "Deployment")
REPLICA_SETS: Final = _apps("replicasets", "ReplicaSet")
STATEFUL_SETS: Final = _apps("statefulsets", "StatefulSet")
DAEMON_SETS: Final = _apps("daemonsets", "DaemonSet")
CONTROLLER_REVISIONS: Final = _apps("controllerrevisions", "ControllerRevision")
RESOURCE_QUOTAS: Final = _core("resourcequotas", "ResourceQuota")
PRIORITY_CLASSES: Final = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
WORKLOADS: Final = Kind("scheduling.k8s.io", "v1alpha2", "workloads", "Workload")
POD_GROUPS: Final = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
GENERIC_WORKLOAD: Final = "GenericWorkload"
JOBS: Final = Kind("batch", "v1", "jobs", "Job")
ROLES: Final = _rbac("roles", "Role", namespaced=True)
ROLE_BINDINGS: Final = _rbac("rolebindings", "RoleBinding", namespaced=True)
CLUSTER_ROLES: Final = _rbac("clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS: Final = _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False)
POLICIES: Final = _admission("validatingadmissionpolicies", "ValidatingAdmissionPolicy")
POLICY_BINDINGS: Final = _admission("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
MUTATING_WEBHOOKS: Final = _admission("mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
VALIDATING_WEBHOOKS: Final = _admission("validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
FLOW_SCHEMAS: Final = Kind(
    "flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema", namespaced=False
)
PRIORITY_LEVELS: Final = Kind(
    "flowcontrol.apiserver.k8s.io",
    "v1",
    "prioritylevelconfigurations",
    "PriorityLevelConfiguration",
    namespaced=False,
)
"""Stored and shown; the double queues nobody."""
CRDS: Final = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

SERVED: Final = (
    Served(
        kinds.NAMESPACES,
        "Namespace",
        ("ns",),
        subresources=(("finalize", "Namespace", ("update",)), _status("Namespace")),
    ),
    Served(kinds.NODES, "Node", ("no",), subresources=(_status("Node"),)),
    Served(
        kinds.PODS,
        "Pod",
        ("po",),
        ("all",),
        (
            ("binding", "Binding", ("create",)),
            ("eviction", "Eviction", ("create",)),
            ("proxy", "PodProxyOptions", _PROXIED),
            _status("Pod"),
        ),
    ),
    Served(kinds.EVENTS, "Event", ("ev",)),
    Served(
        kinds.SERVICE_ACCOUNTS,
        "ServiceAccount",
        ("sa",),
        subresources=(("token", "TokenRequest", ("create",)),),
    ),
    Served(CONFIG_MAPS, "ConfigMap", ("cm",)),
    Served(_core("secrets", "Secret"), "Secret"),
    Served(
        SERVICES,
        "Service",
        ("svc",),
        ("all",),
        (("proxy", "ServiceProxyOptions", _PROXIED),),
    ),
    Served(ENDPOINT_SLICES, "EndpointSlice"),
    Served(
        kinds.PERSISTENT_VOLUMES, "PersistentVolume", ("pv",), subresources=(_status("PersistentVolume"),)
    ),
    Served(
        kinds.PERSISTENT_VOLUME_CLAIMS,
        "PersistentVolumeClaim",
        ("pvc",),
        subresources=(_status("PersistentVolumeClaim"),),
    ),
    Served(RESOURCE_QUOTAS, "ResourceQuota", ("quota",), subresources=(_status("ResourceQuota"),)),
    Served(DEPLOYMENTS, "Deployment", ("deploy",), ("all",), (SCALE, _status("Deployment"))),
    Served(REPLICA_SETS, "ReplicaSet", ("rs",), ("all",), (SCALE, _status("ReplicaSet"))),
    Served(STATEFUL_SETS, "StatefulSet", ("sts",), ("all",), (SCALE, _status("StatefulSet"))),
    Served(DAEMON_SETS, "DaemonSet", ("ds",), ("all",), (_status("DaemonSet"),)),
    Served(CONTROLLER_REVISIONS, "ControllerRevision"),
    Served(JOBS, "Job", (), ("all",), (_status("Job"),)),
    Served(
        kinds.POD_DISRUPTION_BUDGETS,
        "PodDisruptionBudget",
        ("pdb",),
        subresources=(_status("PodDisruptionBudget"),),
    ),
    Served(PRIORITY_CLASSES, "PriorityClass", ("pc",)),
    Served(WORKLOADS, "Workload", gate=GENERIC_WORKLOAD),
    Served(POD_GROUPS, "PodGroup", subresources=(_status("PodGroup"),), gate=GENERIC_WORKLOAD),
    Served(ROLES, "Role"),
    Served(ROLE_BINDINGS, "RoleBinding"),
    Served(CLUSTER_ROLES, "ClusterRole"),
    Served(CLUSTER_ROLE_BINDINGS, "ClusterRoleBinding"),
    Served(POLICIES, "ValidatingAdmissionPolicy", subresources=(_status("ValidatingAdmissionPolicy"),)),
    Served(POLICY_BINDINGS, "ValidatingAdmissionPolicyBinding"),
    Served(MUTATING_WEBHOOKS, "MutatingWebhookConfiguration"),
    Served(VALIDATING_WEBHOOKS, "ValidatingWebhookConfiguration"),
    Served(
        CRDS, "CustomResourceDefinition", ("crd", "crds"), subresources=(_status("CustomResourceDefinition"),)
    ),
    Served(FLOW_SCHEMAS, "FlowSchema"),
    Served(PRIORITY_LEVELS, "PriorityLevelConfiguration"),
    Served(kinds.LEASES, "Lease"),
    Served(EVENTS_V1, "EventsEvent", ("ev",)),
    Served(kinds.RESOURCE_SLICES, "ResourceSlice"),
    Served(kinds.RESOURCE_CLAIMS, "ResourceClaim", subresources=(_status("ResourceClaim"),)),
    Served(kinds.RESOURCE_CLAIM_TEMPLATES, "ResourceClaimTemplate"),
    Served(kinds.DEVICE_CLASSES, "DeviceClass"),
    Served(kinds.DEVICE_TAINT_RULES, "DeviceTaintRule", subresources=(_status("DeviceTaintRule"),)),
)

CASCADING: Final = frozenset(
    {kinds.PODS, kinds.RESOURCE_CLAIMS, DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, JOBS}
)
"""Kinds whose objects own others: they can be deleted with propagationPolicy Foreground or Orphan."""
BY_PATH: Final = {(one.kind.group, one.kind.version, one.kind.plural): one for one in SERVED}
GROUPS: Final = tuple(dict.fromkeys((one.kind.group, one.kind.version) for one in SERVED))
"""(group, version), the core group first."""

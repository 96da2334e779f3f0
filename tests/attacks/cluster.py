"""koordra as it is installed in a cluster, from the sides of its administrator, of tenants and of nodes.

A tenant has the rights of the built-in ClusterRole `edit` in its namespace, and those to claims. The nodes
are made-up machines; the kubelets' part is nobody's.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Final

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import Installation, account_kubeconfig
from tests.cluster.waiting import eventually

TENANT: Final = "tenant"
INNOCENT: Final = "innocent"
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES: Final = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False
)
MAY: Final = {
    "": ("pods", "pods/log", "pods/exec", "configmaps", "secrets", "events", "serviceaccounts"),
    "batch": ("jobs",),
    "resource.k8s.io": ("resourceclaims", "resourceclaimtemplates"),
}
"""API group -> what a tenant may do everything with, in its own namespace. `edit` gives events for reading
only; many clusters give more."""


class InstalledCluster:
    """`installation`: what was applied, and the webhook's port; `metrics`: the controller's, as they are
    scraped."""

    def __init__(
        self, kubeconfig: Path, folder: Path, installation: Installation, *, metrics: Callable[[], str]
    ) -> None:
        self.kubeconfig, self.folder = kubeconfig, folder
        self.installation, self.metrics = installation, metrics
        self.admin = installation.client
        for name in (TENANT, INNOCENT):
            self._add_tenant(name)
        self.tenant = self.account("tenant", namespace=TENANT)
        self.innocent = self.account("tenant", namespace=INNOCENT)

    def account(
        self, name: str, *, namespace: str = "koordra-system", bound_to: Object | None = None
    ) -> KubeClient:
        """A client with the rights of a ServiceAccount."""
        path = self.folder / f"{namespace}-{name}-{time.monotonic_ns()}"
        config = account_kubeconfig(
            self.admin, str(self.kubeconfig), path, account=name, namespace=namespace, bound_to=bound_to
        )
        return new_client(str(config))

    def samples(self) -> dict[str, float]:
        """The controller's metrics, `name{labels}` -> value."""
        lines = [line.rpartition(" ") for line in self.metrics().splitlines() if line[:1] != "#"]
        return {name: float(value) for name, _, value in lines}

    def events_written(self, *, since: str) -> int:
        """How often koordra has written an Event of the tenant's objects after a version of the server."""
        last = {"metadata": {"name": f"last-{uuid.uuid4().hex}", "namespace": TENANT}, "reason": "Last"}
        last |= {"involvedObject": {"namespace": TENANT}, "type": "Normal", "message": "seen"}
        self.admin.create(kinds.EVENTS, last, namespace=TENANT)
        told = (obj for _, obj in self.admin.watch(kinds.EVENTS, resource_version=since))
        before = takewhile(lambda obj: objects.name(obj) != last["metadata"]["name"], told)
        mine = (obj for obj in before if objects.metadata(obj).get("namespace") == TENANT)
        return sum((obj.get("source") or {}).get("component") == "koordra-controller" for obj in mine)

    def close(self) -> None:
        """Tenants, the programs' pods and what was made in their name are gone."""
        for pod in self.admin.list(
            kinds.PODS, namespace="koordra-system", label_selector="koordra.io/test=true"
        )[0]:
            self.admin.delete(kinds.PODS, objects.name(pod), namespace="koordra-system", grace_period=0)
        for name in (TENANT, INNOCENT):
            self.admin.delete(kinds.NAMESPACES, name)
        self.admin.delete(CLUSTER_ROLES, "tenant")

    def _add_tenant(self, namespace: str) -> None:
        named = {"metadata": {"name": "tenant"}}
        rules = [
            {"apiGroups": [group], "resources": list(found), "verbs": ["*"]} for group, found in MAY.items()
        ]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"}
        subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
        self._create(kinds.NAMESPACES, {"metadata": {"name": namespace}})
        self._create(kinds.SERVICE_ACCOUNTS, named, namespace=namespace)
        self._create(CLUSTER_ROLES, {**named, "rules": rules})
        self._create(ROLE_BINDINGS, {**named, "roleRef": role, "subjects": [subject]}, namespace=namespace)
        eventually(lambda: self._may_have_pods(namespace), f"the default ServiceAccount of {namespace}")

    def _create(self, kind: Kind, body: Object, *, namespace: str | None = None) -> None:
        with contextlib.suppress(Conflict):
            self.admin.create(kind, body, namespace=namespace)

    def _may_have_pods(self, namespace: str) -> bool:
        try:
            return bool(self.admin.get(kinds.SERVICE_ACCOUNTS, "default", namespace=namespace))
        except NotFound:
            return False

"""koordra installed as it is shipped on the development cluster, in this process: API server with RBAC and
admission policies, scheduler, claim loops; controller and webhook with the rights of their ServiceAccount.

A tenant has the rights of the built-in ClusterRole `edit` in its namespace, and those to claims. The nodes
are made-up machines; the kubelets' part is nobody's.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.cel.selectors import admission_error
from koordra.controller.run import run, start_webhook
from koordra.controller.settings import Settings
from koordra.controller.webhook.cert_rotation import WebhookSettings
from koordra.controller.webhook.server import WebhookServer
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import Offering, build_slices
from koordra.metrics import Metrics
from koordra.topology import presets
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.control_plane import ControlPlane
from tests.cluster.installation import Installation, account_kubeconfig, free_port
from tests.fakes.joint_cluster import node
from tests.patience import PATIENCE

NODES: Final = ("n0", "n1")
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

COMPILE: Final = partial(admission_error, list_attributes=False)

T = TypeVar("T")


class InstalledCluster:
    """Everything that runs; `close` ends it."""

    def __init__(self, folder: Path, *, elects: bool = False) -> None:
        """`elects`: with a Lease, which nobody takes in a new cluster before some 25 seconds are over."""
        self.folder, self.elects = folder, elects
        self.metrics = Metrics()
        self.stop, self.end = threading.Event(), threading.Event()
        # A port that no client gets meanwhile, since the server is started anew at the same one.
        self.plane = ControlPlane(
            folder, port=free_port(), first_backoff=0.1, audit=folder / "audit", compile_cel=COMPILE
        )
        self.plane.start(self.stop)
        self.admin = new_client(str(self.plane.kubeconfig))
        self.installation = Installation(self.admin, 0)
        self.installation.apply()
        for name in NODES:
            self._add_node(name)
        for name in (TENANT, INNOCENT):
            self._add_tenant(name)
        self.tenant = self.account("tenant", namespace=TENANT)
        self.innocent = self.account("tenant", namespace=INNOCENT)
        self.webhook = self._serve()
        self._lead()

    def account(
        self, name: str, *, namespace: str = "koordra-system", bound_to: Object | None = None
    ) -> KubeClient:
        """A client with the rights of a ServiceAccount."""
        path = self.folder / f"{namespace}-{name}-{time.monotonic_ns()}"
        config = account_kubeconfig(
            self.admin,
            str(self.plane.kubeconfig),
            path,
            account=name,
            namespace=namespace,
            bound_to=bound_to,
        )
        return new_client(str(config))

    def samples(self) -> dict[str, float]:
        """The process's metrics, `name{labels}` -> value."""
        lines = [line.rpartition(" ") for line in self.metrics.text().splitlines() if line[:1] != "#"]
        return {name: float(value) for name, _, value in lines}

    def asked(self, account: str, resource: str) -> int:
        """How many requests for objects of a kind a ServiceAccount of koordra's has made."""
        lines = map(json.loads, (self.folder / "audit").read_text().splitlines())
        user = f"system:serviceaccount:koordra-system:{account}"
        return sum(line["user"] == user and line["resource"] == resource for line in lines)

    def back_up(self, to: Path) -> None:
        """What the API server has now."""
        store = self.plane.server.store
        with store._lock, contextlib.closing(sqlite3.connect(to)) as copy:
            store._database.backup(copy)

    def restart_api_server(self, *, restored: Path | None = None) -> None:
        """At the same address, with the same tokens, as a real one would take them; `restored`: from a
        backup."""
        old = self.plane.server
        issued, port = old._http._server.api.tokens._issued, old._http.port
        old.close()
        if restored is not None:
            for file in self.folder.glob("apiserver.db*"):
                file.unlink()
            shutil.copy(restored, self.folder / "apiserver.db")
        new = ApiServer(self.folder, port=port, compile_cel=COMPILE, audit=self.folder / "audit")
        new._http._server.api.tokens._issued = issued
        self.plane.server = new
        new.start()

    def close(self) -> None:
        self.end.set()
        self._leader.join(PATIENCE)
        self.webhook.close()
        self.stop.set()
        self.plane.close()

    def _serve(self) -> WebhookServer:
        client = self.account("koordra-controller")
        server = start_webhook(
            client,
            WebhookSettings("127.0.0.1:0", host="127.0.0.1"),
            metrics=self.metrics,
            stop=self.end,
        )
        assert server is not None
        self.installation = Installation(self.admin, server.port)
        eventually(self.installation.webhook_answers, "the webhook")
        return server

    def _lead(self) -> None:
        client = self.account("koordra-controller")
        settings = Settings(identity="one", leader_elect=self.elects)
        self._leader = threading.Thread(
            target=run, args=(client, settings), kwargs={"stop": self.end, "metrics": self.metrics}
        )
        self._leader.start()

    def _add_node(self, name: str) -> None:
        made = self.admin.create(kinds.NODES, node(name))
        self.admin.update(kinds.NODES, {**made, "status": node(name)["status"]}, subresource="status")
        root = self.folder / name
        presets.write_machine(presets.load("hgx-h100"), root, serial=name)
        slices = build_slices(
            discover(root).machine,
            node_name=name,
            node_uid=objects.uid(made),
            mode=names.MODE_JOINT,
            generation=1,
            offering=Offering(),
        )
        for body in slices:
            self.admin.create(kinds.RESOURCE_SLICES, body)

    def _add_tenant(self, namespace: str) -> None:
        self.admin.create(kinds.NAMESPACES, {"metadata": {"name": namespace}})
        self.admin.create(kinds.SERVICE_ACCOUNTS, {"metadata": {"name": "tenant"}}, namespace=namespace)
        with contextlib.suppress(ApiError):
            rules = [
                {"apiGroups": [group], "resources": list(found), "verbs": ["*"]}
                for group, found in MAY.items()
            ]
            self.admin.create(CLUSTER_ROLES, {"metadata": {"name": "tenant"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"}
        subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
        binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
        self.admin.create(ROLE_BINDINGS, binding, namespace=namespace)


def eventually(look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: did not happen")

"""The Node object of a kubelet double: registration, heartbeat, lease."""

from __future__ import annotations

import platform
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object, uid
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra_devcluster.apiserver.fields.schema import format_microtime, format_time
from koordra_devcluster.controllers.claims import STRATEGIC_MERGE_PATCH

log = get_logger(__name__)

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_PERIOD: Final = 10.0
STATUS_EVERY: Final = 6
"""Heartbeats of the status per so many of the lease."""

VERSION: Final = "v1.37.0-devcluster"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """`cpu` and `memory` are Kubernetes quantities."""

    name: str
    cpu: str = "96"
    memory: str = "1Ti"
    pods: int = 110
    labels: tuple[tuple[str, str], ...] = ()


def node_labels(settings: NodeSettings) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": settings.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **dict(settings.labels),
    }


def node_status(settings: NodeSettings, now: datetime) -> Object:
    """Capacity, addresses, conditions and node info; conditions merge by type."""
    resources = {"cpu": settings.cpu, "memory": settings.memory, "pods": str(settings.pods)}
    conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        (
            "Ready",
            "True",
            "KubeletReady",
            "kubelet double of the development cluster is posting ready status",
        ),
    ]
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": settings.name}],
        "conditions": [
            {"type": type_, "status": state, "reason": reason, "message": message,
             "lastHeartbeatTime": format_time(now), "lastTransitionTime": format_time(now)}
            for type_, state, reason, message in conditions
        ],
        "nodeInfo": {
            "architecture": "amd64", "operatingSystem": "linux", "osImage": "koordra development cluster",
            "kernelVersion": platform.release(), "kubeletVersion": VERSION, "kubeProxyVersion": "",
            "containerRuntimeVersion": "koordra-devcluster://0", "machineID": settings.name, "systemUUID": settings.name,
            "bootID": _boot_id(),
        },
    }  # fmt: skip


class NodeHeartbeat:
    """Creates the Node once and keeps its status and lease fresh."""

    def __init__(self, client: KubeClient, settings: NodeSettings) -> None:
        self._client = client
        self._settings = settings

    def register(self, stop: threading.Event) -> Object | None:
        """The Node, created or brought up to date; None when stopped before that worked."""
        while not stop.is_set():
            try:
                return self._register()
            except ApiError as error:
                log.warning("node_not_registered", node=self._settings.name, error=str(error))
                stop.wait(1.0)
        return None

    def run(self, stop: threading.Event) -> None:
        beats = 0
        while not stop.is_set():
            try:
                self._renew_lease()
                if beats % STATUS_EVERY == 0:
                    self._heartbeat()
                beats += 1
            except NotFound:
                self.register(stop)
            except ApiError as error:
                log.debug("heartbeat_failed", node=self._settings.name, error=str(error))
            stop.wait(LEASE_PERIOD)

    def _register(self) -> Object:
        body: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._settings.name, "labels": node_labels(self._settings)},
            "status": node_status(self._settings, datetime.now(UTC)),
        }
        try:
            return self._client.create(kinds.NODES, body)
        except Conflict:
            labels = {"metadata": {"labels": node_labels(self._settings)}}
            self._client.patch(kinds.NODES, self._settings.name, labels)
            return self._heartbeat()

    def _heartbeat(self) -> Object:
        status = node_status(self._settings, datetime.now(UTC))
        for condition in status["conditions"]:
            del condition["lastTransitionTime"]
        return self._client.patch(
            kinds.NODES,
            self._settings.name,
            {"status": status},
            subresource="status",
            content_type=STRATEGIC_MERGE_PATCH,
        )

    def _renew_lease(self) -> None:
        name, now = self._settings.name, format_microtime(datetime.now(UTC))
        renewal = {"spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}}
        try:
            self._client.patch(kinds.LEASES, name, renewal, namespace=LEASE_NAMESPACE)
        except NotFound:
            node = self._client.get(kinds.NODES, name)
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid(node)}
            body = {
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
                **renewal,
            }
            self._client.create(kinds.LEASES, body, namespace=LEASE_NAMESPACE)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""

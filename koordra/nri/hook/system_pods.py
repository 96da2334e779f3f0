"""Which pods belong to the node rather than to a tenant, so that isolation must not keep them from starting.

    exempt       namespaces that the operator lists (`--exempt-namespace`), or that carry the label
                 koordra.io/exempt=true: nothing is taken away from their containers
    critical     static pods, and pods of system-critical priority: their privileged containers are not
                 refused for what they mount or can open (privileged.SPARED)
    monitors     containers of critical pods that are not privileged and have the host's folder in which the
                 kubelet tells which pod has which device (POD_RESOURCES; dcgm-exporter): exempt, unless the
                 operator trusts no priority (`--privileged refuse`)

None of it is a tenant's to say. Namespaces are labelled by whoever administers them. A static pod is known by
the annotation that the kubelet writes over whatever the pod says. A priority of 2 billion comes only from the
classes system-node-critical and system-cluster-critical; any pod may name these, unless a ResourceQuota with
`scopeSelector` PriorityClass restricts them (with `limitedResources` in the API server's admission
configuration). So priority never counts alone: such a pod has to be admitted as privileged, or with a
hostPath volume, first (Pod Security `baseline` forbids both), and is reported.

The runtime does not tell a pod's priority, so the API server is asked, once per pod, and only about a
privileged container that would be refused and about a monitor. Where it does not answer, a privileged
container on the host's network is given the benefit of the doubt: it may be the network without which the
server cannot be reached, and nobody creates pods while the server is away. Labelled namespaces are watched,
and remembered on disk over a reboot:

    <state>/exempt-namespaces.json      a list of names, mode 0600
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Fields, Object
from koordra.errors import ApiError, CheckpointError, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.reader import trusted
from koordra.node_state.strict_json import load
from koordra.nri.hook.oci import Container
from koordra.nri.hook.ungranted_access import host_path, is_privileged

EXEMPT_LABEL: Final = names.DOMAIN + "exempt"
REMEMBERED: Final = "exempt-namespaces.json"
SYSTEM_CRITICAL: Final = 2_000_000_000
"""The least priority of the two system classes; no other class may have one above a billion."""
POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"
"""With the kubelet's socket that lists the devices of all pods (PodResourcesLister), where it usually is."""

_SOURCE: Final = "kubernetes.io/config.source"
_STATIC: Final = ("file", "http")
_MOST_PODS: Final = 1024

log = get_logger(__name__)


class LabelledNamespaces:
    """The namespaces with the label, followed by a watch; before its first list, those of the last time."""

    def __init__(self, client: KubeClient, state_dir: Path, *, disk: Disk | None = None) -> None:
        self._path = state_dir / REMEMBERED
        self._disk = disk or Disk()
        self._names = _read(self._path)
        self._cache = WatchCache(
            client,
            kinds.NAMESPACES,
            label_selector=f"{EXEMPT_LABEL}=true",
            on_change=lambda _event, _namespace: self._changed(),
            trim=lambda namespace: {"metadata": _short(objects.metadata(namespace))},
        )

    def start(self, stop: threading.Event) -> None:
        self._cache.start(stop)

    def __call__(self) -> frozenset[str]:
        if self._cache.wait_synced(0):
            self._changed()
        return self._names

    def _changed(self) -> None:
        found = frozenset(map(objects.name, self._cache.objects()))
        if found == self._names:
            return
        self._names = found
        log.info("exempt_namespaces", labelled=sorted(found))
        try:
            self._disk.replace(self._path, json.dumps(sorted(found)).encode(), mode=0o600)
        except OSError as error:
            log.warning("exempt_namespaces_not_remembered", error=str(error))


def _priority_unknown(container: Container, error: ApiError) -> None:
    log.warning("priority_unknown", pod=f"{container.namespace}/{container.pod}", error=str(error))


def _short(metadata: Fields) -> Object:
    return {"name": metadata.get("name"), "resourceVersion": metadata.get("resourceVersion")}


def _read(path: Path) -> frozenset[str]:
    try:
        found = load(trusted(path)[0])
    except (OSError, ValueError, CheckpointError):
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


@dataclass(eq=False)
class SystemPods:
    """`listed`: the operator's namespaces; `labelled` returns those with the label. `client` None: priorities
    are not known. `pod_resources`: where POD_RESOURCES may be on this node."""

    listed: frozenset[str] = frozenset()
    labelled: Callable[[], frozenset[str]] = frozenset
    client: KubeClient | None = None
    pod_resources: frozenset[str] = frozenset({POD_RESOURCES})
    _known: dict[str, str] = field(default_factory=dict)

    def exempt(self, container: Container) -> str:
        """Why the container is left alone; empty where it is not."""
        namespace = container.namespace
        if namespace in self.listed:
            return f"namespace {namespace} is exempt (--exempt-namespace)"
        if namespace in self.labelled():
            return f"namespace {namespace} is exempt (label {EXEMPT_LABEL})"
        monitors = any(
            mount.bind and host_path(mount.source) in self.pod_resources for mount in container.mounts
        )
        if not monitors or is_privileged(container):
            return ""
        try:
            why = self.critical(container)
        except ApiError as error:
            _priority_unknown(container, error)
            return ""
        return f"it monitors the devices of pods, and {why}" if why else ""

    def note(self, pod_uid: str, annotations: Mapping[str, str]) -> None:
        """Remember a pod that the kubelet took from its own files: running containers do not show it."""
        if pod_uid and annotations.get(_SOURCE) in _STATIC:
            self._remember(pod_uid, "it is a static pod")

    def critical(self, container: Container) -> str:
        """Why the pod is critical to the node; empty where it is not. ApiError: that is not known."""
        self.note(container.pod_uid, container.pod_annotations)
        known = self._known.get(container.pod_uid)
        if known is None and self.client is not None:
            known = self._remember(container.pod_uid, self._by_priority(self.client, container))
        return known or ""

    def starts(self, container: Container) -> str:
        """Why the container is to start although a rule refuses it; empty where it is not."""
        try:
            return self.critical(container)
        except ApiError as error:
            _priority_unknown(container, error)
            return f"the API server does not tell its priority ({error})" if container.host_network else ""

    def _by_priority(self, client: KubeClient, container: Container) -> str:
        try:
            pod = client.get(kinds.PODS, container.pod, namespace=container.namespace)
        except NotFound:
            return ""
        spec = objects.spec_of(pod)
        priority = spec.get("priority")
        if objects.uid(pod) != container.pod_uid or not isinstance(priority, int):
            return ""
        return f"its priority is {spec.get('priorityClassName')}" if priority >= SYSTEM_CRITICAL else ""

    def _remember(self, pod_uid: str, why: str) -> str:
        if len(self._known) >= _MOST_PODS:
            self._known.clear()
        self._known[pod_uid] = why
        return why

"""Pod sandboxes: the hook passes their start and stop to the process that moves NICs.

The implementation is the caller's (`Options.networks`, set by `koordra nri --pod-network`); the hook knows
only this interface. An error in RunPodSandbox fails the sandbox, which the kubelet retries; errors at the
stop are logged, since a sandbox must always be able to end.
"""

from __future__ import annotations

from typing import Protocol

from koordra._proto.nri import nri_pb2
from koordra.errors import KoordraError, RemoteError
from koordra.logs import get_logger
from koordra.nri.transport.ttrpc import Code

log = get_logger(__name__)


class SandboxNetworks(Protocol):
    """Attaches and detaches the NICs of pods. `netns` is a path, empty for a pod on the host's network or if
    unknown."""

    def sandbox_started(self, *, id: str, pod_uid: str, pod: str, namespace: str, netns: str) -> None:
        """Raises KoordraError if a NIC of the pod's claims cannot be attached."""

    def sandbox_stopped(self, *, id: str, pod_uid: str, pod: str, namespace: str, netns: str) -> None:
        """Detach everything; may be called several times. Raises KoordraError."""


def network_namespace(pod: nri_pb2.PodSandbox) -> str:
    """The path of the pod's network namespace."""
    return next((space.path for space in pod.linux.namespaces if space.type == "network"), "")


def _identity(pod: nri_pb2.PodSandbox) -> dict[str, str]:
    return {
        "id": pod.id,
        "pod_uid": pod.uid,
        "pod": pod.name,
        "namespace": pod.namespace,
        "netns": network_namespace(pod),
    }


def started(networks: SandboxNetworks, pod: nri_pb2.PodSandbox) -> None:
    """Raises RemoteError, which fails the sandbox."""
    try:
        networks.sandbox_started(**_identity(pod))
    except KoordraError as error:
        raise RemoteError(
            Code.PERMISSION_DENIED, f"the network of pod {pod.namespace}/{pod.name}: {error}"
        ) from error


def stopped(networks: SandboxNetworks, pod: nri_pb2.PodSandbox) -> None:
    """Never raises: Unprepare retries, and the kernel returns NICs of a namespace that ends."""
    try:
        networks.sandbox_stopped(**_identity(pod))
    except KoordraError as error:
        log.error("pod_network_not_released", pod=f"{pod.namespace}/{pod.name}", error=str(error))

"""Whether a pod holds devices by claims of koordra's. Used in Koordinator mode only, before an annotation is
trusted.

A container without a marker may be the first of a pod whose next one holds a claim, and the runtime does not
report claims. So the API is asked, once per pod, and only for pods with the annotation. If it does not
answer, the container is refused and the kubelet retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from koordra.api import kinds, names
from koordra.api.objects import Object
from koordra.errors import KoordraError, NotFound
from koordra.kube import KubeClient

_REMEMBERED: Final = 1024


class PodClaims(Protocol):
    """Knows the claims of this node's pods."""

    def of_koordra(self, *, namespace: str, pod: str, uid: str) -> bool:
        """Whether one of the pod's claims has a device of koordra's. Raises KoordraError if that is
        unknown."""


class ApiPodClaims:
    """Asks the API server. A pod's claims do not change once it runs on a node."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, bool] = {}

    def of_koordra(self, *, namespace: str, pod: str, uid: str) -> bool:
        if uid not in self._known:
            found = self._client.get(kinds.PODS, pod, namespace=namespace)
            if (found.get("metadata") or {}).get("uid") != uid:
                raise KoordraError(f"pod {namespace}/{pod} is not the one with uid {uid} any more")
            answer = any(self._has_ours(namespace, name) for name in claim_names(found))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[uid] = answer
        return self._known[uid]

    def _has_ours(self, namespace: str, name: str) -> bool:
        try:
            claim = self._client.get(kinds.RESOURCE_CLAIMS, name, namespace=namespace)
        except NotFound:
            return False
        devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        return any(result.get("driver") == names.DRIVER for result in devices.get("results") or ())


def claim_names(pod: Object) -> Iterator[str]:
    """The claims of a pod: named in it, made from its templates, and made for its extended resources."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    made = (*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {})
    for entry in (*(spec.get("resourceClaims") or ()), *made):
        if entry.get("resourceClaimName"):
            yield str(entry["resourceClaimName"])

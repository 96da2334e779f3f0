"""Where Prepare reads the claim from: the kubelet sends only its name and uid."""

from __future__ import annotations

from typing import Protocol

from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.kube import KubeClient


class ClaimSource(Protocol):
    """One claim by name."""

    def get(self, namespace: str, name: str) -> Object:
        """The ResourceClaim as the API has it now. Raises NotFound and the other ApiErrors."""


class ApiClaims:
    """The API server itself, not a cache: a claim may have been written a moment ago."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def get(self, namespace: str, name: str) -> Object:
        return self._client.get(RESOURCE_CLAIMS, name, namespace=namespace)

"""Reads a claim, its pods and its network attachments from the API: the kubelet sends only the claim's name
and uid."""

from __future__ import annotations

from typing import Final

from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.api.opaque.parameters import RdmaConfig
from koordra.api.opaque.rdma_network import Attachment
from koordra.errors import InvalidInput, NotFound, PrepareError
from koordra.kube import KubeClient
from koordra.kubelet_plugin.claims.configuration import configuration
from koordra.kubelet_plugin.network.network_decision import Consumers

NETWORK_ATTACHMENTS: Final = Kind(
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    "NetworkAttachmentDefinition",
    namespaced=True,
)


class ClaimSource:
    """Reads from the API server, not from a cache: the claim may have been written a moment ago."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def get(self, namespace: str, name: str) -> Object:
        return self._client.get(RESOURCE_CLAIMS, name, namespace=namespace)


class ConsumerSource:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def consumers(self, claim: Object) -> Consumers:
        """Raises PrepareError for a missing attachment, and ApiErrors."""
        namespace = objects.namespace(claim)
        reserved = [
            entry
            for entry in objects.status_of(claim).get("reservedFor") or ()
            if entry.get("resource") == "pods" and not entry.get("apiGroup")
        ]
        specs = [self._pod_spec(namespace, entry) for entry in reserved]
        return Consumers(
            pods=tuple(str(entry.get("uid")) for entry in reserved),
            host_network=bool(specs) and all(bool(spec.get("hostNetwork")) for spec in specs),
            own_users=any(spec.get("hostUsers") is False for spec in specs),
            attachments={found: self._attachment(namespace, found) for found in _attachments(claim)},
        )

    def _pod_spec(self, namespace: str, entry: Object) -> Object:
        try:
            pod = self._client.get(PODS, str(entry.get("name")), namespace=namespace)
        except NotFound:
            return {}
        return dict(objects.spec_of(pod)) if objects.uid(pod) == entry.get("uid") else {}

    def _attachment(self, namespace: str, wanted: Attachment) -> str:
        place = wanted.namespace or namespace
        try:
            found = self._client.get(NETWORK_ATTACHMENTS, wanted.name, namespace=place)
        except NotFound as error:
            raise PrepareError(
                f"NetworkAttachmentDefinition {place}/{wanted.name} does not exist; make it, or take it out of the claim"
            ) from error
        config = str(objects.spec_of(found).get("config") or "")
        if not config:
            raise PrepareError(
                f"NetworkAttachmentDefinition {place}/{wanted.name} has no spec.config; koordra needs it there"
            )
        return config


def _attachments(claim: Object) -> tuple[Attachment, ...]:
    try:
        allocation = Allocation.of_claim(claim)
        entries = configuration(
            allocation.config if allocation else (), claim=objects.describe(claim)
        ).entries
    except InvalidInput:
        return ()  # prepare_decision reports it
    found = (
        entry.parameters.network.attachment
        for entry in entries
        if isinstance(entry.parameters, RdmaConfig) and entry.parameters.network
    )
    return tuple(dict.fromkeys(attachment for attachment in found if attachment is not None))

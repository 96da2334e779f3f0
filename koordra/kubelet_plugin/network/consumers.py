"""The pods that a claim is reserved for, and the networks that they and the claim's class ask for.

The kubelet sends only the claim's name and uid; the rest is read from the API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.api.opaque.configuration import configuration
from koordra.api.opaque.parameters import RdmaConfig
from koordra.api.opaque.rdma_network import Attachment, RdmaNetwork
from koordra.errors import InvalidInput, NotFound, PrepareError
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.network.address_pools import NodePool, Pool
from koordra.kubelet_plugin.network.node_parts import NetworkPools

NETWORK_ATTACHMENTS: Final = Kind(
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    "NetworkAttachmentDefinition",
)


@dataclass(frozen=True, slots=True)
class Consumers:
    """Whom the claim is reserved for: `pods`, their uids; `group`, a PodGroup's name; `host_network` if all
    of the pods use the host's network, `own_users` if one has its own user namespace; the CNI configurations
    of the attachments that the claim names, as JSON text; `multus` if Multus gives one of them networks, and
    `resources`, the names by which those networks ask for devices (k8s.v1.cni.cncf.io/resourceName); `pools`
    of addresses that the operator has, where the claim has to do with addresses, and `given`, those that its
    classes name, with this node's parts; `of_host`, the host's own addresses, and their interfaces;
    `problem`, why what its classes name cannot be had, which does not matter to a claim that has it
    already."""

    pods: tuple[str, ...] = ()
    group: str = ""
    host_network: bool = False
    own_users: bool = False
    attachments: Mapping[Attachment, str] = field(default_factory=dict)
    multus: bool = False
    resources: frozenset[str] = frozenset()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    given: Mapping[str, NodePool] = field(default_factory=dict)
    of_host: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


class Claims(Protocol):
    """What Prepare reads claims from."""

    def get(self, namespace: str, name: str) -> Object:
        """The claim. Raises ApiError."""


def holds_nics(claim: Object) -> bool:
    """Whether the claim holds a NIC of ours, so that its pods matter. What cannot be read is the decision's
    to refuse."""
    allocation = objects.fields(objects.status_of(claim).get("allocation"))
    results = objects.fields(allocation.get("devices")).get("results")
    return any(
        objects.fields(result).get("driver") == names.DRIVER
        and str(objects.fields(result).get("device")).startswith(f"{names.TYPE_NIC}-")
        for result in (results if isinstance(results, list) else ())
    )


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Reads from the API server, not from a cache: the claim may have been written a moment ago.
    `reads_networks`: may it read NetworkAttachmentDefinitions?"""

    client: KubeClient
    reads_networks: bool = True
    pools: NetworkPools | None = None

    def get(self, namespace: str, name: str) -> Object:
        return self.client.get(RESOURCE_CLAIMS, name, namespace=namespace)

    def consumers(self, claim: Object) -> Consumers:
        """Raises ApiErrors."""
        namespace = objects.namespace(claim)
        wanted = _networks(claim)
        entries = objects.status_of(claim).get("reservedFor") or ()
        reserved = [one for one in entries if one.get("resource") == "pods" and not one.get("apiGroup")]
        pods = [self._pod(namespace, entry) for entry in reserved]
        specs = [objects.spec_of(pod) for pod in pods]
        reads = self.reads_networks and holds_nics(claim)
        networks = {
            network for pod in pods for network in multus_networks(objects.annotations_of(pod), namespace)
        }
        found = Consumers(
            pods=tuple(str(entry.get("uid")) for entry in reserved),
            group=next((str(one.get("name")) for one in entries if one.get("resource") == "podgroups"), ""),
            host_network=bool(specs) and all(bool(spec.get("hostNetwork")) for spec in specs),
            own_users=any(spec.get("hostUsers") is False for spec in specs),
            multus=bool(networks),
            resources=frozenset(filter(None, map(self._resource, networks if reads else ()))),
        )
        try:
            return self._with_named(found, wanted, namespace)
        except PrepareError as error:
            return replace(found, problem=str(error))

    def _with_named(self, found: Consumers, wanted: Sequence[RdmaNetwork], namespace: str) -> Consumers:
        """With what the classes name. Raises PrepareError, ApiErrors."""
        source = self.pools if any(network.pool or network.addresses for network in wanted) else None
        pools = source.all() if source else {}
        named = {network.pool for network in wanted}
        return replace(
            found,
            attachments={
                network.attachment: self._attachment(namespace, network.attachment)
                for network in wanted
                if network.attachment is not None
            },
            pools=pools,
            given={name: source.parts(pool) for name, pool in pools.items() if source and name in named},
            of_host=source.of_host() if source else {},
        )

    def _pod(self, namespace: str, entry: Object) -> Object:
        try:
            pod = self.client.get(PODS, str(entry.get("name")), namespace=namespace)
        except NotFound:
            return {}
        return pod if objects.uid(pod) == entry.get("uid") else {}

    def _resource(self, network: Attachment) -> str:
        """The resource name of a network that Multus attaches; none where it does not exist, which is for
        Multus to say."""
        try:
            found = self.client.get(NETWORK_ATTACHMENTS, network.name, namespace=str(network.namespace))
        except NotFound:
            return ""
        return str(objects.annotations_of(found).get(RESOURCE_NAME) or "")

    def _attachment(self, namespace: str, wanted: Attachment) -> str:
        place = wanted.namespace or namespace
        try:
            found = self.client.get(NETWORK_ATTACHMENTS, wanted.name, namespace=place)
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


def multus_networks(annotations: Mapping[str, str], namespace: str) -> tuple[Attachment, ...]:
    """The first networks of a pod's annotation, in either of the forms that Multus reads: a list of objects
    as JSON, or `[namespace/]name[@interface]` separated by commas."""
    text = annotations.get(NETWORKS_ANNOTATION, "").strip()
    try:
        listed = json.loads(text) if text.startswith("[") else []
    except ValueError:
        return ()  # Multus refuses the pod
    found = [
        Attachment(str(entry["name"]), str(entry.get("namespace") or namespace))
        for entry in listed
        if isinstance(entry, Mapping) and entry.get("name")
    ]
    for item in () if text.startswith("[") else filter(None, map(str.strip, text.split(","))):
        place, _, name = item.partition("@")[0].rpartition("/")
        found.append(Attachment(name, place or namespace))
    return tuple(found[:MOST_NETWORKS])


MOST_NETWORKS: Final = 64
"""Of one pod. Each is read from the API, and a tenant writes what it likes."""
NETWORKS_ANNOTATION: Final = "k8s.v1.cni.cncf.io/networks"
RESOURCE_NAME: Final = "k8s.v1.cni.cncf.io/resourceName"


def _networks(claim: Object) -> tuple[RdmaNetwork, ...]:
    """Those that the claim and its classes ask for."""
    try:
        allocation = Allocation.of_claim(claim)
        entries = configuration(
            allocation.config if allocation else (), claim=objects.describe(claim)
        ).entries
    except InvalidInput:
        return ()  # prepare_decision reports it
    found = (
        entry.parameters.network
        for entry in entries
        if isinstance(entry.parameters, RdmaConfig) and entry.parameters.network
    )
    return tuple(dict.fromkeys(found))

"""A claim as the API has it: koordra's parameters in its allocation, by precedence, and its pods.

`status.allocation.devices.config` holds entries of the class and of the claim, each for some requests or for
all. If several entries of one kind cover a request, the last one in this order applies as a whole:

    class, all requests < class, naming the request < claim, all requests < claim, naming the request

but for isolation, whose policy is the operator's (koordra.api.opaque.isolation).

A JointAllocation covers several requests at a time; a Required one always holds, whatever else is there. A
GangMember is not a parameter of the claim: the controller writes it into the allocation of a gang's member.

The kubelet sends only the claim's name and uid; the rest is read from the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from koordra.api import names, objects
from koordra.api.allocation import FROM_CLASS, Allocation
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member
from koordra.api.opaque.isolation import AskedIsolation, asked_isolation
from koordra.api.opaque.parameters import (
    GpuConfig,
    Parameters,
    RdmaConfig,
    decode,
)
from koordra.api.opaque.rdma_network import Attachment
from koordra.errors import InvalidInput, NotFound, PrepareError
from koordra.kube import KubeClient

T = TypeVar("T", GpuConfig, RdmaConfig)


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry. Requests are named as in results: `gpu`, or `gpu/a100` for an alternative."""

    requests: tuple[str, ...]
    parameters: Parameters
    of_class: bool = False

    def covers(self, request: str) -> bool:
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True)
class Configuration:
    """The entries for this driver, weakest first. `member`: the place in a gang, where the controller has
    written one."""

    entries: tuple[Entry, ...] = ()
    member: GangMember | None = None

    def gpu(self, request: str) -> GpuConfig:
        return self._strongest(GpuConfig(), request)

    def rdma(self, request: str) -> RdmaConfig:
        return self._strongest(RdmaConfig(), request)

    def _strongest(self, default: T, request: str) -> T:
        found = [entry.parameters for entry in self._covering(request)]
        return next((each for each in reversed(found) if isinstance(each, type(default))), default)

    def isolation(self, request: str) -> AskedIsolation:
        found = list(self._covering(request))
        return asked_isolation(
            (entry.parameters for entry in found if entry.of_class),
            (entry.parameters for entry in found if not entry.of_class),
        )

    def _covering(self, request: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.covers(request))


def configuration(config: Iterable[Fields], *, claim: str) -> Configuration:
    """The configuration of an allocation; `claim` names it in errors. Raises InvalidParameters for an unknown
    kind or field."""
    found = []
    member: GangMember | None = None
    for index, raw in enumerate(config):
        opaque = raw.get("opaque") if isinstance(raw, Mapping) else None
        if not isinstance(opaque, Mapping) or opaque.get("driver") != names.DRIVER:
            continue
        field = f"status.allocation.devices.config[{index}].opaque.parameters"
        document = opaque.get("parameters")
        if isinstance(document, Mapping) and is_gang_member(document):
            member = decode_gang_member(document, object=claim, field=field)
            continue
        of_class = raw.get("source") == FROM_CLASS
        parameters = decode(document, object=claim, field=field, in_claim=not of_class)
        found.append(Entry(tuple(map(str, raw.get("requests") or ())), parameters, of_class))
    found.sort(key=lambda entry: (not entry.of_class, bool(entry.requests)))
    return Configuration(tuple(found), member)


NETWORK_ATTACHMENTS: Final = Kind(
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    "NetworkAttachmentDefinition",
)


@dataclass(frozen=True, slots=True)
class Consumers:
    """The pods that the claim is reserved for: their uids; `host_network` if all of them use the host's
    network, `own_users` if one has its own user namespace; and the CNI configurations of the attachments that
    the claim names, as JSON text."""

    pods: tuple[str, ...] = ()
    host_network: bool = False
    own_users: bool = False
    attachments: Mapping[Attachment, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Reads from the API server, not from a cache: the claim may have been written a moment ago."""

    client: KubeClient

    def get(self, namespace: str, name: str) -> Object:
        return self.client.get(RESOURCE_CLAIMS, name, namespace=namespace)

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
            pod = self.client.get(PODS, str(entry.get("name")), namespace=namespace)
        except NotFound:
            return {}
        return dict(objects.spec_of(pod)) if objects.uid(pod) == entry.get("uid") else {}

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

"""The node's part of an IMEX domain: domain.json, by which `koordra imex` runs the daemon (node_state/imex).

The node is in the domain that its claims name, from the first try to prepare one until the last is
unprepared: a Prepare that waits for the other nodes fails, and is repeated by the kubelet, while the daemon
that they wait for goes on. The checkpoint says it first, so that what was killed in between is put right at
the next start.

The controller says which nodes are in the domain, in a ConfigMap (controller/gangs/imex/members), and they
may change: a member that is replaced, a gang that grows. So it is read at every Prepare and every few
seconds. Addresses are the Nodes' own.

Prepare waits for the quorum: this node's daemon is READY, and has reached that of every node of the domain.
NCCL takes a domain that is not complete for an error, and no fall-back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from koordra.api import objects
from koordra.api.kinds import NODES
from koordra.api.objects import Object
from koordra.api.opaque.imex import ImexDomain, domain_of
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError, CheckpointError, NotFound, PrepareError
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, imex_domain
from koordra.logs import get_logger
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk, reported
from koordra.node_state.imex import (
    DomainNode,
    DomainStatus,
    ImexFolder,
    NodeDomain,
    decode_domain,
    decode_status,
    encode_domain,
)

log = get_logger(__name__)

ADDRESS_AGE: Final = 60.0
"""Seconds for which a Node's address is believed."""
IMEX_WAITS: Final = (1.0,) * 20
"""Pauses of one Prepare that waits for the other nodes of its domain, in seconds."""
MODE: Final = 0o600


class DomainNotReady(PrepareError):
    """The kubelet tries again, and so does Prepare itself for a while."""


_Read = TypeVar("_Read")
Nodes = tuple[DomainNode, ...]


class NoImex:
    """Of a node that is never in a domain."""

    def told(self, ref: ClaimRef, claim: Object) -> Nodes:
        """The nodes of the domain of the claim's channels; none where it has no channels. Raises
        PrepareError."""
        return ()

    def join(
        self,
        checkpoint: Checkpoint,
        record: ClaimRecord,
        nodes: Nodes,
        *,
        save: Callable[[Checkpoint], None],
    ) -> Checkpoint:
        """The node is in the domain of the claim's channels, if it has any, and the domain is complete: the
        checkpoint that says so. Raises DomainNotReady, after which the node is in it all the same;
        CheckpointError."""
        if record.imex is not None:
            raise PrepareError(f"{record.ref}: NodeUnsuitable: the plugin was started without --imex")
        return checkpoint

    def enter(self, domain: ImexDomain, nodes: Nodes) -> None:
        """The node is in this domain, with these. Raises CheckpointError."""

    def settle(self, claims: Iterable[ClaimRecord]) -> ImexDomain | None:
        """Leave the domain that no claim names any more; the one that the node is in. Raises
        CheckpointError."""
        return None


NO_IMEX: Final = NoImex()


class ImexMembership(NoImex):
    """Of one node. `folder` is shared with `koordra imex`. The caller holds the state lock around `enter` and
    `settle`. `namespace`: koordra's."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        namespace: str,
        folder: ImexFolder,
        disk: Disk,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node = node
        self._namespace = namespace
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._addresses: dict[str, tuple[str, float]] = {}

    def told(self, ref: ClaimRef, claim: Object) -> Nodes:
        domain = domain_of(objects.status_of(claim).get("allocation"))
        try:
            return self.nodes_of(domain) if domain is not None else ()
        except DomainNotReady as error:
            raise DomainNotReady(f"{ref}: {error}") from error
        except ApiError as error:
            raise PrepareError(f"{ref}: the nodes of its IMEX domain cannot be read: {error}") from error

    def join(
        self,
        checkpoint: Checkpoint,
        record: ClaimRecord,
        nodes: Nodes,
        *,
        save: Callable[[Checkpoint], None],
    ) -> Checkpoint:
        if record.imex is None:
            return checkpoint
        known = checkpoint.get(record.ref.uid)
        if known is None or known.imex != record.imex:
            checkpoint = checkpoint.with_claim(record.rolled_back())
            save(checkpoint)
        self.enter(record.imex, nodes)
        if why := waits_for(self._status(), record.imex, nodes):
            raise DomainNotReady(f"{record.ref}: ImexDomainNotReady: domain of {record.imex.domain}: {why}")
        return checkpoint

    def nodes_of(self, domain: ImexDomain) -> Nodes:
        """As the controller says, this node among them. Raises DomainNotReady until it does, ApiErrors."""
        try:
            found = self._client.get(CONFIG_MAPS, domain.object_name, namespace=self._namespace)
        except NotFound:
            found = {}
        data = found.get("data") or {}
        numbers = {node: int(key) for key, node in data.items() if key.isascii() and key.isdecimal()}
        if self._node not in numbers:
            raise DomainNotReady(
                f"ImexDomainNotReady: the controller has not said yet that node {self._node} is in the domain of {domain.domain} "
                f"(ConfigMap {self._namespace}/{domain.object_name})"
            )
        return tuple(
            DomainNode(number, node, address)
            for node, number in sorted(numbers.items(), key=lambda each: each[1])
            if (address := self._address(node))
        )

    def _address(self, node: str) -> str:
        """Empty for a node that is gone."""
        known = self._addresses.get(node)
        if known is not None and self._clock() < known[1]:
            return known[0]
        try:
            address = internal_ip(self._client.get(NODES, node))
        except NotFound:
            address = ""
        self._addresses[node] = address, self._clock() + ADDRESS_AGE
        return address

    def enter(self, domain: ImexDomain, nodes: Nodes) -> None:
        own = next((node.number for node in nodes if node.name == self._node), -1)
        wanted = NodeDomain(domain.domain, domain.clique, own, nodes)
        if self._read() != wanted:
            path = self._folder.domain
            with reported(CheckpointError, path, "written"):
                self._disk.replace(path, encode_domain(wanted), mode=MODE)
            log.info("imex_domain_entered", domain=domain.domain, nodes=[node.name for node in nodes])

    def settle(self, claims: Iterable[ClaimRecord]) -> ImexDomain | None:
        there, claims = self._read(), list(claims)
        wanted = imex_domain(claims)
        if wanted is None and there is not None and any(claim.in_unknown_domain for claim in claims):
            wanted = there.of
        if there is None or there.of != wanted:
            path = self._folder.domain
            with reported(CheckpointError, path, "removed"):
                if self._disk.remove(path):
                    log.info("imex_domain_left", domain=there.domain if there else "")
        return wanted

    def _read(self) -> NodeDomain | None:
        return self._read_as(self._folder.domain, decode_domain)

    def _status(self) -> DomainStatus | None:
        return self._read_as(self._folder.status, decode_status)

    def _read_as(self, path: Path, decode: Callable[[bytes], _Read]) -> _Read | None:
        """None where it is not there, or is not what it should be."""
        with reported(CheckpointError, path, "read"):
            data = self._disk.read(path)
        try:
            return decode(data) if data is not None else None
        except ValueError:
            return None


def waits_for(status: DomainStatus | None, domain: ImexDomain, nodes: Nodes) -> str:
    """Why the domain is not complete, as seen from this node; empty where it is."""
    if status is None or status.of != domain:
        return "koordra imex has not started the daemon yet"
    if not status.ready:
        return status.detail
    missing = [f"{node.name} ({node.address})" for node in nodes if node.number not in status.reached]
    return f"the daemon waits for {', '.join(missing)}" if missing else ""


def internal_ip(node: Object) -> str:
    addresses = objects.status_of(node).get("addresses") or ()
    return next((str(one.get("address")) for one in addresses if one.get("type") == "InternalIP"), "")

"""This node's part of each network of the pools, which no other node has.

The parts are entries of one ConfigMap, `koordra-node-parts` beside the plugin:

    data: {10.10.0.0-26: node-a, 10.10.0.64-26: node-b, fd00_1__-64: node-a}       part -> node

A node without a part of a network takes the first that is free, in a write that holds only for the version it
has read: of two nodes that take the same, one is refused by the API server and reads again. Since an entry
says which addresses it is about, a pool may be renamed, cut anew (`perNode`), made smaller or larger, or
split, while it is in use: what a node has stays its own until the entry is removed, and nobody takes a part
that overlaps it. Those of nodes that are gone are the operator's to remove, who alone knows that nothing uses
their addresses any more. The admission policy `koordra-node-parts` lets a node's plugin add entries of its
own name, and nothing else.

If entries are lost, with the ConfigMap's namespace, say, a node takes the parts again of which its pods have
addresses (PartsInUse, when the plugin starts and every ten minutes), and gives none if another node was
first.

A ConfigMap is at most 1 MiB, which is some 25,000 parts (3,000 nodes with eight networks).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from koordra.api import objects
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import Conflict, InvalidInput, NotFound, PrepareError
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.network.address_pools import (
    Network,
    NodePool,
    Pool,
    free_part,
    int_of,
    read_pools,
    within,
)
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

NAME: Final = "koordra-node-parts"
_ATTEMPTS: Final = 16
LOOK_EVERY: Final = 600.0
"""Seconds. Each look is a request of each node."""

log = get_logger(__name__)


class NodeParts:
    """Of one node; `namespace` is where the ConfigMap is; `in_use`: the addresses that claims have here,
    without prefix length."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        namespace: str,
        in_use: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._client = client
        self._node = node
        self._namespace = namespace
        self._in_use = in_use

    def of(self, pool: Pool) -> NodePool:
        """Raises PrepareError where no part of a network is free, ApiErrors."""
        for _ in range(_ATTEMPTS):
            try:
                found = self._client.get(CONFIG_MAPS, NAME, namespace=self._namespace)
            except NotFound as error:
                raise PrepareError(
                    f"ConfigMap {self._namespace}/{NAME} does not exist; add the component deploy/kustomize/pod-network"
                ) from error
            parts, new = self._parts(pool, _taken(found.get("data") or {}))
            if new:
                body = {
                    "metadata": {"resourceVersion": objects.resource_version(found)},
                    "data": {_key(part): self._node for part in new},
                }
                try:
                    self._client.patch(CONFIG_MAPS, NAME, body, namespace=self._namespace)
                except Conflict:
                    continue  # another node was first
                log.info("node_parts_taken", pool=pool.name, parts=[str(part) for part in new])
            return NodePool(pool, parts)
        raise PrepareError(f"ConfigMap {self._namespace}/{NAME} is written too often; the call is repeated")

    def _parts(self, pool: Pool, taken: dict[Network, str]) -> tuple[tuple[Network, ...], list[Network]]:
        """This node's part of each network, and those of them that it has to take."""
        parts: list[Network] = []
        new: list[Network] = []
        for network in pool.networks:
            own = [part for part, node in taken.items() if node == self._node and within(part, network.cidr)]
            part = min(own, key=int_of, default=None) or self._lost(network.cidr, pool, taken)
            part = part or free_part(network, pool.per_node, taken=taken)
            if part is None:
                nodes = sum(within(each, network.cidr) for each in taken)
                raise PrepareError(
                    f"PoolExhausted: no part of /{pool.per_node} of {network.cidr} of pool {pool.name} is free, {nodes} nodes have "
                    f"one; remove the entries of nodes that are gone from ConfigMap {self._namespace}/{NAME}, make perNode a "
                    "longer prefix, or the network larger"
                )
            parts.append(part)
            new += [] if own else [part]
        return tuple(parts), new

    def _lost(self, network: Network, pool: Pool, taken: Mapping[Network, str]) -> Network | None:
        """The part that was this node's, by the addresses that its claims have; None if they have none.
        Raises PrepareError where it is another node's by now."""
        used = [address for address in map(ipaddress.ip_address, self._in_use()) if address in network]
        if not used:
            return None
        part = ipaddress.ip_network((min(used, key=int), pool.per_node), strict=False)
        for other, node in taken.items():
            if other.version == part.version and other.overlaps(part):
                raise PrepareError(
                    f"the entry of this node in ConfigMap {self._namespace}/{NAME} was lost, and node {node} has {other} since, "
                    f"which has {used[0]} of a pod here: end the pods with addresses of it on one of both nodes"
                )
        return part


class PartsInUse(Wakeable):
    """Takes the parts again of which claims have addresses."""

    failed = "node_parts_not_kept"
    longest = LOOK_EVERY

    def __init__(self, pools: NetworkPools, in_use: Callable[[], Collection[str]]) -> None:
        super().__init__()
        self._pools = pools
        self._in_use = in_use

    def step(self) -> Pause:
        """Raises PrepareError, CheckpointError, ApiErrors."""
        used = [ipaddress.ip_address(address) for address in self._in_use()]
        for pool in self._pools.all().values() if used else ():
            if any(address in network.cidr for address in used for network in pool.networks):
                self._pools.parts(pool)
        return Pause(0.0, LOOK_EVERY)


def _key(part: Network) -> str:
    """As a key of a ConfigMap may be."""
    return str(part).replace("/", "-").replace(":", "_")


def _taken(data: Mapping[str, str]) -> dict[Network, str]:
    found: dict[Network, str] = {}
    for key, node in data.items():
        address, _, length = key.replace("_", ":").rpartition("-")
        try:
            found[ipaddress.ip_network(f"{address}/{length}")] = node
        except ValueError:
            log.warning("node_part_unreadable", key=key)
    return found


class NetworkPools:
    """The operator's pools: `file` is read anew each time, since a ConfigMap's file changes in place.
    `of_host` gives the host's own addresses, without their lengths, and the interfaces that have them."""

    def __init__(
        self,
        file: Path | None,
        parts: Callable[[Pool], NodePool],
        *,
        of_host: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._file = file
        self.parts = parts
        self.of_host = of_host

    def all(self) -> Mapping[str, Pool]:
        """None where there is no file. Raises PrepareError for one that cannot be used."""
        try:
            text = self._file.read_text(encoding="utf-8") if self._file else None
            return read_pools(text, source=str(self._file)) if text is not None else {}
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, InvalidInput) as error:
            raise PrepareError(f"the pools of addresses cannot be read: {error}") from error

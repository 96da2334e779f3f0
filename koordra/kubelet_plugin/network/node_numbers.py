"""This node's number in each pool of addresses, which no other node has.

The numbers are entries of one ConfigMap, `koordra-node-numbers` beside the plugin:

    data: {rails.0: node-a, rails.1: node-b}       pool and number -> node

A node without one takes the lowest that is free, in a write that holds only for the version it has read: of
two nodes that take the same, one is refused by the API server and reads again. A number is kept for good, by
a node that is replaced under its name, too; those of nodes that are gone are the operator's to remove, who
alone knows that nothing uses their addresses any more. The admission policy `koordra-node-numbers` lets a
node's plugin add entries of its own name, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from koordra.api import objects
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import Conflict, InvalidInput, NotFound, PrepareError
from koordra.kube import KubeClient
from koordra.kubelet_plugin.network.address_pools import NodePool, Pool, read_pools
from koordra.logs import get_logger

NAME: Final = "koordra-node-numbers"
_ATTEMPTS: Final = 16

log = get_logger(__name__)


class NodeNumbers:
    """Of one node; `namespace` is where the ConfigMap is."""

    def __init__(self, client: KubeClient, *, node: str, namespace: str) -> None:
        self._client = client
        self._node = node
        self._namespace = namespace

    def number(self, pool: Pool) -> int:
        """Raises PrepareError where every number is taken, ApiErrors."""
        for _ in range(_ATTEMPTS):
            try:
                found = self._client.get(CONFIG_MAPS, NAME, namespace=self._namespace)
            except NotFound as error:
                raise PrepareError(
                    f"ConfigMap {self._namespace}/{NAME} does not exist; apply deploy/kustomize/kubelet-plugin-pod-network"
                ) from error
            taken = _numbers(found.get("data") or {}, pool.name)
            own = [number for number, node in taken.items() if node == self._node]
            if own and min(own) < pool.parts:
                return min(own)
            free = next((number for number in range(pool.parts) if number not in taken), None)
            if free is None:
                raise PrepareError(
                    f"PoolExhausted: pool {pool.name} has {pool.parts} parts of /{pool.per_node}, and {len(taken)} nodes have "
                    f"one; remove the entries of nodes that are gone from ConfigMap {self._namespace}/{NAME}, or make "
                    "perNode a longer prefix on an empty cluster"
                )
            version = objects.resource_version(found)
            body = {"metadata": {"resourceVersion": version}, "data": {f"{pool.name}.{free}": self._node}}
            try:
                self._client.patch(CONFIG_MAPS, NAME, body, namespace=self._namespace)
            except Conflict:
                continue  # another node was first
            log.info("node_number_taken", pool=pool.name, number=free)
            return free
        raise PrepareError(f"ConfigMap {self._namespace}/{NAME} is written too often; the call is repeated")


def _numbers(data: Mapping[str, str], pool: str) -> dict[int, str]:
    found = {}
    for key, node in data.items():
        name, _, number = key.rpartition(".")
        if name == pool and number.isascii() and number.isdigit():
            found[int(number)] = node
    return found


class NetworkPools:
    """The operator's pools: `file` is read anew each time, since a ConfigMap's file changes in place."""

    def __init__(self, file: Path | None, number: Callable[[Pool], int]) -> None:
        self._file = file
        self._number = number

    def all(self) -> Mapping[str, Pool]:
        """None where there is no file. Raises PrepareError for one that cannot be used."""
        try:
            text = self._file.read_text(encoding="utf-8") if self._file else None
            return read_pools(text, source=str(self._file)) if text is not None else {}
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, InvalidInput) as error:
            raise PrepareError(f"the pools of addresses cannot be read: {error}") from error

    def of_node(self, pool: Pool) -> NodePool:
        return NodePool(pool, self._number(pool))

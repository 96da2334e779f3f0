"""How a process on a node asks for the end of pods there. It may evict nobody itself: with the right to, one
stolen node could end every pod of the cluster.

    node         writes which pods should go, under its own name, into a ConfigMap of its process's
                     data: {node-a: '[{"namespace": "n", "name": "p", "uid": "u", "reason": "OverLimit"}]'}
    API server   lets it write its own entry only (the policies beside the ConfigMaps; its token says which
                 node it is on)
    controller   evicts those that are on that node (controller/reconcile/node_evictions.py)

An entry says which pods should go now, not what happened: a request whose reason is over is withdrawn, and
one that nobody served, since the controller was away or a disruption budget said no, stays. A process begins
by withdrawing what the one before it has left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

OF_PLUGIN: Final = "koordra-kubelet-plugin-evictions"
OF_HOOK: Final = "koordra-nri-evictions"
COMPONENTS: Final = {OF_PLUGIN: "kubelet-plugin-evict", OF_HOOK: "nri/evict"}
"""ConfigMap -> the component below deploy/kustomize that brings it."""
MOST: Final = 10
"""Requests of one node that stand at a time; the others follow."""
LONGEST_ENTRY: Final = 8192
"""Characters; the policies have the same number. A ConfigMap is at most 1 MiB."""
_LONGEST: Final = {"namespace": 63, "name": 253, "uid": 64, "reason": 64}


@dataclass(frozen=True, slots=True)
class EvictionRequest:
    namespace: str
    name: str
    uid: str
    reason: str

    @property
    def pod(self) -> str:
        return f"{self.namespace}/{self.name}"


def encode(requests: Iterable[EvictionRequest]) -> str:
    return json.dumps([asdict(one) for one in requests], separators=(",", ":"))


def decode(entry: str) -> tuple[EvictionRequest, ...]:
    """The requests of a node. Raises ValueError for what no node writes."""
    try:
        found = json.loads(entry) if len(entry) <= LONGEST_ENTRY else None
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, list) or len(found) > MOST:
        raise ValueError(f"not a list of at most {MOST} requests")
    return tuple(map(_decoded, found))


def _decoded(one: object) -> EvictionRequest:
    if not isinstance(one, Mapping) or one.keys() != _LONGEST.keys():
        raise ValueError(f"a request has {', '.join(_LONGEST)}")
    for field, longest in _LONGEST.items():
        if not isinstance(one[field], str) or not 0 < len(one[field]) <= longest:
            raise ValueError(f"{field} is no text of 1 to {longest} characters")
    return EvictionRequest(**one)


class EvictionRequests:
    """Those of one process of a node; `name` is its ConfigMap, in koordra's `namespace`."""

    def __init__(self, client: KubeClient, name: str, *, node: str, namespace: str) -> None:
        self._client = client
        self._name = name
        self._node = node
        self._namespace = namespace
        self._asked: tuple[EvictionRequest, ...] | None = None

    def want(self, requests: Iterable[EvictionRequest]) -> None:
        """These pods should go, and no others. Those asked for already come first. Raises ApiError."""
        wanted = dict.fromkeys(requests)
        before = self._asked or ()
        asked = tuple(
            [*filter(wanted.__contains__, before), *(one for one in wanted if one not in before)][:MOST]
        )
        if asked == self._asked:
            return
        body = {"data": {self._node: encode(asked) if asked else None}}
        try:
            self._client.patch(CONFIG_MAPS, self._name, body, namespace=self._namespace)
        except NotFound as error:
            raise ApiError(
                f"ConfigMap {self._namespace}/{self._name} does not exist, so no eviction can be asked for; "
                f"add the component deploy/kustomize/{COMPONENTS[self._name]}"
            ) from error
        for one in asked:
            if one not in before:
                log.warning("eviction_requested", pod=one.pod, reason=one.reason)
        self._asked = asked

"""Pods by the node that they take room of, and what they ask for there together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from koordra.allocator.predicates import requests_of
from koordra.api import objects

Manifest = Mapping[str, Any]
Load = dict[str, Decimal]
"""Amounts by resource."""


@dataclass(slots=True, eq=False)
class PlacedPod:
    """`node` is empty while nobody knows where the pod goes; then `claims` are those that decide it."""

    pod: Manifest
    node: str
    requests: Load
    claims: tuple[str, ...]


class NodePods:
    def __init__(self) -> None:
        self.placed: dict[str, PlacedPod] = {}
        self.load: dict[str, Load] = {}
        self.of_claim: dict[str, set[str]] = {}
        """Of claims that decide where pods go: those pods."""
        self._on_node: dict[str, dict[str, PlacedPod]] = {}

    def put(self, key: str, placed: PlacedPod | None) -> None:
        """The pod is there now, or gone."""
        before = self.placed.pop(key, None)
        if before is not None:
            for claim in before.claims:
                self.of_claim[claim].discard(key)
                if not self.of_claim[claim]:
                    del self.of_claim[claim]
            if before.node:
                here = self._on_node[before.node]
                del here[key]
                # Summed anew: amounts beyond the digits of a Decimal do not come back by subtraction.
                self.load[before.node] = _sum(one.requests for one in here.values())
                if not here:
                    del self._on_node[before.node], self.load[before.node]
        if placed is not None:
            self.placed[key] = placed
            for claim in placed.claims:
                self.of_claim.setdefault(claim, set()).add(key)
            if placed.node:
                self._on_node.setdefault(placed.node, {})[key] = placed
                self.load[placed.node] = _sum((self.load.get(placed.node, {}), placed.requests))

    def requests_of(self, pod: Manifest) -> Load:
        """What the pod takes of a node; read once for each version of a pod."""
        known = self.placed.get(objects.key(pod))
        return known.requests if known is not None and known.pod is pod else requests_of(pod)

    def on(self, node: str) -> tuple[Any, ...]:
        """The pods that take room on the node."""
        return tuple([one.pod for one in self._on_node.get(node, {}).values()])

    def load_without(self, node: str, without: frozenset[str]) -> Load:
        """What the node's pods ask for together, as if these (by uid) were gone."""
        left = [
            one for one in self._on_node.get(node, {}).values() if objects.identity(one.pod) not in without
        ]
        return _sum(one.requests for one in left)


def _sum(many: Iterable[Mapping[str, Decimal]]) -> Load:
    total: Load = {}
    for requests in many:
        for name, amount in requests.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total

"""What pods ask for of the nodes that they are on, or that their claims bring them to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import NamedTuple

from koordra.allocator.predicates import REQUIRED, requests_of, total_of
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.objects import Fields
from koordra.api.tables import KeySets, set_or_drop
from koordra.placement.request.claim_groups import claim_keys

Load = dict[str, Decimal]
"""Amounts by resource."""


class PlacedPod(NamedTuple):
    """`node` is empty while nobody knows where the pod goes; then `claims` are those that decide it."""

    pod: Fields
    node: str
    requests: Load
    claims: tuple[str, ...]


OnPut = Callable[[str, PlacedPod | None, PlacedPod | None], None]
"""(key, before, now)."""


def _keeps_others_away(pod: Fields) -> bool:
    affinity = objects.spec_of(pod).get("affinity")
    terms = affinity.get("podAntiAffinity") if isinstance(affinity, Mapping) else None
    return isinstance(terms, Mapping) and bool(terms.get(REQUIRED))


def _place_of(placed: PlacedPod | None) -> tuple[str, str] | None:
    return None if placed is None else (objects.identity(placed.pod), placed.node)


class NodePods:
    def __init__(self) -> None:
        self.placed: dict[str, PlacedPod] = {}
        self.load: dict[str, Load] = {}
        self.of_claim = KeySets()
        """Of claims that decide where pods go: those pods."""
        self.repelling: dict[str, PlacedPod] = {}
        """Pods on nodes, with required anti-affinity of their own."""
        self.repelling_version = 0
        """Goes up when other pods are there, or elsewhere."""
        self.room_version = 0
        """Goes up when a pod is no longer on its node, or asks for something else there: others may fit."""
        self.on_put: list[OnPut] = []
        self._on_node: dict[str, dict[str, PlacedPod]] = {}

    def put(self, key: str, placed: PlacedPod | None) -> None:
        """The pod is there now, or gone."""
        before = self.placed.pop(key, None)
        if before is not None and before.node:
            here = self._on_node[before.node]
            del here[key]
            # Summed anew: amounts beyond the digits of a Decimal do not come back by subtraction.
            set_or_drop(self.load, before.node, total_of(one.requests for one in here.values()))
            set_or_drop(self._on_node, before.node, here)
            now = None if placed is None else (placed.node, placed.requests)
            self.room_version += now != (before.node, before.requests)
        self.of_claim.move(key, before.claims if before else (), placed.claims if placed else ())
        repels = placed if placed is not None and placed.node and _keeps_others_away(placed.pod) else None
        self.repelling_version += _place_of(self.repelling.get(key)) != _place_of(repels)
        set_or_drop(self.repelling, key, repels)
        if placed is not None:
            self.placed[key] = placed
            if placed.node:
                self._on_node.setdefault(placed.node, {})[key] = placed
                self.load[placed.node] = total_of((self.load.get(placed.node, {}), placed.requests))
        for on_put in self.on_put:
            on_put(key, before, placed)

    def read(self, pod: Fields | None, allocation: Callable[[str], Allocation | None]) -> PlacedPod | None:
        """Where the pod is, or its claims will bring it; None for one that takes nothing. `allocation`: what
        the claim of this key has."""
        if pod is None or objects.pod_is_finished(pod):
            return None
        node = str(objects.spec_of(pod).get("nodeName") or "")
        claims = () if node else tuple(claim_keys(pod))
        if claims:
            said = filter(None, map(allocation, claims))
            node = next((one.node for one in said if one.node), "")
        return PlacedPod(pod, node, self.requests_of(pod), claims)

    def requests_of(self, pod: Fields) -> Load:
        """What the pod takes of a node; read once for each version of a pod."""
        known = self.placed.get(objects.key(pod))
        return known.requests if known is not None and known.pod is pod else requests_of(pod)

    def load_without(self, node: str, without: frozenset[str]) -> Load:
        """What the node's pods ask for together, as if these (by uid) were gone."""
        here = self._on_node.get(node, {}).values()
        return total_of(one.requests for one in here if objects.identity(one.pod) not in without)

"""Who uses what: claims with an allocation the devices of pools, pods the CPU, memory and the like of
nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from koordra.allocator.devices.inventory import PoolID, Usage
from koordra.allocator.predicates import REQUIRED, requests_of, total_of
from koordra.api import objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields
from koordra.api.tables import KeySets, set_or_drop
from koordra.errors import InvalidManifest, PlanError

Load = dict[str, Decimal]
"""Amounts by resource."""


@dataclass(slots=True, eq=False)
class AllocatedClaim:
    """A claim with an allocation. `seen`: the version of the claim it was decided from, while it is assumed.
    `unread`: why the allocation cannot be read."""

    claim: Fields
    allocation: Allocation
    seen: Fields | None = None
    unread: str = ""
    by_pool: dict[PoolID, list[DeviceResult]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for result in self.allocation.results:
            self.by_pool.setdefault(result.device[:2], []).append(result)


class Allocations:
    """`lenient`: an allocation that cannot be read holds whatever devices it names, instead of an error."""

    def __init__(self, *, lenient: bool) -> None:
        self.taken = Usage()
        self.allocated: dict[str, AllocatedClaim] = {}
        self._of_pool: dict[PoolID, dict[str, list[DeviceResult]]] = {}
        self._unread: dict[str, str] = {}
        self._lenient = lenient

    def read(self, key: str, claim: Fields) -> AllocatedClaim | None:
        """What the claim holds by its object. Raises PlanError for an allocation that cannot be read."""
        raw = objects.status_of(claim).get("allocation")
        if raw is None:
            return None
        known = self.allocated.get(key)
        if known is not None and known.seen is None and not known.unread:
            before = objects.status_of(known.claim).get("allocation")
            if before is raw or before == raw:
                return AllocatedClaim(claim, known.allocation)
        try:
            allocation = Allocation.of_claim(claim)
        except InvalidManifest as error:
            if not self._lenient:
                raise PlanError(str(error)) from error
            return AllocatedClaim(claim, _of_devices_named(raw), unread=str(error))
        assert allocation is not None
        return AllocatedClaim(claim, allocation)

    def put(self, key: str, allocated: AllocatedClaim | None) -> list[PoolID]:
        """The claim has this allocation now, or none. Returns the pools of which that changes something."""
        before = self.allocated.pop(key, None)
        self._unread.pop(key, None)
        if allocated is not None:
            self.allocated[key] = allocated
            if allocated.unread:
                self._unread[key] = allocated.unread
        old = {} if before is None else before.by_pool
        new = {} if allocated is None else allocated.by_pool
        if before is not None and allocated is not None and old == new:
            return [] if before.unread == allocated.unread else [*new]
        for pool in old:
            # Summed anew: amounts beyond the digits of a Decimal do not come back by subtraction.
            of_pool = self._of_pool[pool]
            del of_pool[key]
            self.taken.of_pool.pop(pool, None)
            set_or_drop(self._of_pool, pool, of_pool)
            for other in sorted(of_pool):
                self.taken.add(of_pool[other], holder=other)
        for pool, results in new.items():
            self._of_pool.setdefault(pool, {})[key] = results
            self.taken.add(results, holder=key)
        return [*old, *new]

    def on(self, pools: Iterable[PoolID]) -> dict[str, AllocatedClaim]:
        """The claims with devices of these pools, by key."""
        return {key: self.allocated[key] for pool in pools for key in self._of_pool.get(pool, ())}

    def unread(self, pools: Iterable[PoolID]) -> str:
        """Why an allocation of these pools cannot be read, empty where all can."""
        keys = self._unread.keys() & self.on(pools).keys() if self._unread else ()
        return self._unread[min(keys)] if keys else ""

    def taken_without(self, pools: Iterable[PoolID], without: frozenset[str]) -> Usage:
        """What is in use of these pools, as if these claims (by uid) were gone."""
        found = Usage()
        for pool in pools:
            for key, results in sorted(self._of_pool.get(pool, {}).items()):
                if objects.identity(self.allocated[key].claim) not in without:
                    found.add(results, holder=key)
        return found


def _of_devices_named(raw: Any) -> Allocation:
    """What is left of an allocation that cannot be read: whatever devices it names are in use."""
    devices = raw.get("devices") if isinstance(raw, Mapping) else None
    results = devices.get("results") if isinstance(devices, Mapping) else None
    return Allocation(
        tuple(
            DeviceResult("", DeviceID(str(one.get("driver")), str(one.get("pool")), str(one.get("device"))))
            for one in results or ()
            if isinstance(one, Mapping)
        )
    )


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

    def requests_of(self, pod: Fields) -> Load:
        """What the pod takes of a node; read once for each version of a pod."""
        known = self.placed.get(objects.key(pod))
        return known.requests if known is not None and known.pod is pod else requests_of(pod)

    def load_without(self, node: str, without: frozenset[str]) -> Load:
        """What the node's pods ask for together, as if these (by uid) were gone."""
        here = self._on_node.get(node, {}).values()
        return total_of(one.requests for one in here if objects.identity(one.pod) not in without)

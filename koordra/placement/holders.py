"""Who uses what: claims with an allocation the devices of pools, pods the CPU, memory and the like of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from koordra.allocator.devices.inventory import PoolID, Usage
from koordra.allocator.predicates import requests_of
from koordra.api import objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.devices import DeviceID
from koordra.errors import InvalidManifest, PlanError

Manifest = Mapping[str, Any]
Load = dict[str, Decimal]
"""Amounts by resource."""


@dataclass(slots=True, eq=False)
class AllocatedClaim:
    """A claim with an allocation. `seen`: the version of the claim it was decided from, while it is assumed. `unread`: why the
    allocation cannot be read."""

    claim: Manifest
    allocation: Allocation
    seen: Manifest | None = None
    unread: str = ""
    by_pool: dict[PoolID, list[DeviceResult]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for result in self.allocation.results:
            self.by_pool.setdefault((result.device.driver, result.device.pool), []).append(result)


class Allocations:
    """`lenient`: an allocation that cannot be read holds whatever devices it names, instead of an error."""

    def __init__(self, *, lenient: bool) -> None:
        self.taken = Usage()
        self.allocated: dict[str, AllocatedClaim] = {}
        self._of_pool: dict[PoolID, dict[str, list[DeviceResult]]] = {}
        self._unread: dict[str, str] = {}
        self._lenient = lenient

    def read(self, key: str, claim: Manifest) -> AllocatedClaim | None:
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
        if before is not None and allocated is not None and before.by_pool == allocated.by_pool:
            return [] if before.unread == allocated.unread else [*allocated.by_pool]
        for pool in before.by_pool if before is not None else ():
            # Summed anew: amounts beyond the digits of a Decimal do not come back by subtraction.
            of_pool = self._of_pool[pool]
            del of_pool[key]
            self.taken.clear(pool)
            if not of_pool:
                del self._of_pool[pool]
            for other in sorted(of_pool):
                self.taken.add(of_pool[other], holder=other)
        for pool, results in allocated.by_pool.items() if allocated is not None else ():
            self._of_pool.setdefault(pool, {})[key] = results
            self.taken.add(results, holder=key)
        return [
            *(before.by_pool if before is not None else ()),
            *(allocated.by_pool if allocated is not None else ()),
        ]

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


def pinned_node(allocation: Allocation) -> str:
    """The one node that an allocation names, empty where it names none."""
    for term in (allocation.node_selector or {}).get("nodeSelectorTerms") or ():
        for entry in term.get("matchFields") or ():
            if entry.get("key") == "metadata.name" and len(entry.get("values") or ()) == 1:
                return str(entry["values"][0])
    return ""


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

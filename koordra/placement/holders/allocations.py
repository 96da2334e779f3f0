"""Which devices claims hold, by pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.devices.inventory import PoolID, Usage
from koordra.api import objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields
from koordra.api.tables import set_or_drop
from koordra.errors import InvalidManifest, PlanError


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

    @property
    def namespace(self) -> str:
        return objects.namespace(self.claim)


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
                self.taken.add(of_pool[other], holder=other, namespace=self.allocated[other].namespace)
        for pool, results in new.items():
            self._of_pool.setdefault(pool, {})[key] = results
            self.taken.add(results, holder=key, namespace=self.allocated[key].namespace)
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
                claim = self.allocated[key]
                if objects.identity(claim.claim) not in without:
                    found.add(results, holder=key, namespace=claim.namespace)
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

"""Claims by what is to be done about them without asking which pod they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_claims import is_living
from koordra.controller.cache.pod_index import PodEntry, PodIndex


@dataclass
class ClaimIndex:
    """Sets of claim keys. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = ("held", "immediate", "_owned", "_living", "_suspects", "_orphans")

    claim_table: Mapping[str, Object]
    pod_index: PodIndex
    held: set[str] = field(default_factory=set)
    """Claims with devices of koordra's."""
    immediate: set[str] = field(default_factory=set)
    """Claims that want their devices without a pod, and have none."""
    _owned: dict[str, set[str]] = field(default_factory=dict)
    _living: set[str] = field(default_factory=set)
    _suspects: set[str] = field(default_factory=set)
    """Held claims that were never reserved; whether a pod can use them changes with the pods."""
    _orphans: set[str] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def orphans(self) -> list[Object]:
        """Allocated claims of koordra's that were never reserved and that no living pod can use or owns.

        kube-controller-manager leaves those alone. Claims that are being deleted are its business, as are those
        it still has to free after their last pod; Immediate claims are allocated without a pod. A pod one of whose
        claims was deleted cannot run, so it keeps no devices either until that claim is there again.
        """
        self.settle()
        return [self.claim_table[key] for key in sorted(self._orphans)]

    def on_claim(self, key: str, before: Object | None, now: Object | None) -> None:
        for uid in claims_of.owner_uids(before) if before is not None else ():
            self._owned.get(uid, set()).discard(key)
            if not self._owned.get(uid):
                self._owned.pop(uid, None)
        for uid in claims_of.owner_uids(now) if now is not None else ():
            self._owned.setdefault(uid, set()).add(key)
        is_held = now is not None and claims_of.holds_koordra_devices(now)
        _put(self.held, key, is_held)
        waits = now is not None and not claims_of.is_allocated(now) and not objects.is_deleting(now)
        _put(self.immediate, key, now is not None and waits and claims_of.is_immediate(now))
        _put(self._suspects, key, now is not None and is_held and _is_suspect(now))
        self._stale.add(key)

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        """Owners count whether they name the claim or not."""
        for pod in (before, now):
            if pod is not None:
                uid = objects.uid(pod)
                _put(self._living, uid, pod is now and is_living(pod))
                self._stale |= self._owned.get(uid, set())

    def on_pod_touched(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        for entry in (before, now):
            self._stale.update(entry.keys if entry is not None else ())
        self._stale |= self._owned.get(uid, set())

    def settle(self) -> None:
        """Judge the claims that changes have touched."""
        stale, self._stale = self._stale, set()
        for key in stale:
            _put(self._orphans, key, key in self._suspects and self._is_orphan(self.claim_table[key]))

    def _is_orphan(self, claim: Object) -> bool:
        if self.pod_index.usable(claim):
            return False
        owners = self._living.intersection(claims_of.owner_uids(claim))
        return not owners - self.pod_index.lacking


def _is_suspect(claim: Object) -> bool:
    return not (claims_of.reserved_for(claim) or objects.is_deleting(claim) or claims_of.is_immediate(claim))


def _put(keys: set[str], key: str, belongs: bool) -> None:
    if belongs:
        keys.add(key)
    else:
        keys.discard(key)

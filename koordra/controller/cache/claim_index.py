"""Claims, read once a version, by what is to be done about them without asking which pod they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import KeySets, keep_if
from koordra.controller.cache.pod_index import PodEntry, PodIndex, is_living
from koordra.controller.claims import ClaimEntry, is_immediate

OnClaim = Callable[[str, ClaimEntry | None, ClaimEntry | None], None]
"""(key, before, now)."""


@dataclass
class ClaimIndex:
    """Sets of claim keys: `held` have devices of koordra's, `immediate` want theirs without a pod and have
    none. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = (
        "entries", "held", "immediate", "_owned", "_of_pool", "_living", "_orphans",
    )  # fmt: skip

    pod_index: PodIndex
    entries: dict[str, ClaimEntry] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    immediate: set[str] = field(default_factory=set)
    on_touch: list[OnClaim] = field(default_factory=list)
    _owned: KeySets = field(default_factory=KeySets)
    _of_pool: KeySets = field(default_factory=KeySets)
    _living: set[str] = field(default_factory=set)
    _orphans: set[str] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def orphans(self) -> list[Object]:
        """Allocated claims of koordra's that were never reserved and that no living pod can use or owns.

        kube-controller-manager leaves those alone. Claims that are being deleted are its business, as are
        those it still has to free after their last pod; Immediate claims are allocated without a pod. A pod
        one of whose claims was deleted cannot run, so it keeps no devices either until that claim is there
        again.
        """
        self.settle()
        return [self.entries[key].claim for key in sorted(self._orphans)]

    def of_pool(self, pool: str) -> list[ClaimEntry]:
        """Claims that hold devices of koordra's pool, by key."""
        return [self.entries[key] for key in sorted(self._of_pool.get(pool, ()))]

    def on_claim(self, key: str, _before: Object | None, claim: Object | None) -> None:
        before = self.entries.pop(key, None)
        now = before if before is not None and before.claim is claim else None
        if claim is not None:
            now = self.entries[key] = now or ClaimEntry.of(claim, before)
        self._owned.move(key, before.owners if before else (), now.owners if now else ())
        self._of_pool.move(key, before.pools if before else (), now.pools if now else ())
        keep_if(self.held, key, now is not None and bool(now.pools))
        keep_if(
            self.immediate,
            key,
            now is not None and not now.is_allocated and not now.is_deleting and is_immediate(now.claim),
        )
        self._stale.add(key)
        for on_touch in self.on_touch:
            on_touch(key, before, now)

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        """Owners count whether they name the claim or not."""
        for pod in (before, now):
            if pod is not None:
                uid = objects.uid(pod)
                keep_if(self._living, uid, pod is now and is_living(pod))
                self._stale.update(self._owned.get(uid, ()))

    def on_pod_touched(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        for entry in (before, now):
            self._stale.update(entry.keys if entry is not None else ())
        self._stale.update(self._owned.get(uid, ()))

    def settle(self) -> None:
        """Judge the claims that changes have touched."""
        for key in self._stale:
            entry = self.entries.get(key)
            keep_if(
                self._orphans,
                key,
                entry is not None
                and entry.may_be_orphan
                and not self.pod_index.usable(key)
                and not self._living.intersection(entry.owners) - self.pod_index.lacking,
            )
        self._stale.clear()

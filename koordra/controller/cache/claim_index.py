"""Claims, read once a version, by what is to be done about them without asking which pod they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.cache.pod_claims import is_living
from koordra.controller.cache.pod_index import PodEntry, PodIndex
from koordra.controller.claims import ClaimEntry

OnClaim = Callable[[str, ClaimEntry | None, ClaimEntry | None], None]
"""(key, before, now)."""


@dataclass
class ClaimIndex:
    """Sets of claim keys. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = (
        "entries", "held", "immediate", "_owned", "_of_pool", "_living", "_orphans",
    )  # fmt: skip

    pod_index: PodIndex
    entries: dict[str, ClaimEntry] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    """Claims with devices of koordra's."""
    immediate: set[str] = field(default_factory=set)
    """Claims that want their devices without a pod, and have none."""
    on_touch: list[OnClaim] = field(default_factory=list)
    _owned: dict[str, set[str]] = field(default_factory=dict)
    _of_pool: dict[str, set[str]] = field(default_factory=dict)
    _living: set[str] = field(default_factory=set)
    _orphans: set[str] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def orphans(self) -> list[Object]:
        """Allocated claims of koordra's that were never reserved and that no living pod can use or owns.

        kube-controller-manager leaves those alone. Claims that are being deleted are its business, as are those
        it still has to free after their last pod; Immediate claims are allocated without a pod. A pod one of whose
        claims was deleted cannot run, so it keeps no devices either until that claim is there again.
        """
        self.settle()
        return [self.entries[key].claim for key in sorted(self._orphans)]

    def of_pool(self, pool: str) -> list[ClaimEntry]:
        """Claims that hold devices of koordra's pool, by key."""
        return [self.entries[key] for key in sorted(self._of_pool.get(pool, ()))]

    def on_claim(self, key: str, _before: Object | None, claim: Object | None) -> None:
        before = self.entries.pop(key, None)
        now = None
        if claim is not None:
            known = before is not None and before.claim is claim
            now = self.entries[key] = before if before is not None and known else ClaimEntry.of(claim, before)
        _move(self._owned, key, before.owners if before else (), now.owners if now else ())
        _move(self._of_pool, key, before.pools if before else (), now.pools if now else ())
        _put(self.held, key, now is not None and bool(now.pools))
        waits = now is not None and now.is_immediate and not now.is_allocated and not now.is_deleting
        _put(self.immediate, key, waits)
        self._stale.add(key)
        for on_touch in self.on_touch:
            on_touch(key, before, now)

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
            entry = self.entries.get(key)
            _put(
                self._orphans, key, entry is not None and entry.may_be_orphan and self._is_orphan(key, entry)
            )

    def _is_orphan(self, key: str, entry: ClaimEntry) -> bool:
        if self.pod_index.usable(key):
            return False
        return not self._living.intersection(entry.owners) - self.pod_index.lacking


def _move(table: dict[str, set[str]], key: str, before: Iterable[str], now: Iterable[str]) -> None:
    """The claim stands under other names."""
    if before == now:
        return
    for name in before:
        table[name].discard(key)
        if not table[name]:
            del table[name]
    for name in now:
        table.setdefault(name, set()).add(key)


def _put(keys: set[str], key: str, belongs: bool) -> None:
    if belongs:
        keys.add(key)
    else:
        keys.discard(key)

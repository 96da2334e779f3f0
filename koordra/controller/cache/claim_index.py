"""Claims, read once a version, by what is to be done about them without asking which pod they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import KeySets, keep_if, set_or_drop
from koordra.controller.cache import immediate_claims
from koordra.controller.cache.immediate_claims import NONE, Grants, ImmediateRules
from koordra.controller.cache.pod_index import PodEntry, PodIndex, is_living
from koordra.controller.claims import ClaimEntry

OnClaim = Callable[[str, ClaimEntry | None, ClaimEntry | None], None]
"""(key, before, now)."""


@dataclass
class ClaimIndex:
    """Sets of claim keys: `held` have devices of koordra's. `grants`: by namespace, the claims that may have
    devices without a pod. `rules` of these; `namespaces` by name. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = (
        "entries", "held", "grants", "_asking", "_owned", "_of_pool", "_unnamed", "_orphans",
    )  # fmt: skip

    pod_index: PodIndex
    rules: ImmediateRules = field(default_factory=ImmediateRules)
    namespaces: Mapping[str, Object] = field(default_factory=dict)
    entries: dict[str, ClaimEntry] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    grants: dict[str, Grants] = field(default_factory=dict)
    on_touch: list[OnClaim] = field(default_factory=list)
    _asking: KeySets = field(default_factory=KeySets)
    """By namespace."""
    _to_grant: set[str] = field(default_factory=set)
    _refused: dict[str, str] = field(default_factory=dict)
    _owned: KeySets = field(default_factory=KeySets)
    _of_pool: KeySets = field(default_factory=KeySets)
    _unnamed: set[str] = field(default_factory=set)
    """Pods that live, one of whose templates has no claim yet that they name."""
    _orphans: set[str] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def orphans(self) -> list[Object]:
        """Allocated claims of koordra's that nobody has reserved and that no living pod can use, or is to.

        kube-controller-manager leaves those alone. Claims that are being deleted are its business, as are
        those it still has to free after their last pod; Immediate claims that are granted are allocated
        without a pod. A pod one of whose claims was deleted cannot run, so it keeps no devices either until
        that claim is there again.
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
        self._ask(key, now)
        self._stale.add(key)
        for on_touch in self.on_touch:
            on_touch(key, before, now)

    def on_class(self, name: str, _before: Object | None, _now: Object | None) -> None:
        for key, entry in self.entries.items():
            if name in entry.class_names:
                self._ask(key, entry)

    def on_namespace(self, name: str, _before: Object | None, _now: Object | None) -> None:
        if name in self._asking:
            self._to_grant.add(name)

    def _ask(self, key: str, entry: ClaimEntry | None) -> None:
        place = key.partition("/")[0]
        asked = key in self._asking.get(place, ())
        asks = entry is not None and immediate_claims.asks(entry, self.pod_index.class_table)
        if asked or asks:
            self._to_grant.add(place)
            self._asking.move(key, (place,) if asked else (), (place,) if asks else ())

    # devices without a pod

    def keeps(self, key: str) -> bool:
        """Whether nobody takes its devices away: they stay between pods."""
        self.settle()
        return key in self.grants.get(key.partition("/")[0], NONE).keeping

    def waiting_without_pod(self) -> list[str]:
        """Claims that may have devices without a pod, and have none."""
        return [key for key, entry in self._granted() if not entry.is_allocated and not entry.is_deleting]

    def idle(self) -> list[ClaimEntry]:
        """Claims whose devices no pod uses, has reserved, or waits for; not those that keep them."""
        return [
            entry
            for key, entry in self._granted()
            if entry.pools
            and not entry.is_reserved
            and not self.pod_index.users.get(key)
            and not self.keeps(key)
        ]

    def refusals_changed(self) -> dict[str, str]:
        """Why claims may not have devices without a pod and have none, where that is another answer than
        before; empty of those that are refused no more."""
        self.settle()
        found, self._refused = self._refused, {}
        return found

    def _granted(self) -> Iterator[tuple[str, ClaimEntry]]:
        self.settle()
        for place in sorted(self.grants):
            for key in sorted(self.grants[place].granted):
                yield key, self.entries[key]

    def _grant(self) -> None:
        classes = self.pod_index.class_table
        for place in self._to_grant:
            asking = {key: self.entries[key] for key in self._asking.get(place, ())}
            before = self.grants.get(place, NONE)
            now = immediate_claims.judge(asking, classes, self.namespaces.get(place), self.rules)
            set_or_drop(self.grants, place, now if asking else None)
            self._stale |= before.granted ^ now.granted
            self._refused |= dict.fromkeys(before.refused.keys() - now.refused.keys(), "")
            self._refused.update(now.refused.items() - before.refused.items())
        self._to_grant.clear()

    # changes of pods

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        """A claim that was made for a pod counts as the pod's before that names it. Any other owner says
        nothing: its author may name whatever lives."""
        for pod in (before, now):
            if pod is not None:
                uid = objects.uid(pod)
                waits = pod is now and is_living(pod) and None in objects.pod_claim_names(pod).values()
                keep_if(self._unnamed, uid, waits)
                self._stale.update(self._owned.get(uid, ()))

    def on_pod_touched(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        for entry in (before, now):
            self._stale.update(entry.keys if entry is not None else ())
        self._stale.update(self._owned.get(uid, ()))

    def settle(self) -> None:
        """Judge the claims that changes have touched."""
        self._grant()
        for key in self._stale:
            entry = self.entries.get(key)
            keep_if(
                self._orphans,
                key,
                entry is not None
                and entry.may_be_orphan
                and key not in self.grants.get(key.partition("/")[0], NONE).granted
                and not self.pod_index.usable(key)
                and not self._unnamed.intersection(entry.made_for or ()) - self.pod_index.lacking,
            )
        self._stale.clear()

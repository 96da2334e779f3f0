"""The objects of the cluster by kind, with our own writes laid over the claims, and the indices over them.

Everything comes in through `apply` (what the watches tell) and through `assume`, `doubt` and `lose` (what our own writes have
shown). Both end in `_put`, which changes one table and tells the listeners of that kind: the indices. So an index costs what
changed, and every step of a pass sees what the steps before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from koordra.api import objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller.cache.assume_cache import AssumeCache
from koordra.controller.cache.capacity_epoch import CapacityEpoch
from koordra.controller.cache.changes import Change, Cluster, key_of
from koordra.controller.cache.claim_index import ClaimIndex
from koordra.controller.cache.node_index import NodeIndex
from koordra.controller.cache.pod_index import PodIndex

Table = dict[str, Object]
OnChange = Callable[[str, Object | None, Object | None], None]
"""(key, before, now); one of the two may be None, and both may be different objects of one name."""

_FIELDS: Final[tuple[tuple[Kind, str], ...]] = (
    (NODES, "nodes"),
    (RESOURCE_SLICES, "slices"),
    (DEVICE_CLASSES, "classes"),
    (DEVICE_TAINT_RULES, "taint_rules"),
    (NAMESPACES, "namespaces"),
    (PERSISTENT_VOLUME_CLAIMS, "volume_claims"),
    (PERSISTENT_VOLUMES, "volumes"),
    (RESOURCE_CLAIMS, "claims"),
    (PODS, "pods"),
)
POD_GROUP: Final = Kind("", "", "podgroups", "PodGroup", namespaced=True)
"""Pod groups of all systems stand in one table; their keys say whose they are."""


class Index(Protocol):
    """`STATE` names what follows from the objects alone."""

    @property
    def STATE(self) -> tuple[str, ...]: ...  # noqa: N802 (a constant of each class)


class ClusterCache:
    """Not thread-safe: the worker owns it. `version` goes up with every change."""

    def __init__(self) -> None:
        self.version = 0
        self.assume_cache = AssumeCache()
        self._cached: Table = {}
        """Claims as the watch has them."""
        self._tables: dict[Kind, Table] = {kind: {} for kind, _ in _FIELDS}
        self._tables[POD_GROUP] = {}
        self._listeners: dict[Kind, list[OnChange]] = {}
        self.nodes = self._tables[NODES]
        self.slices = self._tables[RESOURCE_SLICES]
        self.classes = self._tables[DEVICE_CLASSES]
        self.taint_rules = self._tables[DEVICE_TAINT_RULES]
        self.namespaces = self._tables[NAMESPACES]
        self.volume_claims = self._tables[PERSISTENT_VOLUME_CLAIMS]
        self.volumes = self._tables[PERSISTENT_VOLUMES]
        self.claims = self._tables[RESOURCE_CLAIMS]
        self.pods = self._tables[PODS]
        self.pod_groups = self._tables[POD_GROUP]
        self.pod_index = PodIndex(self.claims, self.classes)
        self.claim_index = ClaimIndex(self.claims, self.pod_index)
        self.node_index = NodeIndex(self.nodes, self.taint_rules, self.claims, self.pod_index)
        self.capacity_epoch = CapacityEpoch()
        self._connect()

    def _connect(self) -> None:
        self.pod_index.on_touch.append(self.claim_index.on_pod_touched)
        self.pod_index.on_touch.append(self.node_index.on_pod_touched)
        self.listen(NODES, self.node_index.on_node)
        self.listen(NODES, self.capacity_epoch.on_node)
        self.listen(RESOURCE_SLICES, self.node_index.on_slice)
        self.listen(DEVICE_TAINT_RULES, self.node_index.on_taint_rule)
        for kind in (RESOURCE_SLICES, DEVICE_CLASSES, DEVICE_TAINT_RULES, PERSISTENT_VOLUMES):
            self.listen(kind, self.capacity_epoch.on_published)
        self.listen(DEVICE_CLASSES, self.pod_index.on_class)
        self.listen(RESOURCE_CLAIMS, self.capacity_epoch.on_claim)
        self.listen(RESOURCE_CLAIMS, self.claim_index.on_claim)
        self.listen(RESOURCE_CLAIMS, self.node_index.on_claim)
        self.listen(RESOURCE_CLAIMS, self.pod_index.on_claim)
        self.listen(PODS, self.capacity_epoch.on_pod)
        self.listen(PODS, self.pod_index.on_pod)
        self.listen(PODS, self.claim_index.on_pod)
        self.listen(PODS, self.node_index.on_pod)

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterCache:
        """A cache of objects that were read once."""
        cache = cls()
        cache.adopt(cluster)
        return cache

    def listen(self, kind: Kind, on_change: OnChange) -> None:
        """Be told of every change of a kind, after those who listened before."""
        self._listeners.setdefault(kind, []).append(on_change)

    def follow(self, kind: Kind) -> set[str]:
        """The keys that have changed and those there are: a set that the caller empties."""
        touched = set(self._tables[kind])
        self.listen(kind, lambda key, _before, _now: touched.add(key))
        return touched

    # what the watches tell

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.kind is RESOURCE_CLAIMS:
                self._put_cached(change.key, change.obj)
            elif change.kind in self._tables:
                self._put(change.kind, change.key, change.obj)
            else:
                self._put(POD_GROUP, f"{change.kind.group}/{change.key}", change.obj)

    def adopt(self, cluster: Cluster) -> None:
        """Everything as a full read has it; what differs is applied as changes."""
        self.apply(self.differences(cluster))

    def differences(self, cluster: Cluster) -> list[Change]:
        """The changes that lead from here to what a full read has."""
        found: list[Change] = []
        for kind, listed in listed_by_kind(cluster):
            table = self._cached if kind is RESOURCE_CLAIMS else self._tables[kind]
            found += (Change(kind, key, obj) for key, obj in listed.items() if table.get(key) is not obj)
            found += (Change(kind, key, None) for key in table.keys() - listed.keys())
        return found

    # what our own writes show

    def assume(self, claim: Object) -> None:
        """The server has answered with this state of a claim; where the claim is known, it counts from now on."""
        self.assume_cache.assume(claim)
        self._refresh(claim)

    def doubt(self, claim: Object, allocation: Mapping[str, Any]) -> None:
        """An allocation was sent and no answer came."""
        self.assume_cache.doubt(claim, allocation)
        self._refresh(claim)

    def lose(self, claim: Object) -> None:
        """The server does not have the claim any more, whatever the watch shows."""
        self.assume_cache.lose(objects.uid(claim))
        self._refresh(claim)

    def _refresh(self, claim: Object) -> None:
        key = objects.key(claim)
        cached = self._cached.get(key)
        if cached is not None and objects.uid(cached) == objects.uid(claim):
            self._put(RESOURCE_CLAIMS, key, self.assume_cache.current(cached))

    def _put_cached(self, key: str, claim: Object | None) -> None:
        before = self._cached.get(key)
        if before is not None and (claim is None or objects.uid(before) != objects.uid(claim)):
            self.assume_cache.forget(objects.uid(before))
        if claim is None:
            self._cached.pop(key, None)
        else:
            self._cached[key] = claim
        self._put(RESOURCE_CLAIMS, key, None if claim is None else self.assume_cache.current(claim))

    def _put(self, kind: Kind, key: str, obj: Object | None) -> None:
        table = self._tables[kind]
        before = table.get(key)
        if before is obj:
            return
        if obj is None:
            del table[key]
        else:
            table[key] = obj
        self.version += 1
        for on_change in self._listeners.get(kind, ()):
            on_change(key, before, obj)

    # for the audit

    def rebuilt(self) -> ClusterCache:
        """A cache made anew from the same objects, as they are with our writes laid over."""
        fresh = ClusterCache()
        for kind, table in self._tables.items():
            for key, obj in table.items():
                fresh._put(kind, key, obj)
        return fresh

    def indices(self) -> tuple[Index, ...]:
        """Those that the audit compares, brought up to date."""
        self.claim_index.settle()
        return self.pod_index, self.claim_index, self.node_index

    def touch_all(self) -> None:
        """Tell everybody of every object once more."""
        for kind, table in self._tables.items():
            for on_change in self._listeners.get(kind, ()):
                for key, obj in list(table.items()):
                    on_change(key, obj, obj)


def listed_by_kind(cluster: Cluster) -> Iterable[tuple[Kind, Table]]:
    """Tables of a full read, by kind."""
    for kind, field in _FIELDS:
        yield kind, {key_of(kind, obj): obj for obj in getattr(cluster, field)}
    yield (
        POD_GROUP,
        {
            f"{str(group.get('apiVersion')).partition('/')[0]}/{objects.key(group)}": group
            for group in cluster.pod_groups
        },
    )

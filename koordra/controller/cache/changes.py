"""Objects on their way from the threads that watch to the worker that decides: the kinds, single changes, full reads, and the watches of
one term of leadership."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

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
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import Listener, WatchCache, retried

log = get_logger(__name__)

POD_GROUPS_BETA: Final = Kind("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
POD_GROUPS_ALPHA: Final = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", namespaced=True)
WORKLOADS_ALPHA: Final = Kind("scheduling.k8s.io", "v1alpha1", "workloads", "Workload", namespaced=True)
COSCHEDULING: Final = Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", namespaced=True)
COSCHEDULING_OLD: Final = Kind("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup", namespaced=True)
VOLCANO: Final = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", namespaced=True)

POD_GROUPS: Final = (
    POD_GROUPS_BETA,
    POD_GROUPS_ALPHA,
    WORKLOADS_ALPHA,
    COSCHEDULING,
    COSCHEDULING_OLD,
    VOLCANO,
)
"""The pod groups of others, which say how many members a gang needs. Each is read only where the server has it."""

POD_GROUP: Final = Kind("", "", "podgroups", "PodGroup", namespaced=True)
"""Pod groups of all systems stand in one table; their keys say whose they are."""

NEEDED: Final = (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, PODS)
OPTIONAL: Final = (
    DEVICE_TAINT_RULES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    *POD_GROUPS,
)
"""Kinds that a server may not serve, or not to us: they are looked for once, at the start of the term. What
depends on them (taint rules, affinity across namespaces, volumes, the pod groups of others) is then left to
kube-scheduler."""

FIELDS: Final[Mapping[Kind, str]] = {
    POD_GROUP: "pod_groups",
    NAMESPACES: "namespaces",
    NODES: "nodes",
    RESOURCE_SLICES: "slices",
    DEVICE_TAINT_RULES: "taint_rules",
    DEVICE_CLASSES: "classes",
    PERSISTENT_VOLUMES: "volumes",
    PERSISTENT_VOLUME_CLAIMS: "volume_claims",
    RESOURCE_CLAIMS: "claims",
    PODS: "pods",
}
"""The field of a Cluster that a kind stands in. Changes are applied in this order, so that a pod finds its claims and a claim its
class."""
_RANK: Final = {kind: position for position, kind in enumerate(FIELDS)}

Table = dict[str, Object]
"""Objects of one kind, by key."""


class KeySets(dict[str, set[str]]):
    """Keys of objects by what they have in common; what no object has any more is dropped."""

    def move(self, key: str, before: Iterable[str], now: Iterable[str]) -> None:
        """The object had `before` and has `now`."""
        if before == now:
            return
        for name in before:
            self[name].discard(key)
            if not self[name]:
                del self[name]
        for name in now:
            self.setdefault(name, set()).add(key)


def keep_if(keys: set[str], key: str, belongs: bool) -> None:
    if belongs:
        keys.add(key)
    else:
        keys.discard(key)


def set_or_drop(table: dict[Any, Any], key: object, value: object) -> None:
    """Store the value, or drop the key where there is nothing to store."""
    if value:
        table[key] = value
    else:
        table.pop(key, None)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A full read: every object of the kinds that matter."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    taint_rules: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    namespaces: Sequence[Object] = ()
    volume_claims: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    pod_groups: Sequence[Object] = ()

    @classmethod
    def of(cls, by_kind: Mapping[Kind, Iterable[Object]]) -> Cluster:
        """The objects that are listed; kinds that are not served are left out."""
        fields: dict[str, list[Object]] = {}
        for kind, listed in by_kind.items():
            fields.setdefault(FIELDS[_table_of(kind)], []).extend(listed)
        return cls(**fields)

    def tables(self) -> Iterator[tuple[Kind, Table]]:
        for kind, name in FIELDS.items():
            yield kind, {key_of(kind, obj): obj for obj in getattr(self, name)}


@dataclass(frozen=True, slots=True)
class Change:
    """An object's newest state; `obj` is None once it is gone."""

    kind: Kind
    key: str
    obj: Object | None


class ChangeQueue:
    """Where the worker gets its objects from: filled by any thread, emptied by one. `cluster` makes a full read: every object as it
    is now."""

    def __init__(self, cluster: Callable[[], Cluster] = Cluster) -> None:
        self.cluster = cluster
        self._queue: deque[Change] = deque()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        table = _table_of(kind)
        self._queue.append(Change(table, key_of(table, obj), None if event == "DELETED" else obj))

    def changes(self) -> list[Change]:
        """What has changed since the last call, everything there is at the first: each object once, as it was last told of, in the
        order in which changes are applied."""
        latest: dict[tuple[Kind, str], Change] = {}
        while self._queue:
            change = self._queue.popleft()
            latest[change.kind, change.key] = change
        return sorted(latest.values(), key=lambda change: _RANK[change.kind])


def _table_of(kind: Kind) -> Kind:
    return kind if kind in FIELDS else POD_GROUP


def key_of(kind: Kind, obj: Object) -> str:
    """`namespace/name`, or the name of a cluster-scoped object; with the API group before it for a pod group."""
    if kind is POD_GROUP:
        return f"{str(obj.get('apiVersion')).partition('/')[0]}/{objects.key(obj)}"
    return objects.key(obj) if kind.namespaced else objects.name(obj)


class Informers:
    """The watch caches of one term: listed after the lease was taken, dropped when it ends.

    Each of `changed` is set whenever anything has changed; `stop` ends the term. `listeners` are called with each object of a kind,
    in the watch's thread.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Sequence[threading.Event],
        stop: threading.Event,
        listeners: Mapping[Kind, Sequence[Listener]] | None = None,
    ) -> None:
        self._listeners = listeners or {}
        self._client = client
        self._stop = stop
        self._changed = changed
        self._queues: list[ChangeQueue] = []
        self._by_kind: dict[Kind, WatchCache] = {}

    def start(self) -> None:
        """List and watch, one thread per kind, until `stop`."""
        kinds = list(NEEDED)
        for kind in OPTIONAL:
            known = {(each.group, each.plural) for each in kinds}
            if (kind.group, kind.plural) not in known and self._is_served(kind):
                kinds.append(kind)
        self._by_kind = {
            kind: WatchCache(self._client, kind, on_change=self._listener(kind)) for kind in kinds
        }
        for kind, cache in self._by_kind.items():
            spawn(partial(cache.run, self._stop), name=f"watch-{kind.plural}")

    def wait_synced(self) -> bool:
        """Until every kind was listed; False when the term ended before that."""
        for kind, cache in self._by_kind.items():
            while not cache.wait_synced(0.2):
                if self._stop.is_set():
                    log.warning("initial_list_incomplete", kind=str(kind))
                    return False
        return True

    def source(self) -> ChangeQueue:
        """For one worker, before `start`: every change from then on, and full reads."""
        self._queues.append(ChangeQueue(self.cluster))
        return self._queues[-1]

    def cluster(self) -> Cluster:
        return Cluster.of({kind: cache.objects() for kind, cache in self._by_kind.items()})

    def objects(self, kind: Kind) -> list[Object]:
        return self._by_kind[kind].objects() if kind in self._by_kind else []

    def get(self, kind: Kind, key: str) -> Object | None:
        return self._by_kind[kind].get(key) if kind in self._by_kind else None

    def _is_served(self, kind: Kind) -> bool:
        """False when the server says it is not; asked again while nobody answers."""
        try:
            listed = retried(
                partial(self._client.list, kind),
                stop=self._stop,
                report=lambda error: log.warning("kind_not_reached", kind=str(kind), error=str(error)),
            )
        except ApiError:
            return False
        return listed is not None

    def _listener(self, kind: Kind) -> Listener:
        def on_change(event: str, obj: Object, /) -> None:
            for queue in self._queues:
                queue.observe(kind, event, obj)
            for listener in self._listeners.get(kind, ()):
                try:
                    listener(event, obj)
                except Exception:  # a defect in what stands beside must not end the watch
                    log.exception("listener_failed", kind=str(kind), object=objects.key(obj))
            for changed in self._changed:
                changed.set()

        return on_change

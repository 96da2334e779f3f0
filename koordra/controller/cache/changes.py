"""Objects on their way from the threads that watch to the worker that decides: the kinds, single changes,
full reads, and the watches of one term of leadership."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import (
    COMPOSITE,
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller.cache.kept_fields import kept_of
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.watch import Listener, WatchCache, retried, start_watches
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

POD_GROUPS: Final = tuple(
    Kind(group, version, kind.lower() + "s", kind)
    for group, version, kind in (
        ("scheduling.k8s.io", "v1beta1", "PodGroup"),
        ("scheduling.k8s.io", "v1alpha3", "PodGroup"),
        ("scheduling.k8s.io", "v1alpha2", "PodGroup"),
        ("scheduling.k8s.io", "v1alpha3", COMPOSITE),
        ("scheduling.k8s.io", "v1alpha1", "Workload"),
        ("scheduling.x-k8s.io", "v1alpha1", "PodGroup"),
        ("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup"),
        ("scheduling.volcano.sh", "v1beta1", "PodGroup"),
        ("scheduling.run.ai", "v2alpha2", "PodGroup"),
        ("scheduler.grove.io", "v1alpha1", "PodGang"),
    )
)
"""The pod groups of others, which say how many members a gang needs. Each is read only where the server has
it."""

POD_GROUP: Final = Kind("", "", "podgroups", "PodGroup")
"""Pod groups of all systems stand in one table; their keys say whose they are."""

FABRICS: Final = (
    Kind("kueue.x-k8s.io", "v1beta2", "topologies", "Topology", namespaced=False),
    Kind("kueue.x-k8s.io", "v1beta1", "topologies", "Topology", namespaced=False),
    Kind("kai.scheduler", "v1alpha1", "topologies", "Topology", namespaced=False),
    Kind("topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False),
    Kind(
        "scheduling.koordinator.sh",
        "v1alpha1",
        "clusternetworktopologies",
        "ClusterNetworkTopology",
        namespaced=False,
    ),
)
"""What says which levels the network between nodes has. Each is read only where the server has it."""

FABRIC: Final = Kind("", "", "fabrics", "Fabric", namespaced=False)
"""Those of all systems stand in one table; their keys say whose they are."""

NEEDED: Final = (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, PODS)
OPTIONAL: Final = (
    DEVICE_TAINT_RULES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    DEVICE_HOLDS,
    RESERVATIONS,
    *POD_GROUPS,
    *FABRICS,
)
"""Kinds that a server may not serve, or not to us. What depends on them (taint rules, affinity across
namespaces, volumes) is then left to kube-scheduler; without DeviceHolds nothing is held for gangs that lost a
member, and nothing reserved. Those of other systems are looked for again every LOOK_AGAIN seconds: they may
be installed at any time."""

LOOK_AGAIN: Final = 60.0

KINDS: Final = {
    kind: rank
    for rank, kind in enumerate(
        (
            FABRIC,
            POD_GROUP,
            NAMESPACES,
            NODES,
            RESOURCE_SLICES,
            DEVICE_TAINT_RULES,
            DEVICE_CLASSES,
            PERSISTENT_VOLUMES,
            PERSISTENT_VOLUME_CLAIMS,
            RESOURCE_CLAIMS,
            DEVICE_HOLDS,
            RESERVATIONS,
            PODS,
        )
    )
}
"""Changes are applied in this order, so that a pod finds its claims and a claim its class."""
_TABLES: Final = dict.fromkeys(POD_GROUPS, POD_GROUP) | dict.fromkeys(FABRICS, FABRIC)
_OF_NAME: Final = {kind.kind: kind for kind in KINDS} | {kind.kind: table for kind, table in _TABLES.items()}

Table = dict[str, Object]
"""Objects of one kind, by key."""
Tables = Mapping[Kind, Table]
"""A full read: every object of the kinds that matter."""


def in_order(kinds: Iterable[Kind]) -> list[Kind]:
    """Those on which others rest come first."""
    return sorted(kinds, key=lambda kind: KINDS[table_of(kind)])


def tables_of(listed: Iterable[Object]) -> Tables:
    """Objects of all kinds; those that do not matter are left out."""
    found: dict[Kind, Table] = {kind: {} for kind in KINDS}
    for obj in listed:
        if (kind := _OF_NAME.get(str(obj.get("kind")))) is not None:
            found[kind][key_of(kind, obj)] = obj
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """An object's newest state; `obj` is None once it is gone."""

    kind: Kind
    key: str
    obj: Object | None


class ChangeQueue:
    """Where the worker gets its objects from: filled by any thread, emptied by one. `cluster` makes a full
    read: every object as it is now."""

    def __init__(self, cluster: Callable[[], Tables] = dict) -> None:
        self.cluster = cluster
        self._queue: deque[Change] = deque()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        table = table_of(kind)
        self._queue.append(Change(table, key_of(table, obj), None if event == "DELETED" else obj))

    def changes(self) -> list[Change]:
        """What has changed since the last call, everything there is at the first: each object once, as it was
        last told of, in the order in which changes are applied."""
        latest: dict[tuple[Kind, str], Change] = {}
        while self._queue:
            change = self._queue.popleft()
            latest[change.kind, change.key] = change
        return sorted(latest.values(), key=lambda change: KINDS[change.kind])


def table_of(kind: Kind) -> Kind:
    """Where objects of the kind stand."""
    return _TABLES.get(kind, kind)


def key_of(kind: Kind, obj: Object) -> str:
    """`namespace/name`, or the name of a cluster-scoped object; after the API group for what many systems
    have."""
    if kind in (POD_GROUP, FABRIC):
        own = f"{COMPOSITE}/{objects.key(obj)}" if obj.get("kind") == COMPOSITE else objects.key(obj)
        return f"{str(obj.get('apiVersion')).partition('/')[0]}/{own}"
    return objects.key(obj) if kind.namespaced else objects.name(obj)


@dataclass
class Informers:
    """The watch caches of one term: listed after the lease was taken, dropped when it ends.

    Each of `changed` is set whenever anything has changed; `stop` ends the term. `listeners` are called with
    each object of a kind, in the watch's thread.
    """

    client: KubeClient
    _: KW_ONLY
    changed: Sequence[threading.Event]
    stop: threading.Event
    listeners: Mapping[Kind, Sequence[Listener]]
    _queues: list[ChangeQueue] = field(default_factory=list)
    _by_kind: dict[Kind, WatchCache] = field(default_factory=dict)

    def start(self) -> bool:
        """List and watch, one thread per kind, until `stop`; False when that was set before every kind was
        listed."""
        self._by_kind = dict(map(self._watch, NEEDED)) | self._found(OPTIONAL)
        listed = start_watches(self._by_kind.values(), self.stop)
        spawn(self._look_again, name="informers-look-again", until=self.stop)
        return listed

    def _watch(self, kind: Kind) -> tuple[Kind, WatchCache]:
        return kind, WatchCache(self.client, kind, on_change=self._listener(kind), trim=kept_of(kind))

    def _found(self, kinds: Iterable[Kind]) -> dict[Kind, WatchCache]:
        """Those that are served and not watched yet, in one version each."""
        found = dict[Kind, WatchCache]()
        for kind in kinds:
            known = {(each.group, each.plural) for each in (*self._by_kind, *found)}
            if (kind.group, kind.plural) not in known and self._is_served(kind):
                found.update([self._watch(kind)])
        return found

    def _look_again(self) -> None:
        while not self.stop.wait(LOOK_AGAIN):
            found = self._found((*POD_GROUPS, *FABRICS))
            self._by_kind = self._by_kind | found
            start_watches(found.values(), self.stop)

    def source(self) -> ChangeQueue:
        """For one worker, before `start`: every change from then on, and full reads."""
        self._queues.append(ChangeQueue(self.cluster))
        return self._queues[-1]

    def cluster(self) -> Tables:
        return tables_of(obj for cache in self._by_kind.values() for obj in cache.objects())

    def objects(self, kind: Kind) -> list[Object]:
        return self._by_kind[kind].objects() if kind in self._by_kind else []

    def get(self, kind: Kind, key: str) -> Object | None:
        return self._by_kind[kind].get(key) if kind in self._by_kind else None

    def _is_served(self, kind: Kind) -> bool:
        """False when the server says it is not; asked again while nobody answers."""
        try:
            served = retried(
                partial(self.client.newest, kind),
                stop=self.stop,
                report=lambda error: log.warning("kind_not_reached", kind=str(kind), error=str(error)),
            )
        except ApiError:
            return False
        return served is not None

    def _listener(self, kind: Kind) -> Listener:
        def on_change(event: str, obj: Object, /) -> None:
            for queue in self._queues:
                queue.observe(kind, event, obj)
            failed: list[Exception] = []
            for listener in self.listeners.get(kind, ()):
                try:
                    listener(event, obj)
                except Exception as error:  # noqa: BLE001  raised again when all have been told
                    failed.append(error)
            for changed in self.changed:
                changed.set()
            if failed:
                raise failed[0]

        return on_change

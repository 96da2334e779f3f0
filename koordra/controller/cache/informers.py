"""The watch caches of one term of leadership: listed after the lease was taken, dropped when it ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

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
from koordra.api.objects import Object, key
from koordra.controller.cache.changes import Change, ChangeQueue, Cluster, Source
from koordra.controller.cache.pod_group_kinds import POD_GROUPS
from koordra.errors import ApiError, ApiUnreachable
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import Listener, WatchCache

log = get_logger(__name__)

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


class Informers:
    """`changed` is set whenever anything has changed, and so are those of `others`; `stop` ends the term. `heard`: who else
    hears of each object of a kind, in the watch's thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: threading.Event,
        stop: threading.Event,
        others: Sequence[threading.Event] = (),
        heard: Mapping[Kind, Sequence[Listener]] | None = None,
    ) -> None:
        self._others = tuple(others)
        self._heard = heard or {}
        self._client = client
        self._stop = stop
        self._changed = changed
        self._queues: list[ChangeQueue] = []
        self._by_kind: dict[Kind, WatchCache] = {}

    def start(self) -> None:
        """List and watch, one thread per kind, until `stop`."""
        kinds = list(NEEDED)
        for kind in OPTIONAL:
            is_followed = any((each.group, each.plural) == (kind.group, kind.plural) for each in kinds)
            if not is_followed and self._is_served(kind):
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
                    log.warning("not_listed", kind=str(kind))
                    return False
        return True

    def source(self) -> Source:
        """For one worker, before `start`: every change from then on, and full reads."""
        self._queues.append(ChangeQueue())
        return _Followed(self, self._queues[-1])

    def cluster(self) -> Cluster:
        """Everything as it is in the caches now."""
        found = {kind: cache.objects() for kind, cache in self._by_kind.items()}
        return Cluster(
            nodes=found[NODES],
            slices=found[RESOURCE_SLICES],
            classes=found[DEVICE_CLASSES],
            taint_rules=found.get(DEVICE_TAINT_RULES, ()),
            claims=found[RESOURCE_CLAIMS],
            pods=found[PODS],
            namespaces=found.get(NAMESPACES, ()),
            volume_claims=found.get(PERSISTENT_VOLUME_CLAIMS, ()),
            volumes=found.get(PERSISTENT_VOLUMES, ()),
            pod_groups=[group for kind in POD_GROUPS for group in found.get(kind, ())],
        )

    def objects(self, kind: Kind) -> list[Object]:
        """Those of one kind; none where it is not followed."""
        found = self._by_kind.get(kind)
        return found.objects() if found else []

    def get(self, kind: Kind, key: str) -> Object | None:
        """By `namespace/name`, or by name for cluster-scoped kinds."""
        found = self._by_kind.get(kind)
        return found.get(key) if found else None

    def _is_served(self, kind: Kind) -> bool:
        """False when the server says it is not; asked again while nobody answers."""
        while not self._stop.is_set():
            try:
                self._client.list(kind)
            except ApiUnreachable as error:
                log.warning("kind_not_reached", kind=str(kind), error=str(error))
                self._stop.wait(1.0)
            except ApiError:
                return False
            else:
                return True
        return False

    def _listener(self, kind: Kind) -> Listener:
        heard = tuple(self._heard.get(kind, ()))

        def on_change(event: str, obj: Object, /) -> None:
            for queue in self._queues:
                queue.observe(kind, event, obj)
            for listener in heard:
                try:
                    listener(event, obj)
                except Exception:  # a defect in what stands beside must not end the watch
                    log.exception("listener_failed", kind=str(kind), object=key(obj))
            self._changed.set()
            for other in self._others:
                other.set()

        return on_change


class _Followed:
    def __init__(self, caches: Informers, queue: ChangeQueue) -> None:
        self._queue = queue
        self.cluster = caches.cluster

    def changes(self) -> list[Change]:
        return self._queue.changes()

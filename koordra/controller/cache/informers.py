"""The watch caches of one term of leadership: listed after the lease was taken, dropped when it ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from koordra.api.kinds import Kind
from koordra.api.objects import Object, key
from koordra.controller.cache.changes import NEEDED, OPTIONAL, ChangeQueue, Cluster
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import Listener, WatchCache, retried

log = get_logger(__name__)


class Informers:
    """Each of `changed` is set whenever anything has changed; `stop` ends the term. `listeners` are called with each object of a kind,
    in the watch's thread."""

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
                    log.warning("not_listed", kind=str(kind))
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
                    log.exception("listener_failed", kind=str(kind), object=key(obj))
            for changed in self._changed:
                changed.set()

        return on_change

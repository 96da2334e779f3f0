"""Live copies of several kinds, shared by the loops of one process; every loop may listen to every kind."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from koordra.kube.watch import Listener, WatchCache
from koordra.process import lifecycle


class Informers:
    """One watch per kind. `selectors`: field selectors of kinds that are watched in part."""

    def __init__(
        self, client: KubeClient, kinds: Sequence[Kind], *, selectors: Mapping[Kind, str] | None = None
    ) -> None:
        self._listeners: dict[Kind, list[Listener]] = {kind: [] for kind in kinds}
        self._caches = {
            kind: WatchCache(
                client, kind, field_selector=(selectors or {}).get(kind, ""), on_change=self._dispatcher(kind)
            )
            for kind in kinds
        }

    def _dispatcher(self, kind: Kind) -> Listener:
        def dispatch(event: str, obj: Object, /) -> None:
            for listener in self._listeners[kind]:
                listener(event, obj)

        return dispatch

    def listen(self, kind: Kind, listener: Listener) -> None:
        """Call before `start`, so that no change is missed."""
        self._listeners[kind].append(listener)

    def start(self, stop: threading.Event) -> None:
        for kind, cache in self._caches.items():
            lifecycle.spawn(partial(cache.run, stop), name=f"watch-{kind.plural}")

    def wait_synced(self, stop: threading.Event) -> None:
        """Until every kind has been listed once, or `stop`."""
        for cache in self._caches.values():
            while not stop.is_set() and not cache.wait_synced(0.5):
                pass

    def get(self, kind: Kind, key: str) -> Object | None:
        """By `namespace/name`, or by name for cluster-scoped kinds."""
        return self._caches[kind].get(key)

    def objects(self, kind: Kind) -> list[Object]:
        return self._caches[kind].objects()

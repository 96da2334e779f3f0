"""The ResourceQuotas of a cluster, by namespace."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from koordra.api import objects
from koordra.api.kinds import RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.api.tables import keep_if, set_or_drop
from koordra.controller.quota.bounds import bounded
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache


class QuotaWatch:
    """ResourceQuotas by namespace. `wake` is called after each change."""

    def __init__(self, client: KubeClient, *, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._cache = WatchCache(client, RESOURCE_QUOTAS, on_change=self._changed)
        self._lock = threading.Lock()
        self._by_namespace: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        self._bounding = set[str]()
        """Those with a line on names of devices."""

    def start(self, stop: threading.Event) -> None:
        self._cache.start(stop)

    def is_synced(self) -> bool:
        return self._cache.wait_synced(0)

    def of(self, namespace: str) -> list[Object]:
        with self._lock:
            return list(self._by_namespace.get(namespace, {}).values())

    @property
    def is_bounding(self) -> bool:
        """Whether any of them bounds devices."""
        return bool(self._bounding)

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _changed(self, event: str, quota: Object, /) -> None:
        with self._lock:
            found = self._by_namespace[objects.namespace(quota)]
            is_there = event != "DELETED"
            set_or_drop(found, objects.name(quota), quota if is_there else None)
            keep_if(self._bounding, objects.key(quota), is_there and bool(bounded(quota)))
            if not found:
                del self._by_namespace[objects.namespace(quota)]
        self._wake()

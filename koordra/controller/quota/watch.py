"""The ResourceQuotas of a cluster, by namespace."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from koordra.api import objects
from koordra.api.kinds import RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.api.tables import keep_if, set_or_drop
from koordra.compat.quota_charges import OWN
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
        self._terms: dict[str, int] = {}
        self._number = 0

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

    @property
    def terms(self) -> dict[str, int]:
        """Namespaces whose claims are counted, each with a number that is another one whenever that began."""
        with self._lock:
            return dict(self._terms)

    def term(self, namespace: str) -> int:
        """0: its claims are not counted."""
        with self._lock:
            return self._terms.get(namespace, 0)

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _changed(self, event: str, quota: Object, /) -> None:
        namespace = objects.namespace(quota)
        with self._lock:
            found = self._by_namespace[namespace]
            is_there = event != "DELETED"
            set_or_drop(found, objects.name(quota), quota if is_there else None)
            keep_if(self._bounding, objects.key(quota), is_there and bool(bounded(quota)))
            if not any(map(bounds_claims, found.values())):
                self._terms.pop(namespace, None)
            elif namespace not in self._terms:
                self._number += 1
                self._terms[namespace] = self._number
            if not found:
                del self._by_namespace[namespace]
        self._wake()


def bounds_claims(quota: Object) -> bool:
    """Whether a line is on one of koordra's own names."""
    return any(line.name in OWN for line in bounded(quota))

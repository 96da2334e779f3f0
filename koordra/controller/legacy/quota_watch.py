"""ResourceQuotas as the webhook and the leader know them, by namespace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from koordra.api import objects
from koordra.api.kinds import RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.errors import ApiError, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 10.0


class QuotaWatch:
    """ResourceQuotas by namespace. A server that does not have them has no quotas. `wake` is called after each change."""

    def __init__(self, client: KubeClient, *, wake: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._wake = wake
        self._cache = WatchCache(client, RESOURCE_QUOTAS, on_change=self._changed)
        self._lock = threading.Lock()
        self._by_namespace: dict[str, dict[str, Object]] = {}
        self._served = True
        self._heard = 0

    def start(self, stop: threading.Event) -> None:
        spawn(lambda: self._run(stop), name="legacy-watch-quotas")

    def is_synced(self) -> bool:
        return not self._served or (self._cache.wait_synced(0) and self._heard >= len(self._cache.objects()))

    def of(self, namespace: str) -> list[Object]:
        with self._lock:
            return list(self._by_namespace.get(namespace, {}).values())

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._client.list(RESOURCE_QUOTAS)
            except NotFound:
                if self._served:
                    log.info("resource_quotas_not_served", again_in=PERIOD * 6)
                self._served = False
                stop.wait(PERIOD * 6)
                continue
            except ApiError as error:
                log.warning("resource_quotas_not_read", error=str(error), again_in=PERIOD)
                stop.wait(PERIOD)
                continue
            self._served = True
            self._cache.run(stop)

    def _changed(self, event: str, quota: Object, /) -> None:
        with self._lock:
            found = self._by_namespace.setdefault(objects.namespace(quota), {})
            if event == "DELETED":
                found.pop(objects.name(quota), None)
            else:
                found[objects.name(quota)] = quota
        self._heard += 1
        self._wake()

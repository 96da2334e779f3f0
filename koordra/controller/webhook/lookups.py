"""Claims, templates and classes as the webhook knows them: from watches, and asked for where the watch lags.

A pod often comes milliseconds after its template. What the watch does not show yet is asked for once; a
failing API is "not known", since a pod that is left ungated works too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.kept_fields import kept_of
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.watch import Listener, WatchCache

log = get_logger(__name__)


class Lookups:
    """None: there is none. `is_synced` once every kind has been listed."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._listeners: list[Listener] = []
        self._caches = {
            RESOURCE_CLAIMS: WatchCache(client, RESOURCE_CLAIMS, trim=kept_of(RESOURCE_CLAIMS)),
            RESOURCE_CLAIM_TEMPLATES: WatchCache(client, RESOURCE_CLAIM_TEMPLATES, on_change=self._notify),
            DEVICE_CLASSES: WatchCache(client, DEVICE_CLASSES),
        }

    def start(self, stop: threading.Event) -> None:
        for cache in self._caches.values():
            cache.start(stop)

    def is_synced(self) -> bool:
        return all(cache.wait_synced(0) for cache in self._caches.values())

    def claim(self, namespace: str, name: str) -> Object | None:
        return self._one(RESOURCE_CLAIMS, namespace, name)

    def template(self, namespace: str, name: str) -> Object | None:
        return self._one(RESOURCE_CLAIM_TEMPLATES, namespace, name)

    def known_template(self, key: str) -> Object | None:
        """From the watch alone."""
        return self._caches[RESOURCE_CLAIM_TEMPLATES].get(key)

    def listen(self, listener: Listener) -> None:
        """Add a listener of templates. Before `start`."""
        self._listeners.append(listener)

    def classes(self) -> Mapping[str, Object]:
        return {objects.name(obj): obj for obj in self._caches[DEVICE_CLASSES].objects()}

    def _notify(self, event: str, template: Object, /) -> None:
        for listener in self._listeners:
            listener(event, template)

    def _one(self, kind: Kind, namespace: str, name: str) -> Object | None:
        found = self._caches[kind].get(f"{namespace}/{name}")
        if found is not None:
            return found
        try:
            return self._client.get(kind, name, namespace=namespace)
        except ApiError as error:
            log.debug("webhook_lookup_failed", kind=str(kind), name=f"{namespace}/{name}", error=str(error))
            return None

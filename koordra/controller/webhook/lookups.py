"""Claims, templates and classes as the webhook knows them: from watches, and asked for where the watch lags.

A pod often comes milliseconds after its template, and a job's pods together. What the watch does not show
yet is asked for, by one request for all reviews that want it at that moment, and MOST_ASKED times in a
review: a pod may name thousands of claims that do not exist. What is not answered in time is "not known",
since a pod that is left ungated works too; allocations come first (koordra.kube.request_limit).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.kept_fields import kept_of
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.watch import Listener, WatchCache
from koordra.logs import get_logger

log = get_logger(__name__)

KINDS: Final = (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES)
MOST_ASKED: Final = 4
WITHIN: Final = 1.0
"""Seconds; the API server waits five for a review."""


class KnownObjects(Protocol):
    """The objects that there are, as a review asks for them."""

    def classes(self) -> Mapping[str, Object]: ...

    def known(self, kind: Kind, key: str) -> Object | None: ...

    def ask(self, kind: Kind, namespace: str, name: str) -> Object | None: ...

    def for_review(self) -> ReviewLookups: ...


class Lookups:
    """None: there is none. `is_synced` once every kind has been listed."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._listeners: dict[Kind, list[Listener]] = {kind: [] for kind in KINDS}
        self._lock = threading.Lock()
        self._asked: dict[tuple[Kind, str, str], Future[Object | None]] = {}
        self._caches = {
            kind: WatchCache(client, kind, trim=kept_of(kind), on_change=partial(self._notify, kind))
            for kind in KINDS
        }

    def start(self, stop: threading.Event) -> None:
        for cache in self._caches.values():
            cache.start(stop)

    def is_synced(self) -> bool:
        return all(cache.wait_synced(0) for cache in self._caches.values())

    def for_review(self) -> ReviewLookups:
        return ReviewLookups(self)

    def known_template(self, key: str) -> Object | None:
        return self.known(RESOURCE_CLAIM_TEMPLATES, key)

    def listen(self, kind: Kind, listener: Listener) -> None:
        """Before `start`."""
        self._listeners[kind].append(listener)

    def classes(self) -> Mapping[str, Object]:
        return {objects.name(obj): obj for obj in self._caches[DEVICE_CLASSES].objects()}

    def _notify(self, kind: Kind, event: str, obj: Object, /) -> None:
        for listener in self._listeners[kind]:
            listener(event, obj)

    def known(self, kind: Kind, key: str) -> Object | None:
        """From the watch alone."""
        return self._caches[kind].get(key)

    def ask(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """From the API server; those who ask at the same moment share one request."""
        place = kind, namespace, name
        with self._lock:
            under_way = self._asked.get(place)
            answer = under_way or self._asked.setdefault(place, Future())
        if under_way is None:
            found = None
            try:
                found = self._client.get(kind, name, namespace=namespace, spare_within=WITHIN)
            except ApiError as error:
                where = f"{namespace}/{name}"
                log.debug("webhook_lookup_failed", kind=str(kind), name=where, error=str(error))
            finally:
                with self._lock:
                    del self._asked[place]
                answer.set_result(found)
        return answer.result()


class ReviewLookups:
    """The look-ups of one review."""

    def __init__(self, lookups: KnownObjects) -> None:
        self._lookups = lookups
        self._left = MOST_ASKED

    def claim(self, namespace: str, name: str) -> Object | None:
        return self._one(RESOURCE_CLAIMS, namespace, name)

    def template(self, namespace: str, name: str) -> Object | None:
        return self._one(RESOURCE_CLAIM_TEMPLATES, namespace, name)

    def _one(self, kind: Kind, namespace: str, name: str) -> Object | None:
        found = self._lookups.known(kind, f"{namespace}/{name}")
        if found is None and self._left:
            self._left -= 1
            found = self._lookups.ask(kind, namespace, name)
        return found


def claim_of_template(template: Object | None) -> Object | None:
    """The claim that will be made of it."""
    if template is None:
        return None
    inner = objects.spec_of(template)
    claim = {"metadata": inner.get("metadata") or {}, "spec": inner.get("spec") or {}}
    return {"kind": "ResourceClaim", **claim}

"""Events about objects, counted instead of repeated: what `kubectl describe` shows under Events."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from koordra.api import kinds
from koordra.api.objects import Object, metadata, name, uid
from koordra.errors import ApiError, Conflict
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra_devcluster.apiserver.fields.schema import format_time

log = get_logger(__name__)


class Recorder:
    """Writes core/v1 Events as one component (`default-scheduler`, `kubelet`). An event that fails is only
    logged."""

    def __init__(self, client: KubeClient, component: str, *, host: str = "") -> None:
        self._client = client
        self._source = {"component": component} | ({"host": host} if host else {})

    def event(self, obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """One event about `obj`; the same reason and message again only raises the count."""
        digest = hashlib.sha256(f"{uid(obj)}/{self._source}/{reason}/{message}".encode()).hexdigest()[:16]
        event_name = f"{name(obj)[:200]}.{digest}"
        body = self._body(obj, event_name) | {
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
        }
        namespace = body["metadata"]["namespace"]
        try:
            self._client.create(kinds.EVENTS, body, namespace=namespace)
        except Conflict:
            self._repeat(namespace, event_name, body["lastTimestamp"])
        except ApiError as error:
            log.debug("event_not_written", reason=reason, error=str(error))

    def _body(self, obj: Object, event_name: str) -> Object:
        now = format_time(datetime.now(UTC))
        place = metadata(obj).get("namespace")
        about = {
            "apiVersion": obj.get("apiVersion"),
            "kind": obj.get("kind"),
            "name": name(obj),
            "uid": uid(obj),
            "resourceVersion": metadata(obj).get("resourceVersion"),
        } | ({"namespace": place} if place else {})
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": place or "default"},
            "involvedObject": about,
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    def _repeat(self, namespace: str, event_name: str, now: str) -> None:
        try:
            count = int(self._client.get(kinds.EVENTS, event_name, namespace=namespace).get("count", 1))
            patch = {"count": count + 1, "lastTimestamp": now}
            self._client.patch(kinds.EVENTS, event_name, patch, namespace=namespace)
        except ApiError as error:
            log.debug("event_not_written", name=event_name, error=str(error))

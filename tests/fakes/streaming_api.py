"""An API server in memory that streams: for whole processes in threads of a test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from tests.fakes.kube_api import FakeKubeApi


class StreamingApi(FakeKubeApi):
    """Serves every kind. A watch tells what happened since, or a bookmark a few times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = threading.RLock()

    def negotiate(self) -> Mapping[str, str]:
        return {}

    def newest(self, kind: Kind, **_selectors: str) -> str:
        return super().list(kind)[1]

    def list(self, kind: Kind, **selectors: Any) -> tuple[list[Object], str]:
        each = selectors.pop("each", lambda obj: obj)
        with self._one_at_a_time:
            found, version = super().list(kind, **selectors)
        return list(map(each, found)), version

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        with self._one_at_a_time:
            return super().get(kind, name, namespace=namespace)

    def create(self, kind: Kind, body: Object, **where: Any) -> Object:
        with self._one_at_a_time:
            return super().create(kind, body, **where)

    def update(self, kind: Kind, body: Object, **where: Any) -> Object:
        with self._one_at_a_time:
            return super().update(kind, body, **where)

    def patch(self, kind: Kind, name: str, body: Any, **where: Any) -> Object:
        with self._one_at_a_time:
            return super().patch(kind, name, json.loads(body) if isinstance(body, bytes) else body, **where)

    def delete(self, kind: Kind, name: str, **where: Any) -> None:
        with self._one_at_a_time:
            super().delete(kind, name, **where)

    def watch(self, kind: Kind, *, resource_version: str, **_selectors: str) -> Iterator[tuple[str, Object]]:
        seen = int(resource_version)
        while True:
            with self._one_at_a_time:
                version = self._version
                events = [
                    (event, obj)
                    for event, plural, obj in self.history
                    if plural == kind.plural and int(obj["metadata"]["resourceVersion"]) > seen
                ]
            yield from events
            seen = version
            yield "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}
            time.sleep(0.1)

"""An API server for one Node and its ResourceSlices, with the ways in which a real one surprises a
publisher."""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Conflict, NotFound


class FakeSliceApi:
    """`dropped`: device fields that the server does not know; `away`: nobody answers; `writes`
    and `requests` count."""

    def __init__(self, node: str, *, dropped: frozenset[str] = frozenset()) -> None:
        self.node: Object = {"metadata": {"name": node, "uid": "node-uid-1"}}
        self.slices: dict[str, Object] = {}
        self.dropped = dropped
        self.away = False
        self.writes = 0
        self.requests = 0
        self._versions = count(2)
        self._events: queue.SimpleQueue[tuple[str, Object]] = queue.SimpleQueue()

    def get(self, kind: Kind, name: str) -> Object:
        self._answer()
        assert kind is kinds.NODES, "all else is listed: a plugin has no right to get it"
        if name != self.node["metadata"]["name"]:
            raise NotFound("no such node", code=404)
        return copy.deepcopy(self.node)

    def list(
        self,
        kind: Kind,
        *,
        field_selector: str = "",
        label_selector: str = "",
        each: Callable[[Object], Object] = lambda obj: obj,
    ) -> tuple[list[Object], str]:
        self._answer()
        assert kind is kinds.RESOURCE_SLICES
        wanted = dict(part.split("=") for part in field_selector.split(","))
        assert wanted == {"spec.driver": "koordra.io", "spec.nodeName": self.node["metadata"]["name"]}
        found = [
            each(copy.deepcopy(obj))
            for obj in self.slices.values()
            if obj["spec"]["driver"] == wanted["spec.driver"]
            and obj["spec"]["nodeName"] == wanted["spec.nodeName"]
        ]
        return found, "1"

    def create(self, kind: Kind, body: Object) -> Object:
        name = body["metadata"]["name"]
        if name in self.slices:
            raise Conflict(f"{name} exists", code=409, reason="AlreadyExists")
        return self._store(kind, body)

    def update(self, kind: Kind, body: Object) -> Object:
        current = self.slices[body["metadata"]["name"]]
        if body["metadata"].get("resourceVersion") != current["metadata"]["resourceVersion"]:
            raise Conflict("written by somebody else", code=409)
        return self._store(kind, body)

    def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> None:
        self._answer()
        assert kind is kinds.RESOURCE_SLICES
        if name not in self.slices or (uid and self.slices[name]["metadata"]["uid"] != uid):
            raise NotFound(f"{name} not found", code=404)
        self._tell_deleted(self.slices.pop(name))
        self.writes += 1

    def watch(
        self, kind: Kind, *, resource_version: str, field_selector: str = "", label_selector: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """Every change, and a bookmark for each second without one."""
        del resource_version, field_selector
        assert kind is kinds.RESOURCE_SLICES
        while True:
            try:
                yield self._events.get(timeout=1)
            except queue.Empty:
                yield "BOOKMARK", {}

    def kubelet_deletes_all(self) -> None:
        """What a kubelet does when it starts."""
        for obj in self.slices.values():
            self._tell_deleted(obj)
        self.slices.clear()

    def generations(self) -> set[int]:
        return {obj["spec"]["pool"]["generation"] for obj in self.slices.values()}

    def _store(self, kind: Kind, body: Object) -> Object:
        self._answer()
        assert kind is kinds.RESOURCE_SLICES
        self.writes += 1
        stored: Object = _without(copy.deepcopy(body), self.dropped)
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        stored["metadata"]["uid"] = f"slice-uid-{self.writes}"
        self.slices[stored["metadata"]["name"]] = stored
        self._events.put(("MODIFIED", copy.deepcopy(stored)))
        return copy.deepcopy(stored)

    def _tell_deleted(self, obj: Object) -> None:
        version = str(next(self._versions))
        self._events.put(("DELETED", {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}))

    def _answer(self) -> None:
        self.requests += 1
        if self.away:
            raise ApiUnreachable("connection refused")


def _without(value: Any, fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, fields) for key, item in value.items() if key not in fields}
    return [_without(item, fields) for item in value] if isinstance(value, list) else value

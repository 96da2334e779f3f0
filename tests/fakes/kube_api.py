"""A small deterministic API server in memory, strict where the controller's safety rests on strictness.

Writes are conditional on resourceVersion and uid where the body carries them; `status` is a subresource of
its own; allocation is write-once (it may be set to null), its timestamp immutable, reservedFor needs an
allocation; finalizers hold deletion up; scheduling gates can only be taken away. Every change is one event in
`history`, in the order of versions.

Faults are injected by `before` and `after`, called around every write with its description: raise
ApiUnreachable in `before` for a request that was lost, in `after` for an answer that was lost, `Killed` for a
crash of the writer.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from koordra.api import kinds, objects
from koordra.api.kinds import COMPOSITE, EVENTS, LEASES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import KINDS as TABLES
from koordra.controller.cache.changes import POD_GROUP, POD_GROUPS, Change, ChangeQueue
from koordra.controller.cache.kept_fields import kept_of
from koordra.errors import Conflict, Invalid, NotFound
from tests.fakes.cluster import Cluster

COMPOSITES = next(kind for kind in POD_GROUPS if kind.kind == COMPOSITE)
_T = TypeVar("_T")
Key = tuple[str, str, str]
"""(plural, namespace, name); namespace is empty for cluster-scoped kinds."""


class Killed(BaseException):
    """The process that wrote was killed at this point."""


@dataclass(frozen=True)
class Write:
    """One request: `step` counts from 0 over the life of the server."""

    step: int
    verb: str
    kind: str
    name: str
    subresource: str | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.kind}/{self.name}" + (f"/{self.subresource}" if self.subresource else "")


def _nothing(_write: Write) -> None:
    return


def _copy(obj: _T) -> _T:
    """Of JSON values only, several times as fast as `copy.deepcopy`: half of a model's time was that."""
    copied: _T = marshal.loads(marshal.dumps(obj))  # type: ignore[arg-type]
    return copied


def _by_key(stored: tuple[Key, Object]) -> Key:
    return stored[0]


class FakeKubeApi:
    """The subset of koordra.kube.client.KubeClient that the controller uses."""

    timeout = 5.0
    server = "memory"

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.history: list[tuple[str, str, Object]] = []
        self.writes: list[Write] = []
        self.before: Callable[[Write], None] = _nothing
        self.after: Callable[[Write], None] = _nothing
        self.dropped: tuple[str, ...] = ()
        self.stamp: Callable[[], str] = lambda: f"2026-11-21T00:00:{self._uids % 60:02d}Z"
        """When objects are made."""
        self.ends: Callable[[], str] = lambda: "2026-11-21T01:00:00Z"
        """Until when what is deleted, and has finalizers, may take to end."""
        self._version = 100
        self._uids = 0

    # reading

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        found = self.objects.get(self._key(kind, namespace, name))
        if found is None:
            raise NotFound(f'{kind} "{name}" not found', code=404, reason="NotFound")
        return _copy(found)

    def list(
        self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", **_selectors: str
    ) -> tuple[list[Object], str]:
        """`label_selector`: a label that is there."""
        found = [
            (key, obj)
            for key, obj in self.objects.items()
            if key[0] == kind.plural
            and namespace in (None, key[1])
            and (not label_selector or label_selector in objects.labels_of(obj))
        ]
        return [_copy(obj) for _, obj in sorted(found, key=_by_key)], str(self._version)

    def newest(self, kind: Kind, **_selectors: str) -> str:
        return self.list(kind)[1]

    def all(self, kind: Kind) -> list[Object]:
        return self.list(kind)[0]

    # writing

    def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        strict: bool = False,
    ) -> Object:
        """With `subresource` (an eviction) only the request is recorded; the pod's end is another's doing."""
        del strict
        if name and subresource:
            write = self._write("create", kind, name, subresource)
            self.before(write)
            self._current(kind, namespace, name)
            return self._answer(_copy(body), write)
        obj = _copy(body)
        metadata = obj.setdefault("metadata", {})
        if kind.namespaced:
            metadata.setdefault("namespace", namespace or "default")
        key = self._key(kind, metadata.get("namespace"), metadata["name"])
        write = self._write("create", kind, metadata["name"])
        self.before(write)
        if key in self.objects:
            raise Conflict(f'{kind} "{metadata["name"]}" already exists', code=409, reason="AlreadyExists")
        self._uids += 1
        metadata.setdefault("uid", f"uid-{self._uids}")
        metadata.setdefault("creationTimestamp", self.stamp())
        metadata["generation"] = 1
        obj.setdefault("apiVersion", kind.api_version)
        obj.setdefault("kind", kind.kind)
        return self._answer(self._store("ADDED", key, obj), write)

    def update(self, kind: Kind, body: Object, *, subresource: str | None = None) -> Object:
        metadata = body["metadata"]
        write = self._write("update", kind, metadata["name"], subresource)
        self.before(write)
        key, current = self._current(kind, metadata.get("namespace"), metadata["name"])
        self._check_version(current, metadata)
        return self._answer(self._replace(kind, key, _copy(body), subresource), write)

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = "application/merge-patch+json",
    ) -> Object:
        write = self._write("patch", kind, name, subresource)
        self.before(write)
        key, current = self._current(kind, namespace, name)
        if content_type == "application/json-patch+json":
            changed = _json_patched(current, body)
        else:
            self._check_version(current, body.get("metadata") or {})
            changed = _merged(current, _copy(body))
        return self._answer(self._replace(kind, key, changed, subresource), write)

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period: int | None = None,
    ) -> None:
        del grace_period
        write = self._write("delete", kind, name)
        self.before(write)
        key, current = self._current(kind, namespace, name)
        if uid and uid != objects.uid(current):
            raise Conflict("the UID in the precondition does not match", code=409)
        if resource_version and resource_version != objects.resource_version(current):
            raise Conflict("the resourceVersion in the precondition does not match", code=409)
        if current["metadata"].get("finalizers"):
            changed = _copy(current)
            changed["metadata"]["deletionTimestamp"] = self.ends()
            self._store("MODIFIED", key, changed)
        else:
            self._remove(key)
        self.after(write)

    def edit(
        self, kind: Kind, name: str, change: Callable[[Object], None], *, namespace: str = "default"
    ) -> Object:
        """Somebody else changes the object (any part of it); it counts as no write of the controller's."""
        key, current = self._current(kind, namespace, name)
        changed = _copy(current)
        change(changed)
        if kind is PODS and changed["spec"] != current["spec"]:
            changed["metadata"]["generation"] += 1
        return _copy(self._store("MODIFIED", key, changed))

    # inside

    def _write(self, verb: str, kind: Kind, name: str, subresource: str | None = None) -> Write:
        write = Write(len(self.writes), verb, kind.plural, name, subresource)
        self.writes.append(write)
        return write

    def _answer(self, obj: Object, write: Write) -> Object:
        self.after(write)
        return _copy(obj)

    def _key(self, kind: Kind, namespace: str | None, name: str) -> Key:
        return (kind.plural, (namespace or "default") if kind.namespaced else "", name)

    def _current(self, kind: Kind, namespace: str | None, name: str) -> tuple[Key, Object]:
        key = self._key(kind, namespace, name)
        if key not in self.objects:
            raise NotFound(f'{kind} "{name}" not found', code=404, reason="NotFound")
        return key, self.objects[key]

    def _check_version(self, current: Object, metadata: dict[str, Any]) -> None:
        if metadata.get("uid") and metadata["uid"] != objects.uid(current):
            raise Conflict("the UID in the precondition does not match", code=409, reason="Conflict")
        version = metadata.get("resourceVersion")
        if version and version != objects.resource_version(current):
            raise Conflict("the object has been modified", code=409, reason="Conflict")

    def _replace(self, kind: Kind, key: Key, changed: Object, subresource: str | None) -> Object:
        current = self.objects[key]
        merged = _copy(current)
        if subresource == "status":
            merged["status"] = changed.get("status") or {}
        else:
            merged.update({name: value for name, value in changed.items() if name != "status"})
            merged["metadata"] = {**changed["metadata"], "uid": objects.uid(current)}
        if kind is RESOURCE_CLAIMS:
            _validate_claim(current, merged)
            self._drop_fields(merged)
        if kind is PODS:
            _validate_pod(current, merged)
            if merged.get("spec") != current.get("spec"):
                merged["metadata"]["generation"] += 1
        if kind not in (LEASES, EVENTS) and _without_version(merged) == _without_version(current):
            return current
        stored = self._store("MODIFIED", key, merged)
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            self._remove(key)
        return stored

    def _drop_fields(self, claim: Object) -> None:
        """What a server does whose feature gates are off."""
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get(
            "results", ()
        ):
            for name in self.dropped:
                result.pop(name, None)

    def _store(self, event: str, key: Key, obj: Object) -> Object:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = obj
        self.history.append((event, key[0], _copy(obj)))
        return obj

    def _remove(self, key: Key) -> None:
        gone = self.objects.pop(key)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self.history.append(("DELETED", key[0], _copy(gone)))


KINDS = (
    kinds.NAMESPACES,
    kinds.NODES,
    PODS,
    EVENTS,
    kinds.SERVICE_ACCOUNTS,
    LEASES,
    kinds.RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    kinds.RESOURCE_CLAIM_TEMPLATES,
    kinds.DEVICE_CLASSES,
    kinds.DEVICE_TAINT_RULES,
    kinds.DEVICE_HOLDS,
    kinds.RESERVATIONS,
    POD_GROUP,
    COMPOSITES,
)
_BY_PLURAL = {kind.plural: kind for kind in KINDS}


class FakeCaches:
    """Watch caches that lag as far as the test wants: `deliver` hands on the next events, of one kind or of
    all."""

    def __init__(self, api: FakeKubeApi) -> None:
        self._api = api
        self._position = dict.fromkeys([kind.plural for kind in KINDS], 0)
        self._objects: dict[Key, Object] = {}
        self._queue = ChangeQueue()

    def deliver(self, kind: Kind | None = None, *, events: int | None = None) -> None:
        """The next `events` events (None: all there are)."""
        for plural in [kind.plural] if kind else list(self._position):
            start, rest = self._position[plural], events
            for index in range(start, len(self._api.history)):
                if rest == 0:
                    break
                event, of, obj = self._api.history[index]
                self._position[plural] = index + 1
                if of == plural:
                    self._apply(event, plural, obj)
                    rest = None if rest is None else rest - 1

    def _apply(self, event: str, plural: str, obj: Object) -> None:
        key = (plural, str(obj["metadata"].get("namespace") or ""), objects.name(obj))
        obj = kept_of(_BY_PLURAL[plural])(_copy(obj))
        if event == "DELETED":
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if _BY_PLURAL[plural] in (*TABLES, COMPOSITES):  # what a controller watches
            self._queue.observe(_BY_PLURAL[plural], event, obj)

    def observe(self, kind: Kind, obj: Object, *, event: str = "ADDED") -> None:
        """Of a kind that the API does not have by itself."""
        self._queue.observe(kind, event, obj)

    def objects(self, kind: Kind) -> dict[str, Object]:
        """By name."""
        return {key[2]: obj for key, obj in self._objects.items() if key[0] == kind.plural}

    def changes(self) -> list[Change]:
        return self._queue.changes()

    def cluster(self) -> Cluster:
        by_kind: dict[str, list[Object]] = {}
        for key in sorted(self._objects):
            by_kind.setdefault(key[0], []).append(self._objects[key])
        return replace(
            Cluster(),
            nodes=by_kind.get("nodes", []),
            slices=by_kind.get("resourceslices", []),
            classes=by_kind.get("deviceclasses", []),
            taint_rules=by_kind.get("devicetaintrules", []),
            claims=by_kind.get("resourceclaims", []),
            pods=by_kind.get("pods", []),
            pod_groups=[*by_kind.get("podgroups", []), *by_kind.get(COMPOSITES.plural, [])],
            holds=by_kind.get("deviceholds", []),
            reservations=by_kind.get("reservations", []),
        )


def _validate_claim(before: Object, after: Object) -> None:
    old, new = before.get("status") or {}, after.get("status") or {}
    if old.get("allocation") and new.get("allocation") and old["allocation"] != new["allocation"]:
        raise Invalid("status.allocation: field is immutable", code=422, reason="Invalid")
    if new.get("reservedFor") and not new.get("allocation"):
        raise Invalid("status.reservedFor: may not be specified when allocation is not set", code=422)
    if (before.get("spec") or {}) != (after.get("spec") or {}):
        raise Invalid("spec: field is immutable", code=422)
    allocation = new.get("allocation")
    if allocation and not allocation.get("allocationTimestamp"):
        raise Invalid("allocationTimestamp: the scheduler would never bind this", code=422)


def _validate_pod(before: Object, after: Object) -> None:
    old = [gate["name"] for gate in before["spec"].get("schedulingGates") or ()]
    new = [gate["name"] for gate in after["spec"].get("schedulingGates") or ()]
    if any(gate not in old for gate in new):
        raise Invalid("spec.schedulingGates: only deletion is allowed", code=422)


def _without_version(obj: Object) -> Object:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    return {**obj, "metadata": metadata}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = _copy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _json_patched(target: Object, steps: list[dict[str, Any]]) -> Object:
    """RFC 6902, `test` and `remove`, and `replace` in objects."""
    result = _copy(target)
    for step in steps:
        *path, last = step["path"].strip("/").split("/")
        try:
            place: Any = result
            for part in path:
                place = place[int(part)] if isinstance(place, list) else place[part]
            found = place[int(last)] if isinstance(place, list) else place[last]
        except (KeyError, IndexError) as error:
            raise Invalid(f"{step['path']}: no such path", code=422) from error
        if step["op"] == "test":
            if found != step["value"]:
                raise Invalid(f"testing {step['path']} failed", code=422)
        elif step["op"] == "replace":
            place[last] = step["value"]
        else:
            assert step["op"] == "remove"
            place.pop(int(last) if isinstance(place, list) else last)
    return result

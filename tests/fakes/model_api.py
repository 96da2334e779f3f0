"""The API server of the controller's model: strict, deterministic, and fast enough for thousands of
schedules.

Stored objects are never changed in place: a write makes a new object that shares what did not change, so that
answers, histories and caches can hand them out without copying. The rules are those of `kube_api`
(conditional writes, write-once allocation, finalizers, gates that can only go away); a write that changes
nothing makes no new version, as on the real server.

`Knowledge` knows which versions of a claim a process has seen: a change that lands on one that it had not
seen when it sent the change was decided on something else, and that is an error, whatever comes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from koordra.api.kinds import LEASES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Conflict, Invalid, NotFound

JSON_PATCH = "application/json-patch+json"


class Killed(BaseException):
    """The process that sent a request was killed at this point."""


class ModelApi:
    """Objects by plural and key; `history` has every change of a kind in order."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        self.history: dict[str, list[tuple[str, str, Object]]] = {}
        self.version = 100
        self.uids = 0
        self._encoded: dict[int, bytes] = {}

    def encoded(self, obj: Object) -> bytes:
        """The JSON of an object of the history, made once."""
        found = self._encoded.get(id(obj))
        if found is None:
            found = self._encoded[id(obj)] = json.dumps(obj, separators=(",", ":")).encode()
        return found

    def table(self, kind: Kind) -> dict[str, Object]:
        return self.objects.setdefault(kind.plural, {})

    def find(self, kind: Kind, name: str) -> Object | None:
        return self.table(kind).get(_key(kind, name))

    def get(self, kind: Kind, name: str) -> Object:
        found = self.find(kind, name)
        if found is None:
            raise NotFound(f'{kind} "{name}" not found', code=404, reason="NotFound")
        return found

    def create(self, kind: Kind, body: Object, *, created: str = "2026-11-21T00:00:00Z") -> Object:
        name = body["metadata"]["name"]
        if self.find(kind, name) is not None:
            raise Conflict(f'{kind} "{name}" already exists', code=409, reason="AlreadyExists")
        self.uids += 1
        metadata = {"uid": f"uid-{self.uids}", "creationTimestamp": created, "generation": 1}
        metadata |= body["metadata"]
        if kind.namespaced:
            metadata.setdefault("namespace", "default")
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": metadata}
        return self._store(kind, "ADDED", whole)

    def change(self, kind: Kind, name: str, **parts: Any) -> Object:
        """Somebody else's write: replaces spec, status or fields of metadata of the object as it is."""
        current = self.get(kind, name)
        changed = {**current, **{part: value for part, value in parts.items() if part != "metadata"}}
        changed["metadata"] = {**current["metadata"], **parts.get("metadata", {})}
        return self._replace(kind, current, changed)

    def patch(self, kind: Kind, name: str, body: Any, subresource: str | None, content_type: str) -> Object:
        current = self.get(kind, name)
        if content_type == JSON_PATCH:
            changed = _json_patched(current, body)
        else:
            _check_condition(current, body.get("metadata") or {})
            changed = _merged(current, body)
        return self._replace(kind, current, _only(subresource, current, changed))

    def update(self, kind: Kind, body: Object) -> Object:
        current = self.get(kind, body["metadata"]["name"])
        _check_condition(current, body["metadata"])
        return self._replace(kind, current, body)

    def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> None:
        current = self.get(kind, name)
        if uid and uid != current["metadata"]["uid"]:
            raise Conflict("the UID in the precondition does not match", code=409)
        if not current["metadata"].get("finalizers"):
            self._remove(kind, current)
        elif not current["metadata"].get("deletionTimestamp"):
            self.change(kind, name, metadata={"deletionTimestamp": "2026-11-21T01:00:00Z"})

    def remove(self, kind: Kind, name: str) -> None:
        """At once, whatever holds it (a forced deletion, a node that is gone)."""
        found = self.find(kind, name)
        if found is not None:
            self._remove(kind, found)

    def _replace(self, kind: Kind, current: Object, changed: Object) -> Object:
        changed = {**changed, "metadata": {**changed["metadata"], "uid": current["metadata"]["uid"]}}
        if kind is RESOURCE_CLAIMS:
            _validate_claim(current, changed)
        if kind is PODS:
            _validate_pod(current, changed)
            if changed.get("spec") != current.get("spec"):
                changed["metadata"]["generation"] = current["metadata"]["generation"] + 1
        changed["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if kind is not LEASES and changed == current:
            return current
        stored = self._store(kind, "MODIFIED", changed)
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            self._remove(kind, stored)
        return stored

    def _store(self, kind: Kind, event: str, obj: Object) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        key = _key(kind, obj["metadata"]["name"])
        self.table(kind)[key] = obj
        self.history.setdefault(kind.plural, []).append((event, key, obj))
        return obj

    def _remove(self, kind: Kind, obj: Object) -> None:
        self.version += 1
        key = _key(kind, obj["metadata"]["name"])
        gone = self.table(kind).pop(key)
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self.history.setdefault(kind.plural, []).append(("DELETED", key, gone))


Request = Callable[[], Object]


class Knowledge:
    """What one process has seen of the claims, and what it changes of them."""

    def __init__(self, api: ModelApi) -> None:
        self._api = api
        self._seen: dict[str, int] = {}
        self._given = ""
        """The version that the last change of a claim has made, where it gave devices out."""
        self.takes_back = False
        """Whether the last change of a claim that was sent does nothing but take back what the one before it
        gave out."""

    def saw(self, claim: Object) -> None:
        """A state of a claim has come to the process: by a watch, a list or an answer."""
        metadata = claim["metadata"]
        version = int(metadata["resourceVersion"])
        self._seen[metadata["uid"]] = max(version, self._seen.get(metadata["uid"], 0))

    def patching(self, kind: Kind, name: str, body: Any, change: Request) -> Request:
        """The patch as it is sent now."""
        if kind is not RESOURCE_CLAIMS:
            return change
        allocation = (body.get("status") or {"allocation": ...}).get("allocation")
        given, self._given = self._given, ""
        self.takes_back = allocation is None and body["metadata"].get("resourceVersion") == given != ""
        seen = dict(self._seen)

        def checked() -> Object:
            before = self._api.get(kind, name)
            after = change()
            known = seen.get(before["metadata"]["uid"], 0)
            version = int(before["metadata"]["resourceVersion"])
            assert after is before or version <= known, f"{name} was changed by who had not seen what it was"
            if isinstance(allocation, dict):
                self._given = after["metadata"]["resourceVersion"]
            return after

        return checked


def unreachable(text: str) -> ApiUnreachable:
    return ApiUnreachable(text)


def _key(kind: Kind, name: str) -> str:
    return f"default/{name}" if kind.namespaced else name


def _check_condition(current: Object, metadata: Mapping[str, Any]) -> None:
    known = current["metadata"]
    if metadata.get("uid") and metadata["uid"] != known["uid"]:
        raise Conflict("the UID in the precondition does not match", code=409, reason="Conflict")
    version = metadata.get("resourceVersion")
    if version and version != known["resourceVersion"]:
        raise Conflict("the object has been modified", code=409, reason="Conflict")


def _only(subresource: str | None, current: Object, changed: Object) -> Object:
    if subresource == "status":
        return {**current, "status": changed.get("status") or {}}
    return {**changed, "status": current.get("status") or {}} if "status" in current else changed


def _validate_claim(before: Object, after: Object) -> None:
    old, new = before.get("status") or {}, after.get("status") or {}
    if old.get("allocation") and new.get("allocation") and old["allocation"] != new["allocation"]:
        raise Invalid("status.allocation: field is immutable", code=422, reason="Invalid")
    if new.get("reservedFor") and not new.get("allocation"):
        raise Invalid("status.reservedFor: may not be specified when allocation is not set", code=422)
    if before.get("spec") != after.get("spec"):
        raise Invalid("spec: field is immutable", code=422)
    if new.get("allocation") and not new["allocation"].get("allocationTimestamp"):
        raise Invalid("allocationTimestamp: the scheduler would never bind this", code=422)
    if len(new.get("reservedFor") or ()) > 256:
        raise Invalid("status.reservedFor: Too many: must have at most 256 items", code=422)


def _validate_pod(before: Object, after: Object) -> None:
    old = [gate["name"] for gate in before["spec"].get("schedulingGates") or ()]
    new = [gate["name"] for gate in after["spec"].get("schedulingGates") or ()]
    if any(gate not in old for gate in new):
        raise Invalid("spec.schedulingGates: only deletion is allowed", code=422)
    if before["spec"].get("nodeName") and before["spec"]["nodeName"] != after["spec"].get("nodeName"):
        raise Invalid("spec.nodeName: immutable", code=422)


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386, sharing what the patch does not touch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _json_patched(target: Object, steps: list[dict[str, Any]]) -> Object:
    """RFC 6902 as far as lifting a gate needs it: tests, and one removal from spec.schedulingGates."""
    result = target
    for step in steps:
        path = step["path"].strip("/").split("/")
        try:
            found: Any = result
            for part in path:
                found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError) as error:
            raise Invalid(f"{step['path']}: no such path", code=422) from error
        if step["op"] == "test":
            if found != step["value"]:
                raise Invalid(f"testing {step['path']} failed", code=422)
            continue
        assert step["op"] == "remove"
        assert path[:2] == ["spec", "schedulingGates"]
        gates = list(result["spec"]["schedulingGates"])
        gates.pop(int(path[2]))
        result = {**result, "spec": {**result["spec"], "schedulingGates": gates}}
    return result

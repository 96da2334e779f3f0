"""What of a write goes into the stored object: its place, its preconditions, and the part that the writer may
touch. Pure."""

from __future__ import annotations

import secrets
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.storage.store import Key
from koordra_devcluster.apiserver.storage.strategies import Strategy, duplicate

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_KEPT_METADATA: Final = (
    "name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp",
    "deletionGracePeriodSeconds", "generateName",
)  # fmt: skip


def place(kind: Kind, metadata: Object, namespace: str) -> None:
    if not kind.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def same_place(kind: Kind, metadata: Object, key: Key) -> None:
    if metadata.setdefault("name", key[1]) != key[1]:
        raise status.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({key[1]})"
        )
    place(kind, metadata, key[0])


def body_of(obj: Object) -> Object:
    """What a generation counts the changes of: everything a user writes, in built-in kinds the spec."""
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def generated_name(prefix: str) -> str:
    return prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def check_precondition(kind: Kind, asked: Object, stored: Object) -> None:
    if asked.get("uid") and asked["uid"] != stored["uid"]:
        raise status.conflict(
            kind,
            stored["name"],
            f"Precondition failed: UID in precondition: {asked['uid']}, UID in object meta: {stored['uid']}",
        )
    if asked.get("resourceVersion") not in (None, "", stored["resourceVersion"]):
        raise status.modified(kind, stored["name"])


def status_only(obj: Object, old: Object) -> Object:
    new = duplicate(old)
    if "status" in obj:
        new["status"] = obj["status"]
    else:
        new.pop("status", None)
    return new


def spec_only(obj: Object, old: Object, plan: Strategy) -> Object:
    new = obj
    kept = {name: old["metadata"][name] for name in _KEPT_METADATA if name in old["metadata"]}
    mine = {
        name: value
        for name, value in new["metadata"].items()
        if name in ("labels", "annotations", "finalizers", "ownerReferences")
    }
    new["metadata"] = mine | kept
    if plan.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = duplicate(old["status"])
    return new

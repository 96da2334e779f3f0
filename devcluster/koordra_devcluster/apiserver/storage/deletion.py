"""What a DELETE does to an object: gone at once, or marked and waiting. Pure.

Pods on a node wait for their kubelet (gracePeriodSeconds), objects with finalizers for whoever put them
there, a namespace for its contents. A later DELETE may shorten a grace period, never lengthen it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.apiserver.resources import CASCADING

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


def check_preconditions(kind: Kind, options: Object, stored: Object) -> None:
    """`stored`: the object's metadata. Raises Refusal 409 when it is not the object that was meant."""
    preconditions = options.get("preconditions") or {}
    for name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        asked = preconditions.get(name)
        if asked and asked != stored[name]:
            raise status.conflict(
                kind,
                stored["name"],
                f"Precondition failed: {label} in precondition: {asked}, {label} in object meta: {stored[name]}",
            )


def waiting(kind: Kind, old: Object, options: Object, now: datetime) -> Object | None:
    """The object marked for deletion (`old` itself when it already is), or None when nothing holds it
    back."""
    old = _held_for_dependents(kind, old, options)
    metadata = old["metadata"]
    grace = _grace_period(kind, old, options)
    if kind == kinds.NAMESPACES and (old.get("spec") or {}).get("finalizers"):
        if metadata.get("deletionTimestamp"):
            return old
        return _marked(old, now, None) | {"status": {**(old.get("status") or {}), "phase": "Terminating"}}
    if grace > 0:
        earlier = metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and (earlier is None or grace >= earlier):
            return old
        return _marked(old, now, grace)
    if metadata.get("finalizers"):
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds") == 0:
            return old
        return _marked(old, now, 0)
    return None


def _held_for_dependents(kind: Kind, old: Object, options: Object) -> Object:
    """propagationPolicy Foreground and Orphan: a finalizer that the garbage collector takes away when it is
    done."""
    finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(options.get("propagationPolicy", ""))
    held = old["metadata"].get("finalizers") or []
    if kind not in CASCADING or finalizer is None or finalizer in held:
        return old
    return old | {"metadata": old["metadata"] | {"finalizers": [*held, finalizer]}}


def may_go(kind: Kind, obj: Object) -> bool:
    """An object whose deletion only waited for finalizers, and the last one is gone."""
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if kind == kinds.NAMESPACES and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def success(kind: Kind, obj: Object) -> Object:
    """The Status that answers a DELETE after which the object is gone."""
    details: Object = {"name": obj["metadata"]["name"], "kind": kind.plural, "uid": obj["metadata"]["uid"]}
    if kind.group:
        details["group"] = kind.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _grace_period(kind: Kind, obj: Object, options: Object) -> int:
    """Seconds that a pod's containers get; everything else has none."""
    if kind != kinds.PODS:
        return 0
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    grace = int(spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked)
    return 1 if grace < 0 else grace


def _marked(old: Object, now: datetime, grace: int | None) -> Object:
    metadata = dict(old["metadata"])
    metadata["deletionTimestamp"] = format_time(now + timedelta(seconds=grace or 0))
    if grace is not None:
        metadata["deletionGracePeriodSeconds"] = grace
    if metadata.get("generation"):
        metadata["generation"] += 1
    return old | {"metadata": metadata}

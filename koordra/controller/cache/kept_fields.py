"""What is kept of the objects that the watches bring: what some part of the controller reads.

A tenant writes up to a megabyte into one object, and has thousands of them. What nobody reads goes before it
is stored: managed fields (of claims all but who allocated them), what kubectl applied last, long annotations,
programs and mounts of containers, volumes but for those with a claim and those that show annotations,
statuses of containers, images of nodes. Of a claim that has its devices, the parameters of other drivers go,
too: they are copied when it is allocated, never later. A pod that was rewritten from another stack's words
keeps its containers, which are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.compat.original_request import ANNOTATION
from koordra.controller.cache import downward

LONGEST_ANNOTATION: Final = 4 << 10
MOST_ANNOTATIONS: Final = 32 << 10
"""Characters, of the values of one object together; koordra's own and the shortest are kept."""

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_OF_CONTAINER: Final = ("name", "resources", "ports", "restartPolicy")
_OF_STATUS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def kept_of(kind: Kind) -> Callable[[Object], Object]:
    """Takes from an object of the kind what is kept of it. The object itself is not changed."""
    return partial(_kept, _RULES.get(kind.plural))


def _kept(rule: Callable[[Object], Object] | None, obj: Object) -> Object:
    metadata = objects.metadata(obj)
    left = objects.without(metadata, "managedFields")
    if metadata.get("annotations"):
        left["annotations"] = _annotations(objects.annotations_of(obj))
    found = {**obj, "metadata": left}
    return found if rule is None else {**found, **rule(obj)}


def _annotations(there: Mapping[str, str]) -> dict[str, str]:
    found, room = dict[str, str](), MOST_ANNOTATIONS
    for name, value in sorted(there.items(), key=_rank_of_annotation):
        is_ours, size = name.startswith(names.DOMAIN), len(value)
        if name != _LAST_APPLIED and size <= room and (is_ours or size <= LONGEST_ANNOTATION):
            found[name], room = value, room - size
    return found


def _rank_of_annotation(item: tuple[str, str]) -> tuple[bool, bool, int, str]:
    """First what says that a claim has its pod: crowded out, the claim would pass for one that has none."""
    name, value = item
    return name != names.POD_CLAIM_NAME, not name.startswith(names.DOMAIN), len(value), name


def _pod(pod: Object) -> Object:
    spec = objects.without(objects.spec_of(pod), "ephemeralContainers")
    if ANNOTATION not in objects.annotations_of(pod):
        for group in ("containers", "initContainers"):
            if spec.get(group):
                spec[group] = [_only(container, *_OF_CONTAINER) for container in spec[group]]
    if spec.get("volumes"):
        spec["volumes"] = [kept for volume in spec["volumes"] if (kept := _volume(volume))]
    return {"spec": spec, "status": objects.without(objects.status_of(pod), *_OF_STATUS)}


def _volume(volume: Fields) -> Object | None:
    if volume.get("ephemeral"):
        return {**_only(volume, "name"), "ephemeral": True}
    if shown := downward.items_of(volume):
        return {**_only(volume, "name"), "downwardAPI": {"items": shown}}
    return _only(volume, "name", "persistentVolumeClaim") if volume.get("persistentVolumeClaim") else None


def _claim(claim: Object) -> Object:
    status = dict(objects.status_of(claim))
    found: Object = {"metadata": _with_allocator(claim)}
    if status.get("devices"):
        status["devices"] = [objects.without(one, "data", "networkData") for one in status["devices"]]
    if allocation := status.get("allocation"):
        status["allocation"] = _with_own_config(allocation)
        found["spec"] = _with_own_config(objects.spec_of(claim))
    return found | ({"status": status} if status else {})


def _with_own_config(holder: Fields) -> Object:
    """`holder` has `devices.config`."""
    devices = objects.fields(holder.get("devices"))
    if not devices.get("config"):
        return dict(holder)
    own = [
        one for one in devices["config"] if objects.fields(one.get("opaque")).get("driver") == names.DRIVER
    ]
    return {**holder, "devices": {**devices, "config": own}}


def _with_allocator(claim: Object) -> Fields:
    """The claim's metadata, with no more of its managed fields than who wrote the allocation."""
    metadata = _kept(None, claim)["metadata"]
    for entry in objects.metadata(claim).get("managedFields") or ():
        status = objects.fields(objects.fields(entry.get("fieldsV1")).get("f:status"))
        if "f:allocation" in status:
            said: Object = {"f:status": {"f:allocation": {}}}
            return {**metadata, "managedFields": [{**_only(entry, "manager"), "fieldsV1": said}]}
    return dict(metadata)


def _node(node: Object) -> Object:
    return {"status": objects.without(objects.status_of(node), "images")}


def _only(fields: Fields, *kept: str) -> Object:
    return {name: fields[name] for name in kept if name in fields}


_RULES: Final[Mapping[str, Callable[[Object], Any]]] = {
    PODS.plural: _pod,
    RESOURCE_CLAIMS.plural: _claim,
    NODES.plural: _node,
}

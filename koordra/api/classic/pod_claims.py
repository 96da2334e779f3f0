"""Pods and the pod templates of workloads: claims referred to directly, not through `source`.

Classic DRA wrote `resourceClaims[].source.resourceClaimName`; since v1alpha3 the level `source` is gone. A workload is
whatever carries a pod template at one of the known places, so kinds need no list. Pods that use a class with suitableNodes
get the node affinity that the class used to imply (suitable_nodes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.classic.sources import Sources
from koordra.api.devices import Reader
from koordra.api.objects import Object
from koordra.errors import InvalidManifest

TEMPLATES: Final = (
    ("spec", "template"),
    ("spec", "jobTemplate", "spec", "template"),
    ("template",),
)
"""Where workloads (Deployment, Job ...), CronJobs and PodTemplates hold the pods they make."""

_SOURCE_FIELDS: Final = ("resourceClaimName", "resourceClaimTemplateName")


def is_workload(obj: Object) -> bool:
    """A Pod, or an object with a pod template."""
    if obj.get("kind") == "Pod" and obj.get("apiVersion") == "v1":
        return True
    return any(_pod_spec_at(obj, path) is not None for path in TEMPLATES)


def convert(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """The object with every `source` flattened; the very same object where nothing is classic about it."""
    if obj.get("kind") == "Pod":
        spec = _spec(obj.get("spec"), Reader(object=notes.object, field="spec"), obj, sources, notes)
        return [obj if spec is obj.get("spec") else {**_without_status(obj), "spec": spec}]
    changed: Object = obj
    for path in TEMPLATES:
        found = _pod_spec_at(obj, path)
        if found is not None:
            read = Reader(object=notes.object, field=".".join((*path, "spec")))
            spec = _spec(found, read, obj, sources, notes)
            if spec is not found:
                changed = _replaced(_without_status(changed), (*path, "spec"), spec)
    return [changed]


def _without_status(obj: Object) -> Object:
    kept = {name: value for name, value in obj.items() if name != "status"}
    return {**kept, "metadata": fresh_metadata(obj)}


def _spec(raw: object, read: Reader, obj: Object, sources: Sources, notes: Notes) -> Any:
    spec = read.mapping(raw)
    at = read.at("resourceClaims")
    entries = at.sequence(spec.get("resourceClaims"))
    made = [_entry(entry, at.at(f"[{index}]"), notes) for index, entry in enumerate(entries)]
    result = raw
    if any("source" in at.mapping(entry) for entry in entries):
        result = {**spec, "resourceClaims": made}
    nodes = _suitable_nodes(made, obj, sources)
    if nodes:
        result = suitable_nodes.require(result if isinstance(result, Mapping) else {}, nodes)
        notes.warn(
            read.at("affinity").field, "node affinity is added for the suitableNodes of the pod's classes"
        )
    return result


def _entry(raw: object, read: Reader, notes: Notes) -> Object:
    data = read.mapping(raw)
    if "source" not in data:
        return dict(data)
    source = read.at("source").mapping(data["source"])
    unknown = sorted(str(name) for name in set(source) - set(_SOURCE_FIELDS))
    if unknown:
        raise notes.refuse(
            read.at("source").at(unknown[0]).field,
            "is no field of source",
            f"fields are {', '.join(_SOURCE_FIELDS)}",
        )
    names = {name: read.at("source").at(name).text(source.get(name)) for name in _SOURCE_FIELDS}
    given = {name: value for name, value in names.items() if value}
    if len(given) != 1:
        raise notes.refuse(
            read.at("source").field,
            "names both a claim and a template" if given else "names neither a claim nor a template",
            f"write exactly one of {' and '.join(_SOURCE_FIELDS)}",
        )
    kept = {name: value for name, value in data.items() if name != "source"}
    twice = [name for name in _SOURCE_FIELDS if kept.get(name)]
    if twice and {name: kept[name] for name in twice} != given:
        raise notes.refuse(
            read.at(twice[0]).field, "and source say different things", "keep one of the two forms"
        )
    return {**kept, **given}


def _suitable_nodes(entries: list[Object], obj: Object, sources: Sources) -> list[Object]:
    """The node selectors of the classic classes that the pod's claims ask for, each once."""
    found: list[Object] = []
    for entry in entries:
        for name, kind in zip(_SOURCE_FIELDS, ("ResourceClaim", "ResourceClaimTemplate"), strict=True):
            claim = entry.get(name)
            if not isinstance(claim, str):
                continue
            of = sources.class_of_claim(claim, kind=kind, namespace=objects.namespace(obj))
            raw = (sources.classes.get(of) or {}).get("suitableNodes")
            if raw is None:
                continue
            try:
                selector = suitable_nodes.checked(raw, Reader(object=of, field="suitableNodes"))
            except InvalidManifest:
                continue  # the class itself is refused, with the same words
            if selector not in found:
                found.append(selector)
    return found


def _pod_spec_at(obj: Object, path: tuple[str, ...]) -> Mapping[str, Any] | None:
    found: Any = obj
    for part in (*path, "spec"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    if isinstance(found, Mapping) and isinstance(found.get("containers"), list):
        return found
    return None


def _replaced(obj: Object, path: tuple[str, ...], value: object) -> Object:
    if not path:
        return value  # type: ignore[return-value]
    inner = obj.get(path[0])
    return {**obj, path[0]: _replaced(inner if isinstance(inner, dict) else {}, path[1:], value)}

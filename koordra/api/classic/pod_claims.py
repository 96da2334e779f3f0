"""Pods and the pod templates of workloads: claims referred to directly, not through `source`.

Classic DRA wrote `resourceClaims[].source.resourceClaimName`; since v1alpha3 the level `source` is gone. Pods that use a class
with suitableNodes get the node affinity that the class used to imply (suitable_nodes).
"""

from __future__ import annotations

from typing import Any, Final

from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.classic.sources import Sources
from koordra.api.objects import Object
from koordra.api.pods import at, pods_in, replaced, spelled
from koordra.api.reader import Reader
from koordra.errors import InvalidManifest

_SOURCE_FIELDS: Final = ("resourceClaimName", "resourceClaimTemplateName")


def convert(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """The object with every `source` flattened; the very same object where nothing is classic about it."""
    changed = obj
    for path in pods_in(obj):
        place = (*path, "spec")
        read = Reader(at(obj, place), object=notes.object, field=spelled(place).rstrip("."))
        spec = _spec(read, obj, sources, notes)
        if spec is not read.data:
            kept = {name: value for name, value in changed.items() if name != "status"}
            changed = replaced({**kept, "metadata": fresh_metadata(obj)}, place, spec)
    return [changed]


def _spec(read: Reader, obj: Object, sources: Sources, notes: Notes) -> Any:
    entries = list(read.each("resourceClaims"))
    made = [_entry(entry) for entry in entries]
    result = read.data
    if any("source" in entry.data for entry in entries):
        result = {**result, "resourceClaims": made}
    nodes = _suitable_nodes(made, obj, sources)
    if nodes:
        result = suitable_nodes.require(result, nodes)
        notes.warn(
            read.place("affinity"), "node affinity is added for the suitableNodes of the pod's classes"
        )
    return result


def _entry(read: Reader) -> Object:
    if "source" not in read.data:
        return dict(read.data)
    source = read.inner("source")
    source.only(*_SOURCE_FIELDS, problem="is no field of source")
    given = {name: value for name in _SOURCE_FIELDS if (value := source.text(name))}
    if len(given) != 1:
        raise source.wrong(
            "names both a claim and a template" if given else "names neither a claim nor a template",
            f"write exactly one of {' and '.join(_SOURCE_FIELDS)}",
        )
    kept = {name: value for name, value in read.data.items() if name != "source"}
    twice = [name for name in _SOURCE_FIELDS if kept.get(name)]
    if twice and {name: kept[name] for name in twice} != given:
        raise read.wrong("and source say different things", "keep one of the two forms", at=twice[0])
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
                selector = suitable_nodes.checked(Reader(raw, object=of, field="suitableNodes"))
            except InvalidManifest:
                continue  # the class itself is refused, with the same words
            if selector not in found:
                found.append(selector)
    return found

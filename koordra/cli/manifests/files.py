"""The objects in manifest files, for the commands that work offline.

Files hold YAML documents, JSON, or JSON lines; Lists are taken apart. What koordra reads without looking twice, because an API
server would have checked it, is checked here: a wrong shape is an InvalidManifest that names file, document and field, never
a traceback. An object that is there twice, word by word, is one object.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.request.templates import with_template_claims
from koordra.api.pods import at, pods_in
from koordra.errors import InvalidManifest

Manifest = Mapping[str, Any]

_MOST_SHOWN: Final = 60
_COLONS: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$")
"""`12:30`, a number to base 60 for YAML 1.1 and a text for Kubernetes."""

_TEXTS: Final = "texts"
_OBJECTS: Final = "objects"
_OBJECT: Final = "object"
_TEXT: Final = "text"
_LIST: Final = "list"

_SHAPES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "metadata": _OBJECT,
        "metadata.name": _TEXT,
        "metadata.namespace": _TEXT,
        "metadata.uid": _TEXT,
        "metadata.labels": _TEXTS,
        "metadata.annotations": _TEXTS,
        "spec": _OBJECT,
        "status": _OBJECT,
    },
    "Node": {"spec.taints": _OBJECTS, "status.allocatable": _OBJECT, "status.conditions": _OBJECTS},
    "Pod": {
        "spec.nodeName": _TEXT,
        "spec.nodeSelector": _TEXTS,
        "spec.containers": _OBJECTS,
        "spec.initContainers": _OBJECTS,
        "spec.overhead": _OBJECT,
        "spec.resources": _OBJECT,
        "spec.resourceClaims": _OBJECTS,
        "spec.tolerations": _OBJECTS,
        "spec.affinity": _OBJECT,
        "spec.affinity.nodeAffinity": _OBJECT,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": _OBJECT,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": _OBJECTS,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions": _OBJECTS,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchFields": _OBJECTS,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.values": _LIST,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchFields.values": _LIST,
        "spec.containers.resources": _OBJECT,
        "spec.initContainers.resources": _OBJECT,
        "spec.containers.resources.requests": _OBJECT,
        "spec.containers.resources.limits": _OBJECT,
        "spec.initContainers.resources.requests": _OBJECT,
        "spec.initContainers.resources.limits": _OBJECT,
        "status.resourceClaimStatuses": _OBJECTS,
    },
    "ResourceClaimTemplate": {"spec.metadata": _OBJECT, "spec.spec": _OBJECT},
    "ResourceSlice": {"spec.pool": _OBJECT, "spec.nodeSelector": _OBJECT, "spec.devices": _OBJECTS},
    "ResourceClaim": {
        "status.allocation": _OBJECT,
        "status.allocation.nodeSelector": _OBJECT,
        "status.allocation.nodeSelector.nodeSelectorTerms": _OBJECTS,
        "status.reservedFor": _OBJECTS,
    },
}
"""Per kind ("" is every kind) the fields that are read as they are, and what they have to be."""


def read_objects(files: Sequence[str]) -> list[Manifest]:
    """Every object of the files, Lists taken apart, claims made from templates, koordra's classes added where missing.

    Raises InvalidManifest naming file and place.
    """
    found = _once([entry for name in files for entry in _read(name)])
    return [*with_template_claims(found), *_missing_classes(found)]


def read_manifests(files: Sequence[str]) -> list[Manifest]:
    """Every object of the files as it is written, Lists taken apart, for commands that check it themselves.

    Raises InvalidManifest, naming file and place, for what is no object.
    """
    return [entry for name in files for entry in _read(name, checked=False)]


def with_workload_pods(manifests: Sequence[Manifest]) -> tuple[list[Manifest], list[str]]:
    """The objects, and one pod with its claims for every workload that no cluster runs yet; a line for people about each pod.

    A Deployment in a file stands for pods. Its first replica is planned, under the name `<kind>-<name>`: `deployment-web`. Left
    out are objects that an API server has stored (they have a uid), since their pods are among the objects too, pod templates
    without claims, which ask nothing of koordra, and workloads without replicas.
    """
    made: list[Manifest] = []
    notes: list[str] = []
    for obj in manifests:
        if obj["metadata"].get("uid") or obj["kind"] == "Pod":
            continue
        for number, pod in enumerate(_template_pods(obj)):
            name, who = _pod_name(obj, number), f"{obj['kind']} {obj['metadata'].get('name') or ''}".rstrip()
            metadata = {**pod["metadata"], "name": name, "namespace": _pod_namespace(obj, pod)}
            made.extend(_objects({**pod, "metadata": metadata}, where=f"{who}: pod template"))
            notes.append(f"{who}: one of its pods is planned, {name}")
    templates = [entry for entry in manifests if entry.get("kind") == "ResourceClaimTemplate"]
    with_claims = with_template_claims([*templates, *made])
    return [*manifests, *with_claims[len(templates) :]], notes


def _template_pods(obj: Manifest) -> Iterator[Manifest]:
    spec = obj.get("spec")
    if isinstance(spec, Mapping) and spec.get("replicas") == 0:
        return
    for path in pods_in(dict(obj)):
        template = at(dict(obj), path)
        if template["spec"].get("resourceClaims"):
            metadata = template.get("metadata")
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata if isinstance(metadata, Mapping) else {},
                "spec": template["spec"],
            }


def _pod_name(obj: Manifest, number: int) -> str:
    name = f"{obj['kind']}-{obj['metadata'].get('name') or obj['metadata'].get('generateName', '').rstrip('-')}".lower()
    return f"{name}-{number + 1}" if number else name


def _pod_namespace(obj: Manifest, pod: Manifest) -> str:
    return str(obj["metadata"].get("namespace") or pod["metadata"].get("namespace") or "default")


def _read(name: str, *, checked: bool = True) -> Iterator[Manifest]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidManifest(f"cannot be read: {error.strerror}", object=name) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"is not text in UTF-8: {error}", object=name) from error
    for number, document in enumerate(_documents(text, name), start=1):
        if document is not None:
            yield from _objects(document, where=f"{name} document {number}", checked=checked)


def _documents(text: str, name: str) -> list[object]:
    """JSON, one or several values after each other, where the text begins like it; otherwise YAML."""
    if text.lstrip()[:1] == "{":
        try:
            return list(_json_values(text))
        except ValueError:
            pass  # YAML's flow style begins like this too

    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(safe):  # type: ignore[misc]
        """Dates stay the texts that they are in JSON, and so do `12:30` and `=`, as for kubectl."""

        yaml_implicit_resolvers: Final = {
            first: [
                (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))
            ]
            for first, resolvers in safe.yaml_implicit_resolvers.items()
        }

    for first in "+-0123456789":
        Loader.yaml_implicit_resolvers[first].insert(0, ("tag:yaml.org,2002:str", _COLONS))

    try:
        return list(yaml.load_all(text, Loader=Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidManifest(f"is not YAML: {' '.join(str(error).split())}", object=name) from error


def _json_values(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value


def _objects(document: object, *, where: str, checked: bool = True) -> Iterator[Manifest]:
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise InvalidManifest(
            "is not a Kubernetes object", object=where, remedy="write apiVersion, kind and metadata"
        )
    items = document.get("items")
    if document["kind"].endswith("List") and isinstance(items, list):
        # kubectl leaves kind out of the items of typed lists.
        kind = document["kind"].removesuffix("List")
        for number, item in enumerate(items):
            filled = {"kind": kind, **item} if kind and isinstance(item, Mapping) else item
            yield from _objects(filled, where=f"{where} items[{number}]", checked=checked)
        return
    if not isinstance(document.get("metadata"), Mapping):
        raise InvalidManifest("has no metadata", object=where, field="metadata", remedy="give it a name")
    for shapes in (_SHAPES[""], _SHAPES.get(document["kind"], {})) if checked else ():
        for path, shape in shapes.items():
            _check(document, path.split("."), shape, where=where, field="")
    yield document


def _check(value: object, path: Sequence[str], shape: str, *, where: str, field: str) -> None:
    """Raises InvalidManifest where the field is there and is not what it has to be; lists on the way are walked."""
    if isinstance(value, list):
        for number, entry in enumerate(value):
            _check(entry, path, shape, where=where, field=f"{field}[{number}]")
    elif path:
        found = value.get(path[0]) if isinstance(value, Mapping) else None
        if found is not None:
            inner = f"{field}.{path[0]}" if field else path[0]
            if len(path) == 1:
                _check_value(found, shape, where=where, field=inner)
            else:
                _check(found, path[1:], shape, where=where, field=inner)


def _check_value(value: object, shape: str, *, where: str, field: str) -> None:
    if shape == _TEXT and not isinstance(value, str):
        raise InvalidManifest(f"{_short(value)} is not a text", object=where, field=field, remedy="quote it")
    if shape in (_OBJECT, _TEXTS) and not isinstance(value, Mapping):
        raise InvalidManifest("is not an object", object=where, field=field)
    if shape == _LIST and not isinstance(value, list):
        raise InvalidManifest("is not a list", object=where, field=field)
    if shape == _OBJECTS and not (
        isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
    ):
        raise InvalidManifest("is not a list of objects", object=where, field=field)
    if shape == _TEXTS and isinstance(value, Mapping):
        for key, entry in value.items():
            if not isinstance(key, str) or not isinstance(entry, str):
                shown = f"{_short(key)}: {_short(entry)}"
                raise InvalidManifest(f"{shown} is not a text", object=where, field=field, remedy="quote it")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _once(found: Sequence[Manifest]) -> list[Manifest]:
    """Without objects of a name that are there again word by word, as when a file is given twice."""
    kept: dict[tuple[str, str, str], list[Manifest]] = {}
    unique = []
    for entry in found:
        metadata = entry["metadata"]
        if metadata.get("name"):
            same = kept.setdefault((entry["kind"], metadata.get("namespace") or "", metadata["name"]), [])
            if entry in same:
                continue
            same.append(entry)
        unique.append(entry)
    return unique


def _missing_classes(found: Sequence[Manifest]) -> list[Manifest]:
    """koordra's DeviceClasses that the objects ask for and do not bring along: those of every cluster with koordra."""
    there = {entry["metadata"].get("name") for entry in found if entry["kind"] == "DeviceClass"}
    return [entry for entry in shipped_classes() if entry["metadata"]["name"] not in there]

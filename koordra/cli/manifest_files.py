"""The objects in manifest files, for the commands that work offline.

Files hold YAML documents, JSON, or JSON lines; Lists are taken apart. What koordra reads without looking
twice, because an API server would have checked it, is checked here: a wrong shape is an InvalidManifest that
names file, document and field, never a traceback. An object that is there twice, word by word, is one object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from koordra.allocator.request.classes import shipped_classes
from koordra.api.field_types import parse_types, wrong_fields
from koordra.api.objects import Fields
from koordra.api.pods import pods_in
from koordra.errors import InvalidManifest
from koordra.inert import inert
from koordra.spelling import meant
from koordra.yaml_text import read_yaml

_FIELD_TYPES: Final = parse_types("""
Object: metadata Metadata, spec {}open, status {}open
Metadata: name text, namespace text, uid text, labels {}text, annotations {}text
Node: metadata Metadata, spec NodeSpec, status NodeStatus
NodeSpec: taints []{}open
NodeStatus: allocatable {}open, conditions []{}open
Pod: metadata Metadata, spec PodSpec, status PodStatus
PodSpec: nodeName text, nodeSelector {}text, containers []Container, initContainers []Container, overhead {}open, resources {}open, resourceClaims []{}open, tolerations []{}open, affinity Affinity
PodStatus: resourceClaimStatuses []{}open
Affinity: nodeAffinity NodeAffinity
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution NodeSelector
NodeSelector: nodeSelectorTerms []NodeSelectorTerm
NodeSelectorTerm: matchExpressions []Requirement, matchFields []Requirement
Requirement: values []open
Container: resources Resources
Resources: requests {}open, limits {}open
ResourceClaimTemplate: metadata Metadata, spec TemplateSpec, status {}open
TemplateSpec: metadata {}open, spec {}open
ResourceSlice: metadata Metadata, spec SliceSpec, status {}open
SliceSpec: pool {}open, nodeSelector {}open, devices []{}open
ResourceClaim: metadata Metadata, spec {}open, status ClaimStatus
ClaimStatus: allocation Allocation, reservedFor []{}open
Allocation: nodeSelector AllocationSelector
AllocationSelector: nodeSelectorTerms []{}open
""")
"""The fields that are read as they are, and what they have to be. `Object` is every kind without a line."""


def read_objects(files: Sequence[str]) -> list[Fields]:
    """Every object of the files, Lists taken apart, koordra's classes added where missing.

    Raises InvalidManifest naming file and place.
    """
    found = _once(_some([entry for name in files for entry in _read(name)], files))
    there = {entry["metadata"].get("name") for entry in found if entry["kind"] == "DeviceClass"}
    return [*found, *(entry for entry in shipped_classes() if entry["metadata"]["name"] not in there)]


def read_manifests(files: Sequence[str]) -> list[Fields]:
    """Every object of the files as it is written, Lists taken apart, for commands that check it themselves.

    Raises InvalidManifest, naming file and place, for what is no object.
    """
    return _some([entry for name in files for entry in _read(name, checked=False)], files)


def _some(found: list[Fields], files: Sequence[str]) -> list[Fields]:
    """An empty file is a slip: a name mistyped behind `>`, a template that came to nothing."""
    if files and not found:
        raise InvalidManifest("holds no object", object=", ".join(files), remedy="give it at least one")
    return found


_PART: Final = frozenset(
    {
        "ClusterNetworkTopology",
        "DeviceClass",
        "DeviceHold",
        "DeviceTaintRule",
        "Event",
        "HyperNode",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "PodGroup",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "ResourceClass",
        "ResourceClassParameters",
        "ResourceQuota",
        "ResourceSlice",
        "Topology",
        "Workload",
    }
)
"""Kinds that placements depend on; all others do by the pods in them alone."""
_CLUSTER: Final = (
    "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o yaml > cluster.yaml"
)


def notes_on(manifests: Sequence[Fields]) -> list[str]:
    """What is told of the files besides the answer: kinds that have no part in it, and that there are no
    nodes."""
    other = Counter(
        str(one["kind"]) for one in manifests if one["kind"] not in _PART and not any(pods_in(dict(one)))
    )
    notes = []
    if other:
        named = [f"{number} {inert(kind)}{_meant(kind)}" for kind, number in sorted(other.items())]
        notes.append(f"no part in this have {', '.join(named)}")
    if not any(one["kind"] in ("Node", "ResourceSlice") for one in manifests):
        notes.append(
            f"there are no nodes in the files: add those of a cluster ({_CLUSTER}) with -f cluster.yaml"
        )
    return notes


def _meant(kind: str) -> str:
    close = meant(kind, sorted(_PART))
    return f" (did you mean {close}?)" if close else ""


def read_text(name: str | Path) -> str:
    """The text of a file, or of stdin (`-`). Raises InvalidManifest naming the file."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        remedy = (
            "name the files in it, each with a -f of its own" if isinstance(error, IsADirectoryError) else ""
        )
        raise InvalidManifest(f"cannot be read: {error.strerror}", object=str(name), remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"is not text in UTF-8: {error}", object=str(name)) from error


def _read(name: str, *, checked: bool = True) -> Iterator[Fields]:
    for number, document in enumerate(_documents(read_text(name), name), start=1):
        if document is not None:
            yield from objects_in(document, where=f"{name} document {number}", checked=checked)


def _documents(text: str, name: str) -> list[object]:
    """JSON, one or several values after each other, where the text begins like it; otherwise YAML."""
    if text.lstrip()[:1] == "{":
        try:
            return list(_json_values(text))
        except (ValueError, RecursionError):
            pass  # YAML's flow style begins like this too

    return read_yaml(text, source=name)


def _json_values(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value


def objects_in(document: object, *, where: str, checked: bool = True) -> Iterator[Fields]:
    """The object that a document is, or the items of a List. Raises InvalidManifest, saying `where`."""
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
            yield from objects_in(filled, where=f"{where} items[{number}]", checked=checked)
        return
    if not isinstance(document.get("metadata"), Mapping):
        raise InvalidManifest("has no metadata", object=where, field="metadata", remedy="give it a name")
    kind = document["kind"] if document["kind"] in _FIELD_TYPES else "Object"
    for path, problem, remedy in wrong_fields(document, kind, _FIELD_TYPES) if checked else ():
        raise InvalidManifest(problem, object=where, field=path, remedy=remedy)
    yield document


def _once(found: Sequence[Fields]) -> list[Fields]:
    """Without objects of a name that are there again word by word, as when a file is given twice."""
    kept: dict[tuple[str, str, str], list[Fields]] = {}
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

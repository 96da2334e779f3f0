"""Classic `suitableNodes`: where the devices of a class may be used.

v1 has no such field. It is kept in two ways that a node can be held to: an annotation on the DeviceClass, which koordra's
controller reads for its own devices, and node affinity on the pods of the same input that use the class.

A node selector is an "or" of terms, each an "and" of expressions; two of them together are the product of their terms.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api import objects
from koordra.api.devices import Reader
from koordra.api.objects import Object
from koordra.errors import InvalidManifest

SUITABLE_NODES: Final = "koordra.io/suitable-nodes"
"""Annotation on a DeviceClass: a NodeSelector as JSON. Only nodes that it selects serve the class."""

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def checked(raw: object, read: Reader) -> Object:
    """A NodeSelector as the API server would accept it. Raises InvalidManifest."""
    data = read.mapping(raw)
    terms = read.at("nodeSelectorTerms").sequence(data.get("nodeSelectorTerms"))
    if not terms:
        raise read.at("nodeSelectorTerms").wrong(
            "is empty and selects no node", "write a term, or leave it out"
        )
    for index, term in enumerate(terms):
        inner = read.at(f"nodeSelectorTerms[{index}]")
        data_of_term = inner.mapping(term)
        for part in ("matchExpressions", "matchFields"):
            for number, entry in enumerate(inner.at(part).sequence(data_of_term.get(part))):
                _check_expression(entry, inner.at(f"{part}[{number}]"))
        unknown = sorted(set(data_of_term) - {"matchExpressions", "matchFields"})
        if unknown:
            raise inner.at(unknown[0]).wrong("is no field of a term", "use matchExpressions or matchFields")
    return {"nodeSelectorTerms": [dict(term) for term in terms]}


def _check_expression(raw: object, read: Reader) -> None:
    data = read.mapping(raw)
    read.at("key").text(data.get("key"), required=True)
    operator = read.at("operator").text(data.get("operator"), required=True)
    if operator not in _OPERATORS:
        raise read.at("operator").wrong(f"{operator!r} is no operator", f"use one of {', '.join(_OPERATORS)}")
    values = read.at("values").texts(data.get("values"))
    wants = operator not in ("Exists", "DoesNotExist")
    if wants != bool(values):
        raise read.at("values").wrong(
            f"{operator} with {len(values)} values", "add values" if wants else "leave the values out"
        )


def annotation(selector: Mapping[str, Any]) -> str:
    """The text of the annotation; the same selector is always the same text."""
    return json.dumps(selector, sort_keys=True, separators=(",", ":"))


def of_device_class(device_class: Mapping[str, Any]) -> Object | None:
    """The nodes that serve a DeviceClass, or None where all do. Raises InvalidManifest where the text is broken."""
    text = objects.annotations_of(device_class).get(SUITABLE_NODES)
    if text is None:
        return None
    read = Reader(object=objects.describe(device_class), field=f"metadata.annotations[{SUITABLE_NODES}]")
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise read.wrong(
            "is not JSON", "write a NodeSelector, or make the class by a ResourceClass"
        ) from error
    return checked(found, read)


def both(selectors: Sequence[Mapping[str, Any]]) -> Object:
    """The nodes that all of the selectors select."""
    terms = []
    for combination in itertools.product(*(selector["nodeSelectorTerms"] for selector in selectors)):
        term: Object = {}
        for part in ("matchExpressions", "matchFields"):
            entries = [entry for one in combination for entry in one.get(part) or ()]
            unique = [entry for number, entry in enumerate(entries) if entry not in entries[:number]]
            if unique:
                term[part] = unique
        terms.append(term)
    return {"nodeSelectorTerms": terms}


def require(pod_spec: Mapping[str, Any], selectors: Sequence[Mapping[str, Any]]) -> Object:
    """The pod's spec with required node affinity for all of the selectors, on top of its own."""
    affinity = dict(pod_spec.get("affinity") or {})
    on_nodes = dict(affinity.get("nodeAffinity") or {})
    own = on_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    if own is not None and not isinstance(own, Mapping):
        raise InvalidManifest("is not an object", field="spec.affinity.nodeAffinity")
    on_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = both([*([own] if own else []), *selectors])
    return {**pod_spec, "affinity": {**affinity, "nodeAffinity": on_nodes}}

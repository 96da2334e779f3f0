"""Classic `suitableNodes`: where the devices of a class may be used.

v1 has no such field. It is kept in two ways that a node can be held to: an annotation on the DeviceClass,
which koordra's controller reads for its own devices, and node affinity on the pods of the same input that use
the class.

A node selector is an "or" of terms, each an "and" of expressions; two of them together are the product of
their terms.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader
from koordra.errors import InvalidManifest

SUITABLE_NODES: Final = "koordra.io/suitable-nodes"
"""Annotation on a DeviceClass: a NodeSelector as JSON. Only nodes that it selects serve the class."""

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
MOST_TERMS: Final = 1_000
"""Terms that a pod's node affinity comes to with those of its classes."""

_PARTS: Final = ("matchExpressions", "matchFields")


def checked(read: Reader) -> Object:
    """A NodeSelector as the API server would accept it. Raises InvalidManifest."""
    terms = list(read.each("nodeSelectorTerms"))
    if not terms:
        raise read.wrong(
            "is empty and selects no node", "write a term, or leave it out", at="nodeSelectorTerms"
        )
    for term in terms:
        for part in _PARTS:
            for expression in term.each(part):
                _check_expression(expression)
        term.only(*_PARTS, problem="is no field of a term")
    return {"nodeSelectorTerms": [dict(term.data) for term in terms]}


def _check_expression(read: Reader) -> None:
    read.required("key")
    operator = read.required("operator")
    read.choice("operator", _OPERATORS, problem="is no operator")
    values = read.texts("values")
    wants = operator not in ("Exists", "DoesNotExist")
    if wants != bool(values):
        raise read.wrong(
            f"{operator} with {len(values)} values",
            "add values" if wants else "leave the values out",
            at="values",
        )


def annotation(read: Reader) -> dict[str, str]:
    """The annotation for the field of a class, none where it has no such field. The same selector is always
    the same text."""
    nodes = read.optional("suitableNodes")
    if nodes is None:
        return {}
    return {SUITABLE_NODES: json.dumps(checked(nodes), sort_keys=True, separators=(",", ":"))}


def of_device_class(device_class: Fields) -> Object | None:
    """The nodes that serve a DeviceClass, or None where all do. Raises InvalidManifest where the text is
    broken."""
    text = objects.annotations_of(device_class).get(SUITABLE_NODES)
    if text is None:
        return None
    about, field = objects.describe(device_class), f"metadata.annotations[{SUITABLE_NODES}]"
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidManifest(
            "is not JSON",
            object=about,
            field=field,
            remedy="write a NodeSelector, or make the class by a ResourceClass",
        ) from error
    return checked(Reader(found, object=about, field=field))


def both(selectors: Sequence[Fields]) -> Object:
    """The nodes that all of the selectors select. Raises InvalidManifest where they come to more than
    MOST_TERMS terms: the number of each multiplied, of which a pod's own are its author's."""
    number = math.prod(len(selector["nodeSelectorTerms"]) for selector in selectors)
    if number > MOST_TERMS:
        raise InvalidManifest(
            f"the terms of the pod and of its claims' classes come to {number} together, and {MOST_TERMS} is the most",
            field="spec.affinity.nodeAffinity",
            remedy="write fewer nodeSelectorTerms, or use fewer classes with suitable nodes in one pod",
        )
    terms = []
    for combination in itertools.product(*(selector["nodeSelectorTerms"] for selector in selectors)):
        term: Object = {}
        for part in _PARTS:
            entries = [entry for one in combination for entry in one.get(part) or ()]
            unique = [entry for number, entry in enumerate(entries) if entry not in entries[:number]]
            if unique:
                term[part] = unique
        terms.append(term)
    return {"nodeSelectorTerms": terms}


def require(pod_spec: Fields, selectors: Sequence[Fields]) -> Object:
    """The pod's spec with required node affinity for all of the selectors, on top of its own."""
    affinity = dict(pod_spec.get("affinity") or {})
    on_nodes = dict(affinity.get("nodeAffinity") or {})
    own = on_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    if own is not None and not isinstance(own, Mapping):
        raise InvalidManifest("is not an object", field="spec.affinity.nodeAffinity")
    on_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = both([*([own] if own else []), *selectors])
    return {**pod_spec, "affinity": {**affinity, "nodeAffinity": on_nodes}}

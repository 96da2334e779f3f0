"""What a pod says about nodes, in the part that many nodes can answer alike.

Node selector, required node affinity, tolerations and the node's name are judged by `allocator.predicates`, as everywhere. Here they
are only taken apart: which labels they read (`labels_read`), what remains of them where some labels are not known (`weakened`:
what cannot be judged counts as met), and the nodes that they call by name (`named`), which are no set worth remembering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api import objects

Pod = Mapping[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
_FIELD: Final = "metadata.name"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def said_by(pod: Pod) -> str:
    """All that the pod says about nodes, as a text that is equal for equal words; empty for most pods."""
    spec = objects.spec_of(pod)
    said = [spec.get("nodeName"), spec.get("nodeSelector"), spec.get("tolerations"), _required(spec)]
    return json.dumps(said, sort_keys=True, default=str) if any(said) else ""


def labels_read(pods: Sequence[Pod]) -> frozenset[str]:
    """Labels of nodes that decide, without the one that is every node's own."""
    found: set[str] = set()
    for pod in pods:
        spec = objects.spec_of(pod)
        found |= set(map(str, spec.get("nodeSelector") or ()))
        for term in _terms(_required(spec)):
            found |= {str(one.get("key")) for one in _entries(term, "matchExpressions")}
    return frozenset(found - {HOSTNAME})


def weakened(pod: Pod, known: frozenset[str]) -> Pod:
    """The pod's words about nodes of which these labels are known."""
    spec = objects.spec_of(pod)
    left: dict[str, Any] = {}
    selector = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if key in known}
    if selector:
        left["nodeSelector"] = selector
    if spec.get("tolerations"):
        left["tolerations"] = spec["tolerations"]
    required = _required(spec)
    if required is not None:
        terms = [_weakened(term, known) for term in _terms(required)]
        if None not in terms:
            left["affinity"] = {"nodeAffinity": {_REQUIRED: {**required, "nodeSelectorTerms": terms}}}
    return {"spec": left}


def named(pods: Sequence[Pod]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Nodes by name and by host name, one of which it must be; None where the pods call none by name."""
    for pod in pods:
        spec = objects.spec_of(pod)
        if spec.get("nodeName"):
            return frozenset({str(spec["nodeName"])}), frozenset()
        host = (spec.get("nodeSelector") or {}).get(HOSTNAME)
        if host:
            return frozenset(), frozenset({str(host)})
        terms = [_called(term) for term in _terms(_required(spec))]
        if terms and all(one is not None for one in terms):
            called = [one for one in terms if one is not None]
            return frozenset().union(*(one[0] for one in called)), frozenset().union(
                *(one[1] for one in called)
            )
    return None


def _called(term: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]] | None:
    for at, place, key in ((0, "matchFields", _FIELD), (1, "matchExpressions", HOSTNAME)):
        for one in _entries(term, place):
            if one.get("key") == key and one.get("operator") == "In":
                values = frozenset(map(str, one.get("values") or ()))
                return (values, frozenset()) if at == 0 else (frozenset(), values)
    return None


def _weakened(term: Mapping[str, Any], known: frozenset[str]) -> Mapping[str, Any] | None:
    """None for a term that any of these nodes may meet."""
    kept = [one for one in _entries(term, "matchExpressions") if one.get("key") in known]
    if kept:
        return {"matchExpressions": kept}
    return None if _entries(term, "matchExpressions") or _entries(term, "matchFields") else term


def _required(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    affinity = spec.get("affinity")
    of_nodes = affinity.get("nodeAffinity") if isinstance(affinity, Mapping) else None
    found = of_nodes.get(_REQUIRED) if isinstance(of_nodes, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _terms(required: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return [] if required is None else _mappings(required.get("nodeSelectorTerms"))


def _entries(term: Mapping[str, Any], place: str) -> Sequence[Mapping[str, Any]]:
    return _mappings(term.get(place))


def _mappings(value: object) -> Sequence[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []

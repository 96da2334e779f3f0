"""What a pod says of nodes: node selector, required node affinity, tolerations and the node's name. `allocator.predicates` judges it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api import objects

Pod = Mapping[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def node_constraints_text(pod: Pod) -> str:
    """All that the pod says about nodes, as a text that is equal for equal words; empty for most pods."""
    spec = objects.spec_of(pod)
    said = [spec.get("nodeName"), spec.get("nodeSelector"), spec.get("tolerations"), _required(spec)]
    return _ENCODER.encode(said) if any(said) else ""


def chooses_nodes(pod: Pod) -> bool:
    """Whether the pod speaks of names or labels of nodes."""
    spec = objects.spec_of(pod)
    return bool(spec.get("nodeName") or spec.get("nodeSelector") or _required(spec))


def labels_read(pods: Sequence[Pod]) -> frozenset[str]:
    """Labels of nodes that decide, without the one that is every node's own."""
    found: set[str] = set()
    for pod in pods:
        spec = objects.spec_of(pod)
        found |= set(map(str, spec.get("nodeSelector") or ()))
        for term in _mappings((_required(spec) or {}).get("nodeSelectorTerms")):
            found |= {str(one.get("key")) for one in _mappings(term.get("matchExpressions"))}
    return frozenset(found - {HOSTNAME})


def _required(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    affinity = spec.get("affinity")
    of_nodes = affinity.get("nodeAffinity") if isinstance(affinity, Mapping) else None
    found = (
        of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
        if isinstance(of_nodes, Mapping)
        else None
    )
    return found if isinstance(found, Mapping) else None


def _mappings(value: object) -> Sequence[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []

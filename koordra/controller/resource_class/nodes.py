"""suitableNodes, honoured: a pod goes only to nodes that serve every class its claims name.

The restriction stands as an annotation on the DeviceClass and is laid over the pod as required node affinity, so that the
allocator, and in native mode kube-scheduler, see one rule they know. A class that is only an alternative (`firstAvailable`)
restricts the pod all the same: never a wrong node, though a claim may wait that the other alternative would have served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api.classic import suitable_nodes
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.errors import InvalidManifest


def restrictions(claims: Iterable[Mapping[str, Any]], classes: Mapping[str, Object]) -> list[Object]:
    """The node selectors of the classes that the claims name, each once. A broken annotation selects no node."""
    found: list[Object] = []
    for name in dict.fromkeys(name for claim in claims for name in claims_of.class_names(claim)):
        device_class = classes.get(name)
        if device_class is None:
            continue
        try:
            selector = suitable_nodes.of_device_class(device_class)
        except InvalidManifest:
            selector = {"nodeSelectorTerms": [{"matchFields": [_NOWHERE]}]}
        if selector is not None and selector not in found:
            found.append(selector)
    return found


_NOWHERE = {"key": "metadata.name", "operator": "In", "values": ["koordra.io-suitable-nodes-cannot-be-read"]}


def on_suitable_nodes(
    pod: Object, claims: Iterable[Mapping[str, Any]], classes: Mapping[str, Object]
) -> Object:
    """The pod with the affinity its classes demand; the very same pod where they demand none."""
    selectors = restrictions(claims, classes)
    if not selectors:
        return pod
    return {**pod, "spec": suitable_nodes.require(pod.get("spec") or {}, selectors)}

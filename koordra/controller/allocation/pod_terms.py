"""What a pod's spec says that counts among several pods: ports of the host, labels, spreading, volumes. Pure readers for
interpod_predicates.py, each of one field, as kube-scheduler reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.allocator.predicates import requirement_matches, selector_matches, tolerated
from koordra.api import objects
from koordra.api.objects import Object

ANY_ADDRESS: Final = "0.0.0.0"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def host_ports(spec: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(ip, protocol, port) of every host port the pod asks for; containers and restartable init containers."""
    found = []
    sidecars = [entry for entry in spec.get("initContainers") or () if entry.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            asked = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if (number := int(asked or 0)) > 0:
                found.append((port.get("hostIP") or ANY_ADDRESS, port.get("protocol") or "TCP", number))
    return found


def required_terms(pod: Object, kind: str) -> Sequence[Mapping[str, Any]]:
    """Required terms of podAffinity or podAntiAffinity."""
    return ((objects.spec_of(pod).get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()


def clashes(taken: tuple[str, str, int], wanted: Sequence[tuple[str, str, int]]) -> bool:
    return any(
        taken[1:] == port[1:] and (taken[0] == port[0] or ANY_ADDRESS in (taken[0], port[0]))
        for port in wanted
    )


def label_selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """meta/v1 LabelSelector; an empty one matches everything, None nothing."""
    if selector is None:
        return False
    named = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in named.items()) and all(
        requirement_matches(entry, labels) for entry in selector.get("matchExpressions") or ()
    )


def with_label_keys(pod: Object, term: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The term's selector with matchLabelKeys and mismatchLabelKeys of the pod; None selects nothing. Newer API
    servers have merged them into the selector already, which changes nothing here."""
    selector, labels = term.get("labelSelector"), objects.labels_of(pod)
    if selector is None:
        return None
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field_name) or ()
        if key in labels
    ]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]}


def counts_for_spread(node: Mapping[str, Any], pod: Object, constraint: Mapping[str, Any]) -> bool:
    spec = objects.spec_of(pod)
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        labels = objects.labels_of(node)
        if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
            return False
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
        if required is not None and not selector_matches(required, node):
            return False
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        return not any(
            taint.get("effect") in ("NoSchedule", "NoExecute")
            and not tolerated(taint, spec.get("tolerations") or ())
            for taint in objects.spec_of(node).get("taints") or ()
        )
    return True


def volume_claim_names(pod: Object) -> list[str]:
    """PersistentVolumeClaims by name; those of ephemeral volumes are named after pod and volume."""
    found = []
    for volume in objects.spec_of(pod).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found.append(str(volume["persistentVolumeClaim"]["claimName"]))
        elif volume.get("ephemeral"):
            found.append(f"{objects.name(pod)}-{volume.get('name')}")
    return found


def reads_other_pods(pod: Object) -> bool:
    """Whether it matters to the pod where other pods are, or their volumes."""
    spec = objects.spec_of(pod)
    affinity = spec.get("affinity") or {}
    return bool(
        affinity.get("podAffinity")
        or affinity.get("podAntiAffinity")
        or spec.get("topologySpreadConstraints")
        or volume_claim_names(pod)
        or host_ports(spec)
    )

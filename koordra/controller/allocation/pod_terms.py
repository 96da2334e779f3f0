"""What a pod's spec says that counts among several pods: ports of the host, labels, spreading, volumes. Pure readers for
interpod_predicates.py, each of one field, as kube-scheduler reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.allocator.predicates import selector_matches
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
            number = int(
                port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0) or 0
            )
            if number > 0:
                found.append((port.get("hostIP") or ANY_ADDRESS, port.get("protocol") or "TCP", number))
    return found


def clashes(taken: tuple[str, str, int], wanted: Sequence[tuple[str, str, int]]) -> bool:
    return any(
        taken[1:] == port[1:] and (taken[0] == port[0] or ANY_ADDRESS in (taken[0], port[0]))
        for port in wanted
    )


def label_selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """meta/v1 LabelSelector; an empty one matches everything."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for entry in selector.get("matchExpressions") or ():
        value, values = labels.get(str(entry.get("key"))), entry.get("values") or ()
        operator = entry.get("operator")
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(str(operator), False)
        if not holds:
            return False
    return True


def with_label_keys(pod: Object, term: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The term's selector with matchLabelKeys and mismatchLabelKeys of the pod; None selects nothing. Newer API
    servers have merged them into the selector already, which changes nothing here."""
    selector = term.get("labelSelector")
    if selector is None:
        return None
    labels = objects.labels_of(pod)
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field_name) or ()
        if key in labels
    ]
    if not added:
        return dict(selector)
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
            taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerates(spec, taint)
            for taint in objects.spec_of(node).get("taints") or ()
        )
    return True


def _tolerates(spec: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    return any(
        entry.get("effect") in (None, "", taint.get("effect"))
        and entry.get("key") in (None, "", taint.get("key"))
        and (entry.get("operator") == "Exists" or entry.get("value", "") == taint.get("value", ""))
        for entry in spec.get("tolerations") or ()
    )


def volume_claim_names(pod: Object) -> list[str]:
    """PersistentVolumeClaims by name; those of ephemeral volumes are named after pod and volume."""
    found = []
    for volume in objects.spec_of(pod).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found.append(str(volume["persistentVolumeClaim"]["claimName"]))
        elif volume.get("ephemeral"):
            found.append(f"{objects.name(pod)}-{volume.get('name')}")
    return found


def parsed_selector(text: str) -> Mapping[str, Any]:
    """The annotation's node selector; one that cannot be read suits no node, which is said, rather than all."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}

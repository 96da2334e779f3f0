"""Which groups ask the same thing, and one group's answer in the words of another.

A request class is everything about a group that a node's answer depends on, without names and uids; claims of one template
are of one class. Names go into an allocation in three places only (pools, node selectors, share ids) and into reasons as keys of
claims and pods, so an answer is written anew for another group instead of being asked for again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from koordra.allocator.offer import share_id
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.groups import Group
from koordra.controller.site_answers import Exemplar, Offered, Reasons
from koordra.controller.sites import IDENTITIES

SPEAKS_OF_ONE: Final = re.compile("|".join(sorted(IDENTITIES)))
"""Requests that name an identity of single devices get no shared answers."""

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_FACE: Final = ("nodeName", "nodeSelector", "tolerations", "overhead", "resources")


def request_class(group: Group) -> str:
    """Everything about a group that a node's answer depends on, and nothing else."""
    position = {objects.key(claim): index for index, claim in enumerate(group.pending)}
    claims = [[objects.spec_of(claim), claims_of.is_immediate(claim)] for claim in group.pending]
    pods = []
    for pod in group.pods:
        spec = objects.spec_of(pod)
        uses = [
            position.get(f"{objects.namespace(pod)}/{name}") for name in objects.pod_claim_names(pod).values()
        ]
        pods.append([uses, _face(spec), objects.namespace(pod) if len(group.pods) > 1 else ""])
    return _ENCODER.encode([claims, pods])


def _face(spec: Mapping[str, Any]) -> object:
    """What the node predicates read of a pod."""
    containers = [
        [[entry.get("resources"), entry.get("restartPolicy")] for entry in spec.get(place) or ()]
        for place in ("containers", "initContainers")
    ]
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    return [containers, node_affinity, [spec.get(name) for name in _FACE]]


def for_other_names(exemplar: Exemplar, group: Group, node: str) -> Offered:
    """The exemplar's answer for another group of its class, on a node like its own: pools, node selectors and
    share ids are the only places where names go into an allocation."""
    allocations: dict[str, Mapping[str, Any]] = {}
    levels: dict[str, str | None] = {}
    for like, claim in zip(exemplar.group.pending, group.pending, strict=True):
        found = exemplar.answer.allocations[objects.key(like)]
        counts: dict[str, int] = {}
        results = []
        for result in found["devices"].get("results") or ():
            label = str(result["request"])
            index = counts[label] = counts.get(label, -1) + 1
            other = dict(result)
            if other.get("pool") == exemplar.node:
                other["pool"] = node
            if "shareID" in other:
                other["shareID"] = share_id(objects.uid(claim) or objects.key(claim), label, index)
            results.append(other)
        allocation = {**found, "devices": {**found["devices"], "results": results}}
        if "nodeSelector" in found:
            pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
        allocations[objects.key(claim)] = allocation
        levels[objects.key(claim)] = exemplar.answer.levels.get(objects.key(like))
    return Offered(node, allocations, levels)


def names_of(group: Group) -> tuple[str, ...]:
    """The keys by which reasons may speak of a group's claims and pods."""
    return (*(objects.key(claim) for claim in group.pending), *(objects.key(pod) for pod in group.pods))


def renamed(
    reasons: tuple[Reasons, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[Reasons, ...]:
    """Reasons that were worked out for one group of a class, in the words of another."""
    if before == after or len(before) != len(after):
        return reasons
    names = dict(zip(before, after, strict=True))
    if not any(name in reason.detail for told in reasons for reason in told for name in names):
        return reasons
    pattern = re.compile(
        r"(?<![\w./-])("
        + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        + r")(?![\w-])"
    )
    return tuple(
        tuple(
            replace(reason, detail=pattern.sub(lambda found: names[found.group()], reason.detail))
            for reason in told
        )
        for told in reasons
    )


def with_claims(pod: Object, *, shown: Mapping[str, Object]) -> Object:
    """The pod with only those entries of spec.resourceClaims whose claim is shown too."""
    found = objects.pod_claim_names(pod)
    kept = {
        entry
        for entry, name in found.items()
        if name is not None and f"{objects.namespace(pod)}/{name}" in shown
    }
    spec = dict(objects.spec_of(pod))
    if len(kept) == len(spec.get("resourceClaims") or ()):
        return pod
    spec["resourceClaims"] = [
        entry for entry in spec.get("resourceClaims") or () if entry.get("name") in kept
    ]
    return {**pod, "spec": spec}

"""Whom `status.reservedFor` of a claim names for a pod: the pod, or its PodGroup. Pure.

A PodGroup of Kubernetes may have claims that its pods share (KEP 5729; gate DRAWorkloadResourceClaims, off by
default). A pod's entry means such a claim where all of it, the name and what it refers to, is as in the
group's. kube-scheduler then reserves the claim for the group: however many pods there are, it has one
consumer, and it keeps its devices until the group is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.placement.request.claim_groups import MAX_CONSUMERS, urgency

_ENTRY: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")

PodGroups = Mapping[str, Object]
"""`API group/namespace/name` -> object."""


def group_name(pod: Fields) -> str | None:
    """The PodGroup of Kubernetes that the pod is in."""
    return objects.fields(objects.spec_of(pod).get("schedulingGroup")).get("podGroupName")


def consumer_of(key: str, pod: Fields, pod_groups: PodGroups) -> str:
    """uid of the claim's (by key) consumer, for this pod of those that name it."""
    namespace = objects.namespace(pod)
    group = pod_groups.get(f"{claims_of.POD_GROUPS}/{namespace}/{group_name(pod)}", {})
    shared = [_entry(one) for one in objects.spec_of(group).get("resourceClaims") or ()]
    if shared:
        named = objects.pod_claim_names(pod)
        for one in objects.spec_of(pod).get("resourceClaims") or ():
            if f"{namespace}/{named.get(str(one.get('name')))}" == key and _entry(one) in shared:
                return objects.uid(group)
    return objects.uid(pod)


def first_consumers(claim: Object, pods: Iterable[Object], pod_groups: PodGroups) -> frozenset[str]:
    """The pods (by uid) that have the claim: those of its first 256 consumers, who are those it is reserved
    for, then the most urgent."""
    key, reserved = objects.key(claim), set(claims_of.reserved_for(claim))
    whose = {objects.uid(pod): consumer_of(key, pod, pod_groups) for pod in pods}
    order = sorted(pods, key=lambda pod: (whose[objects.uid(pod)] not in reserved, urgency(pod)))
    first = set(list(dict.fromkeys(whose[objects.uid(pod)] for pod in order))[:MAX_CONSUMERS])
    return frozenset(uid for uid, consumer in whose.items() if consumer in first)


def _entry(of: Fields) -> tuple[object, ...]:
    return tuple(of.get(name) for name in _ENTRY)

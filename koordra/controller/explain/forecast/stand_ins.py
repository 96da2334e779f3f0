"""Who stands in a what-if for objects that were left out. Pure.

a claim that no pod uses         is asked for by a pod of its own (or with all such claims of its namespace,
                                 `together`), which comes when all others have what they get: it asks for
                                 no CPU, and tolerates the taints that somebody put on nodes; not those that
                                 Kubernetes puts on what is cordoned or does not answer, and autoscalers on
                                 what is about to go
devices, and no pods at all      the claims that have devices are in use
ResourceSlices, and no Nodes     there are the nodes that the slices name
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import Table, Tables
from koordra.controller.cache.immediate_claims import asks
from koordra.controller.claims import ClaimEntry
from koordra.placement.request.claim_groups import claim_keys

MARK: Final = names.DOMAIN + "stands-in"
"""Annotation of the pods that are made here."""
LAST: Final = -(1 << 40)
"""Their priority: no pod has one that low."""
_OF_KUBERNETES: Final = "node.kubernetes.io/"
_OF_AUTOSCALERS: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
)
"""On nodes that are about to go."""


def with_stand_ins(
    cluster: Tables,
    *,
    together: bool,
    left_out: frozenset[str] = frozenset(),
    taints: Iterable[Fields] = (),
) -> Tables:
    """`left_out`: claims, by key, that nobody is to ask for. `taints`: of nodes that are not there yet."""
    nodes = cluster[NODES] or _nodes(cluster[RESOURCE_SLICES].values())
    claims, pods = dict(cluster[RESOURCE_CLAIMS]), cluster[PODS]
    if not pods:
        claims = {key: _in_use(claim) for key, claim in claims.items()}
    used = {key for pod in pods.values() for key in claim_keys(pod)} | left_out
    classes = cluster[DEVICE_CLASSES]
    alone = [claim for key, claim in sorted(claims.items()) if key not in used and _waits(claim, classes)]
    tolerations = _tolerations([*taints, *_taints(nodes.values())])
    by_pod: dict[tuple[str, str], list[Object]] = {}
    for claim in alone:
        name = "claims" if together else objects.name(claim)
        by_pod.setdefault((objects.namespace(claim), f"who-has-{name}"), []).append(claim)
    made = [_pod(*place, own, tolerations) for place, own in by_pod.items()]
    return {
        **cluster,
        NODES: nodes,
        RESOURCE_CLAIMS: claims,
        PODS: {**pods, **{objects.key(pod): pod for pod in made}},
    }


def stands_in(pod: Fields) -> bool:
    return MARK in objects.annotations_of(pod)


def _waits(claim: Object, classes: Mapping[str, Object]) -> bool:
    """Whether it waits for a pod, which Immediate claims do not."""
    entry = ClaimEntry.of(claim, None)
    return not (entry.is_allocated or entry.is_deleting or asks(entry, classes))


def _in_use(claim: Object) -> Object:
    if not claims_of.is_allocated(claim) or claims_of.reserved_for(claim):
        return claim
    consumer = {"resource": "pods", "name": "left-out", "uid": "left-out"}
    return {**claim, "status": {**objects.status_of(claim), "reservedFor": [consumer]}}


def _nodes(slices: Iterable[Fields]) -> Table:
    named = sorted({str(name) for one in slices if (name := objects.spec_of(one).get("nodeName"))})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        name: {**NODES.type_meta, "metadata": {"name": name, "uid": f"Node/{name}"}, "status": ready}
        for name in named
    }


def _taints(nodes: Iterable[Fields]) -> Iterator[Fields]:
    for node in nodes:
        yield from objects.spec_of(node).get("taints") or ()


def _tolerations(taints: Iterable[Fields]) -> list[Object]:
    keys = {str(taint.get("key")) for taint in taints}
    passing = (_OF_KUBERNETES, *_OF_AUTOSCALERS)
    return [{"key": key, "operator": "Exists"} for key in sorted(keys) if not key.startswith(passing)]


def _pod(namespace: str, name: str, claims: Sequence[Fields], tolerations: Sequence[Object]) -> Object:
    entries = [{"name": objects.name(one), "resourceClaimName": objects.name(one)} for one in claims]
    metadata: Mapping[str, Any] = {"annotations": {MARK: "true"}, "uid": f"Pod/{namespace}/{name}"}
    return {
        **PODS.type_meta,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"resourceClaims": entries, "tolerations": list(tolerations), "priority": LAST},
    }

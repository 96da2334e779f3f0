"""kube-scheduler's DynamicResources plugin for claims that somebody else allocates, as pure functions over
claims.

PreEnqueue   every claim exists and is not being deleted, otherwise the pod is not tried at all
PreFilter    an allocated claim is never allocated again; an unknown device class makes the pod unschedulable
Filter       the node must match the allocation's nodeSelector; a claim without allocation: "cannot allocate
             all claims"
PostFilter   no node fits and an allocated claim was unavailable on some node: the allocation of one such
             claim is erased, if nobody else holds it. Claims that no node ever asked about (an earlier filter
             failed first) keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from koordra.api.objects import Object, is_deleting, metadata, name, pod_claim_names, spec_of, status_of, uid
from koordra_devcluster.controllers.group_claims import consumer, owning_group
from koordra_devcluster.scheduler import nodes

CANNOT_ALLOCATE = "cannot allocate all claims"
UNAVAILABLE = "resourceclaim not available on the node"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod is not tried yet; nothing is written about it."""

    reason: str


def of_pod(pod: Object, find: Callable[[str, str], Object | None]) -> list[Object] | Waiting:
    """PreEnqueue: the pod's claims, all of them, or what it waits for. `find(namespace, name)` looks a claim
    up."""
    namespace = metadata(pod)["namespace"]
    found = []
    for entry, claim_name in pod_claim_names(dict(pod)).items():
        if claim_name is None:
            return Waiting(f'waiting for the ResourceClaim of pod entry "{entry}" to be created')
        claim = find(namespace, claim_name)
        if claim is None:
            return Waiting(f'resourceclaim "{claim_name}" not found')
        if is_deleting(claim):
            return Waiting(f'resourceclaim "{claim_name}" is being deleted')
        if not _belongs(pod, entry, claim):
            return Waiting(f'resourceclaim "{claim_name}" was not created for pod {name(pod)}')
        found.append(claim)
    return found


def _belongs(pod: Object, entry: str, claim: Object) -> bool:
    """A template entry's claim must be owned by the pod, or by its group."""
    template = next(
        (
            one.get("resourceClaimTemplateName")
            for one in spec_of(pod).get("resourceClaims") or ()
            if one["name"] == entry
        ),
        None,
    )
    return (
        not template
        or owning_group(claim, pod) is not None
        or any(one.get("uid") == uid(pod) for one in metadata(claim).get("ownerReferences") or ())
    )


def unknown_class(claims: Iterable[Object], exists: Callable[[str], bool]) -> str | None:
    """PreFilter: the message about the first device class that does not exist, of claims that need an
    allocation."""
    for claim in claims:
        if is_allocated(claim):
            continue
        for request in (spec_of(claim).get("devices") or {}).get("requests") or ():
            bodies = [(request["name"], request["exactly"])] if "exactly" in request else []
            bodies += [
                (f"{request['name']}/{one['name']}", one) for one in request.get("firstAvailable") or ()
            ]
            for request_name, body in bodies:
                if not exists(body.get("deviceClassName", "")):
                    return (
                        f"request {request_name}: device class {body.get('deviceClassName')} does not exist"
                    )
    return None


def is_allocated(claim: Object) -> bool:
    return status_of(claim).get("allocation") is not None


def unavailable_on(claims: Iterable[Object], node: Object) -> list[Object]:
    """The allocated claims that do not reach the node."""
    return [
        claim
        for claim in claims
        if is_allocated(claim) and not nodes.matches(status_of(claim)["allocation"].get("nodeSelector"), node)
    ]


def refusal(claims: Sequence[Object], node: Object) -> str | None:
    """Filter: why the claims keep the pod off the node."""
    if unavailable_on(claims, node):
        return UNAVAILABLE
    return None if all(map(is_allocated, claims)) else CANNOT_ALLOCATE


def to_erase(unavailable: Iterable[Object], pod: Object) -> Object | None:
    """PostFilter: the first claim that only this pod, or nobody, has reserved."""
    for claim in unavailable:
        consumers = {entry.get("uid") for entry in status_of(claim).get("reservedFor") or ()}
        if consumers <= {uid(pod)}:
            return claim
    return None


def is_reserved(claim: Object, pod: Object) -> bool:
    consumer_uid = consumer(claim, pod)["uid"]
    return any(entry.get("uid") == consumer_uid for entry in status_of(claim).get("reservedFor") or ())

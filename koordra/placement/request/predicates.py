"""What keeps a group off a node whatever its devices: what its pods say of nodes and ask for, and where their other claims are."""

from __future__ import annotations

from decimal import Decimal

from koordra.allocator.predicates import selector_matches, unsuitable
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.placement.holders import pinned_node
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.request.groups import Group


def refusals(
    index: ClusterIndex, group: Group, info: NodeInfo, *, without: frozenset[str] = frozenset()
) -> list[Reason]:
    """Why the node itself is none for the group's pods, all of them at the same time; `without`: as if these claims and pods (by uid)
    were gone."""
    mine = frozenset(map(objects.identity, group.pods if group.allocated else ()))
    load = index.load_without(info, without | mine) if without or mine else info.load
    several, found = len(group.pods) > 1, list[tuple[Cause, str]]()
    if info.trouble:
        found.append((Cause.POOL_INCOMPLETE, info.trouble))
    for pod in group.pods:
        where = f"pod {objects.key(pod)}: " if several else ""
        found += [(Cause.NODE_UNSUITABLE, where + text) for text in unsuitable(info.node, pod, taken=load)]
        if several:
            load = dict(load)
            for resource, amount in index.pods.requests_of(pod).items():
                load[resource] = load.get(resource, Decimal(0)) + amount
    for key in group.allocated:
        allocation = index.allocation(key)
        selector = None if allocation is None else allocation.node_selector
        if allocation is not None and selector is not None and not selector_matches(selector, info.node):
            at = pinned_node(allocation) or "other nodes"
            found.append((Cause.SHARED_CLAIM_PINNED, f"ResourceClaim {key} of the pod is allocated on {at}"))
    return [reason_of(cause, text, info.name) for cause, text in dict.fromkeys(found)]

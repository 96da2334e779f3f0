"""Which domain the IMEX channels of a claim are in, and whose the channels of each node are.

A gang is a domain in each clique that it is in; a pod that is in no gang is a domain of its own. NVIDIA's
driver serves one domain on a node at a time, so a node whose channels somebody has is left out for everybody
else's claims of channels, and for those alone. So is a node whose channels are held for a gang that lost a
member (DeviceHolds), for all that are not more urgent. What a node has follows from the allocations and the
holds, so that a new leader knows the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordra.allocator.devices.nvlink_fabric import clique_of
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.opaque.imex import ImexDomain, domain_of
from koordra.api.tables import set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.placement.decide import Excluded
from koordra.placement.holders.device_hold import DeviceHold
from koordra.placement.holders.reservation import owns
from koordra.placement.index import NodeInfo


def name_of(group: Group, claim: str, pod_groups: Mapping[str, Object]) -> str:
    """The domain's of a claim of the group: the gang's that its pods name, or the claim's own."""
    gangs = {ref.key for pod in group.pods if (ref := gang_of(pod, pod_groups)) is not None}
    return f"gang {gangs.pop()}" if len(gangs) == 1 else f"claim {claim}"


def with_domain(allocation: Fields, domain: str, nodes: Mapping[str, NodeInfo]) -> Fields:
    """The allocation with the domain, if it has channels. One whose node is in no clique is left as it is,
    which its plugin refuses."""
    results = claims_of.results({"status": {"allocation": allocation}})
    pool = next((str(one.get("pool")) for one in results if _is_channels(one)), None)
    info = nodes.get(pool or "")
    clique = clique_of(info.pools) if info is not None else ""
    if not clique:
        return allocation
    devices = allocation["devices"]
    entry = ImexDomain(domain, clique).entry()
    return {**allocation, "devices": {**devices, "config": [*(devices.get("config") or ()), entry]}}


def _is_channels(result: Fields) -> bool:
    return result.get("driver") == names.DRIVER and result.get("device") == names.IMEX_DEVICE


class ImexDomains:
    """Follows a cache. `members`: the claims of each domain, by key, and their nodes; `changed` are domains
    of which that is another since somebody emptied the set. Not thread-safe."""

    def __init__(self, cache: ClusterCache) -> None:
        self.members: dict[ImexDomain, dict[str, str]] = {}
        self.changed: set[ImexDomain] = set()
        self._pod_groups = cache.pod_groups
        self._of_claim: dict[str, tuple[ImexDomain, str]] = {}
        self._of_hold: dict[str, tuple[DeviceHold, frozenset[str]]] = {}
        """By key, with the nodes whose channels a seat of it has."""
        cache.listen(RESOURCE_CLAIMS, self._on_claim, replay=True)
        cache.listen(DEVICE_HOLDS, self._on_hold, replay=True)

    def _on_claim(self, key: str, _before: Object | None, claim: Object | None) -> None:
        found = None if claim is None else domain_of(claims_of.allocation(claim))
        node = "" if claim is None else claims_of.node_of(claim) or ""
        now = (found, node) if found is not None and node else None
        before = self._of_claim.get(key)
        if now == before:
            return
        if before is not None:
            del self._of_claim[key], self.members[before[0]][key]
            if not self.members[before[0]]:
                del self.members[before[0]]
            self.changed.add(before[0])
        if now is not None:
            self._of_claim[key] = now
            self.members.setdefault(now[0], {})[key] = now[1]
            self.changed.add(now[0])

    def _on_hold(self, key: str, _before: Object | None, now: Object | None) -> None:
        hold = None if now is None else DeviceHold.of(now)
        seats = () if hold is None else hold.seats
        nodes = frozenset(seat.node for seat in seats if any(map(_is_channels, seat.devices)))
        set_or_drop(self._of_hold, key, (hold, nodes) if hold is not None and nodes else None)

    def excluded(self, group: Group) -> Excluded:
        """Nodes whose channels are in another domain than the group's would be."""
        asking = [claim for claim in group.pending if asks_for_channels(claim)]
        if not asking or not (self.members or self._of_hold):
            return {}
        wanted = {name_of(group, objects.key(claim), self._pod_groups) for claim in asking}
        priority = -group.urgency[0]
        holders: dict[str, str] = {}
        for (
            hold,
            nodes,
        ) in self._of_hold.values():  # a gang's domain is called as those are whom it is held for
            theirs = all(owns(hold.owners, objects.namespace(hold.obj), pod) for pod in group.pods)
            if wanted != {hold.owner} and hold.priority >= priority and not (hold.owners and theirs):
                holders |= dict.fromkeys(nodes, hold.owner)
        for domain, claims in self.members.items():
            if wanted != {domain.domain}:
                holders |= dict.fromkeys(claims.values(), domain.domain)
        return {node: _in_use(node, holder) for node, holder in holders.items()}


def asks_for_channels(claim: Object) -> bool:
    return not names.IMEX_CLASSES.isdisjoint(claims_of.class_names(claim))


def _in_use(node: str, holder: str) -> Reason:
    text = f"its IMEX channels are in the domain of {holder}, and a node is in one domain at a time"
    return reason_of(Cause.IMEX_DOMAIN_IN_USE, text, node)

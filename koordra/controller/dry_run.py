"""What the controller's next pass would decide, worked out from the API's objects alone and without writing anything.

    groups that wait, in the order of planning ─> nodes each is kept off ─> best place, or why there is none
                                                  └ refusals, predicates between pods, nodes kept free for others
    a group that gets a place takes it, and those after it see what is left

It is the controller's own code (placer, predicates, reservations, decide) over a copy of the cluster. What the leader keeps in
memory is taken from where it shows: refusals by kube-scheduler from the Events about pods (AllocationRefused says for how
long a node is left out), how long a group has waited from the age of its pods. A leader that took over lately counts the
waiting anew, so it may reserve a node later than is told here.

Members of gangs are not forecast: they are placed together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.group_decision import decide
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.reservations import STARVES_AFTER, Reservations
from koordra.controller.cache.changes import Change, Cluster
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group, GroupIndex
from koordra.controller.claims import Owner
from koordra.controller.conflicts.conflict_watch import ConflictWatch
from koordra.controller.gangs.annotations import gang_of
from koordra.controller.placer import Placer
from koordra.controller.reporting import claim_events

_REFUSED: Final = re.compile(
    r"kube-scheduler refused node (?P<node>\S+): (?P<why>.*)\. \S+ is left out for (?P<pause>\d+) s"
)
Refusals = Mapping[str, Mapping[str, str]]
"""Pod uid -> node -> why kube-scheduler refused it there a moment ago."""


@dataclass(frozen=True, slots=True)
class ClaimDryRun:
    """Of one claim: `node` where it would go, or the `reasons` why it would go on waiting."""

    node: str | None = None
    level: str | None = None
    reasons: tuple[Reason, ...] = ()
    undecided: bool = False


@dataclass(slots=True)
class _Run:
    """One run through the groups that wait."""

    found: dict[str, ClaimDryRun] = field(default_factory=dict)
    nowhere: list[Group] = field(default_factory=list)


def refusals(events: Iterable[Object], now: datetime) -> Refusals:
    """The nodes that are left out at this moment, from the Events about pods."""
    found: dict[str, dict[str, str]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("reason") != claim_events.ALLOCATION_REFUSED or about.get("kind") != "Pod":
            continue
        told = _REFUSED.search(str(event.get("message") or ""))
        seen = _last_seen(event)
        if told is not None and seen is not None and seen + timedelta(seconds=int(told["pause"])) > now:
            found.setdefault(str(about.get("uid")), {})[told["node"]] = told["why"]
    return found


def _last_seen(event: Mapping[str, Any]) -> datetime | None:
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return datetime.fromisoformat(str(text)) if text else None


def dry_run_claims(
    cluster: Cluster,
    *,
    refused: Refusals,
    now: datetime,
    starves_after: float = STARVES_AFTER,
) -> dict[str, ClaimDryRun]:
    """Claim key -> what the next pass would decide, for every claim that waits together with its pod."""
    passing = _Passing(cluster, refused)
    first = passing.run(Reservations(starves_after=0))
    starving = [group for group in first.nowhere if _waited(group, now) >= starves_after > 0]
    if not starving:
        return first.found
    reservations = Reservations(starves_after=starves_after)
    for group in first.nowhere:
        reservations.waits(group, now=-_waited(group, now))
    return passing.run(reservations).found


class _Passing:
    """Runs through the groups as a pass does, each time from the cluster as it is."""

    def __init__(
        self,
        cluster: Cluster,
        refused: Refusals,
    ) -> None:
        self._cluster = cluster
        self._refused = refused

    def run(self, reservations: Reservations) -> _Run:
        cache, placer = ClusterCache.of(self._cluster), Placer()
        placer.sync(cache)
        foreign = ConflictWatch(cache)
        foreign.sync()
        users = cache.pod_index.users
        predicates, groups = InterPodPredicates(cache, placer.nodes), _waiting(cache)
        fits = partial(placer.fits_when_empty, users=users)
        reservations.review(groups, placer.nodes, fits_when_empty=fits, now=0.0)
        run = _Run()
        for group in sorted(groups.values(), key=lambda group: group.urgency):
            excluded = {**reservations.excluded_nodes(group), **predicates.of(group)}
            excluded |= {**self._left_out(group), **foreign.excluded(group)}
            placement = decide(group, ask=partial(placer.place, excluded=excluded), users=users).placement
            if not placement.allocations:
                run.nowhere.append(group)
            for claim in group.pending:
                key = objects.key(claim)
                allocation = placement.allocations.get(key)
                if allocation is None:
                    reasons = placement.reasons.get(key, ())
                    run.found[key] = ClaimDryRun(reasons=reasons, undecided=placement.undecided)
                    continue
                run.found[key] = ClaimDryRun(placement.node, placement.levels.get(key))
                pods = [pod for pod in group.pods if pod in users.get(key, ())]
                given = {**claim, "status": {**objects.status_of(claim), "allocation": allocation}}
                cache.apply([Change(RESOURCE_CLAIMS, key, given)])
                placer.assume(given, pods)
        return run

    def _left_out(self, group: Group) -> dict[str, Reason]:
        found = {}
        for pod in group.pods:
            for node, why in self._refused.get(objects.uid(pod), {}).items():
                text = f"kube-scheduler refused the node for pod {objects.key(pod)}: {why}"
                found[node] = Reason(node, None, None, Cause.NODE_UNSUITABLE.value, text)
        return found


def _waiting(cache: ClusterCache) -> dict[str, Group]:
    """The groups that wait, by key, gangs left out."""
    groups, pods = GroupIndex(), cache.pod_index
    for uid in pods.pending:
        if gang_of(pods.entries[uid].pod) is None:
            groups.update(uid, pods.member(uid))
    claims = {key: cache.claims[key] for key in cache.claim_index.immediate}
    groups.settle(
        {
            key: claim
            for key, claim in claims.items()
            if claims_of.owner(claim, cache.classes) is Owner.KOORDRA
        }
    )
    return groups.groups


def _waited(group: Group, now: datetime) -> float:
    """Seconds since the last pod of the group was made; 0 without pods."""
    made = [objects.metadata(pod).get("creationTimestamp") for pod in group.pods]
    known = [datetime.fromisoformat(str(one)) for one in made if one]
    return (now - max(known)).total_seconds() if known else 0.0

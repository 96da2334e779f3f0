"""What the controller's next pass would decide, worked out from the API's objects alone and without writing
anything.

    groups that wait, in the order of planning ─> nodes each is kept off ─> best place, or why there is none
                                                  └ refusals, predicates between pods, nodes kept for others
    a group that gets a place takes it, and those after it see what is left

It is the controller's own code (placer, predicates, reservations, best_placement) over a copy of the cluster.
What the leader keeps in memory is taken from where it shows: refusals by kube-scheduler from the Events about
pods (AllocationRefused says for how long a node is left out), how long a group has waited from the age of its
pods. A leader that took over lately counts the waiting anew, so it may reserve a node later than is told
here.

Members of gangs are not forecast: they are placed together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.node_backoff import NodeBackoff
from koordra.controller.allocation.placer import GroupPlacement, Placer
from koordra.controller.allocation.reservations import STARVES_AFTER, Reservations
from koordra.controller.cache.changes import Change, Tables
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group, GroupIndex
from koordra.controller.claims import Owner
from koordra.controller.conflicts.conflict_watch import ConflictWatch
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.imex.domains import ImexDomains
from koordra.controller.reconcile.allocation_step import best_placement
from koordra.controller.reporting import claim_events
from koordra.placement.decide import Excluded

_REFUSED: Final = re.compile(
    r"kube-scheduler refused node (?P<node>\S+): (?P<why>.*)\. \S+ is left out for (?P<pause>\d+) s"
)
Refusals = Mapping[str, Mapping[str, str]]
"""Pod uid -> node -> why kube-scheduler refused it there a moment ago."""


def refusals(events: Iterable[Object], now: datetime) -> Refusals:
    """The nodes that are left out at this moment, from the Events about pods."""
    found: dict[str, dict[str, str]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("reason") != claim_events.ALLOCATION_REFUSED or about.get("kind") != "Pod":
            continue
        text = _REFUSED.search(str(event.get("message") or ""))
        seen = (event.get("series") or {}).get("lastObservedTime")
        seen = seen or event.get("lastTimestamp") or event.get("eventTime")
        if text is None or not seen:
            continue
        if datetime.fromisoformat(str(seen)) + timedelta(seconds=int(text["pause"])) > now:
            found.setdefault(str(about.get("uid")), {})[text["node"]] = text["why"]
    return found


class DryRun:
    """A copy of the cluster with what keeps groups off its nodes. `groups` wait, by key."""

    def __init__(self, cluster: Tables, refused: Refusals) -> None:
        self.cache, self.placer, self._backoff = ClusterCache.of(cluster), Placer(), NodeBackoff()
        for uid, nodes in refused.items():
            for node, why in nodes.items():
                self._backoff.exclude(uid, node, why=why, now=0.0)
        self.placer.sync(self.cache)
        self._conflicts = ConflictWatch(self.cache)
        self._predicates = InterPodPredicates(self.cache, self.placer.engine.index)
        self._imex = ImexDomains(self.cache)
        self._conflicts.sync()
        self.groups = waiting_groups(self.cache)

    def excluded(self, part: Group) -> Excluded:
        return {
            **self._predicates.of(part),
            **self._backoff.excluded_nodes(part.pods, 0.0),
            **self._imex.excluded(part),
            **self._conflicts.excluded(part),
        }

    def claims(
        self, *, now: datetime, starves_after: float = STARVES_AFTER, of: Group | None = None
    ) -> dict[str, GroupPlacement]:
        """Claim key -> what the next pass would decide, for every claim that waits together with its pod, or
        those `of` one group: a node, or reasons."""
        found, nowhere = self._run(Reservations(starves_after=0), of)
        if not any(_waited(group, now) >= starves_after > 0 for group in nowhere):
            return found
        reservations = Reservations(starves_after=starves_after)
        for group in nowhere:
            reservations.waits(group.key, now=-_waited(group, now))
        return self._run(reservations, of)[0]

    def _run(
        self, reservations: Reservations, of: Group | None
    ) -> tuple[dict[str, GroupPlacement], list[Group]]:
        """Through the groups as a pass does, from the cluster as it is: what becomes of each claim, and the
        groups that fit nowhere. At the end the cluster is as it was."""
        reservations.review(self.groups, self.placer, now=0.0)
        found: dict[str, GroupPlacement] = {}
        nowhere: list[Group] = []
        taken: list[Change] = []
        for group in sorted(self.groups.values(), key=lambda group: group.urgency):
            kept = reservations.excluded_nodes(group.key, group.urgency)
            excluded = [{**kept, **self.excluded(part)} for part in group.parts]
            told = of is None or of is group
            placement = best_placement(group.parts, self.placer, excluded, why=told)
            if not placement.allocations:
                nowhere.append(group)
            for claim in group.pending:
                key = objects.key(claim)
                placed = key in placement.allocations
                if told:
                    found[key] = placement if placed else replace(placement, node=None)
                if not placed:
                    continue
                given = claims_of.with_allocation(claim, placement.allocations[key])
                taken.append(Change(RESOURCE_CLAIMS, key, claim))
                self.cache.apply([Change(RESOURCE_CLAIMS, key, given)])
        self.cache.apply(taken)
        return found, nowhere


def waiting_groups(cache: ClusterCache) -> dict[str, Group]:
    """By key; members of gangs are in none."""
    groups, pods = GroupIndex(), cache.pod_index
    for uid in pods.pending:
        if gang_of(pods.entries[uid].pod) is None:
            groups.update(uid, pods.member(uid))
    groups.settle(
        {
            key: cache.claims[key]
            for key in cache.claim_index.waiting_without_pod()
            if claims_of.owner(cache.claims[key], cache.classes) is Owner.KOORDRA
        }
    )
    return groups.groups


def _waited(group: Group, now: datetime) -> float:
    """Seconds since the last pod of the group was made; 0 without pods."""
    made = [objects.metadata(pod).get("creationTimestamp") for pod in group.pods]
    known = [datetime.fromisoformat(str(one)) for one in made if one]
    return (now - max(known)).total_seconds() if known else 0.0

"""What questions are answered from: the objects, the engine over them, and what keeps pods off nodes. The
leader's, between two passes, or made of one full read by a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.node_backoff import NodeBackoff
from koordra.controller.allocation.placer import GroupPlacement, Placer
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.conflicts.conflict_watch import ConflictWatch
from koordra.controller.gangs.imex.domains import ImexDomains
from koordra.controller.gangs.membership import Gang, GangIndex, UngateTracker
from koordra.controller.gangs.phase import GangStatus, statuses_of
from koordra.controller.reconcile.allocation_step import best_placement
from koordra.controller.reconcile.dry_run import Refusals, dry_run_claims, waiting_groups
from koordra.placement.decide import Excluded


@dataclass(frozen=True)
class ClusterView:
    """`waiting` by the groups' keys; `gangs` and `statuses` by theirs. `excluded`: nodes that a group is kept
    off. `forecast`: what the next pass decides about a claim that waits with its pod, by its key; None where
    it decides nothing. `beyond_quota`: why pods get no devices, by uid."""

    cache: ClusterCache
    placer: Placer
    waiting: Mapping[str, Group]
    gangs: Mapping[str, Gang]
    statuses: Mapping[str, GangStatus]
    excluded: Callable[[Group], Excluded]
    forecast: Callable[[str], GroupPlacement | None]
    beyond_quota: Mapping[str, str]

    def gang_of(self, pod: Object) -> Gang | None:
        """The gang that the pod is in, if koordra places it."""
        uid = objects.uid(pod)
        return next((g for g in self.gangs.values() if any(one.uid == uid for one in g.members)), None)


def view_of(cluster: Tables, *, refused: Refusals, now: datetime) -> ClusterView:
    """Of a full read. `refused`: what kube-scheduler said lately (dry_run.refusals)."""
    cache, placer, backoff = ClusterCache.of(cluster), Placer(), NodeBackoff()
    for uid, nodes in refused.items():
        for node, why in nodes.items():
            backoff.exclude(uid, node, why=why, now=0.0)
    placer.sync(cache)
    conflicts, predicates = ConflictWatch(cache), InterPodPredicates(cache, placer.engine.index)
    imex = ImexDomains(cache)
    conflicts.sync()
    index = GangIndex(cache, UngateTracker())
    index.gather()
    gangs = {gang.key: gang for gang in index.gangs.values()}
    ahead: dict[str, Mapping[str, GroupPlacement]] = {}

    def excluded(group: Group) -> Excluded:
        return {
            **predicates.of(group),
            **backoff.excluded_nodes(group.pods, 0.0),
            **imex.excluded(group),
            **conflicts.excluded(group),
        }

    waiting = waiting_groups(cache)

    def forecast(key: str) -> GroupPlacement | None:
        if len(waiting) == 1:  # nobody comes first
            (group,) = waiting.values()
            mine = any(objects.key(claim) == key for claim in group.pending)
            return best_placement(group.parts, placer, [*map(excluded, group.parts)]) if mine else None
        if not ahead:
            ahead["all"] = dry_run_claims(cluster, refused=refused, now=now)
        return ahead["all"].get(key)

    return ClusterView(
        cache,
        placer,
        waiting,
        gangs,
        statuses_of(gangs, {}, gangs, nodes=cache.nodes, users=cache.pod_index.users),
        excluded,
        forecast,
        {},
    )

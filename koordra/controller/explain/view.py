"""What questions are answered from: the objects, the engine over them, and what keeps pods off nodes. The
leader's, between two passes, or made of one full read by a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.allocation.placer import GroupPlacement, Placer
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.gangs.expected.job_reader import JobReader, Read
from koordra.controller.gangs.expected.leader_first import Known, awaiting, lacking
from koordra.controller.gangs.membership import Gang, GangIndex, UngateTracker
from koordra.controller.gangs.phase import GangStatus, statuses_of
from koordra.controller.gangs.seats.recorded import holds_by_gang, kept_of
from koordra.controller.reconcile.dry_run import DryRun, Refusals
from koordra.placement.decide import Excluded
from koordra.topology.network_topology import Levels


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


_MOST_READS: Final = 200


def _nobody(_kind: Kind, _name: str, _namespace: str) -> None:
    return None


def view_of(
    cluster: Tables,
    *,
    refused: Refusals,
    now: datetime,
    levels: Levels | None = None,
    read: Read = _nobody,
) -> ClusterView:
    """Of a full read. `refused`: what kube-scheduler said lately (dry_run.refusals); `levels` of the network,
    as an operator wrote them; `read`: objects of the jobs that gangs belong to."""
    run = DryRun(cluster, refused)
    run.cache.fabrics.written = levels
    index = GangIndex(run.cache, UngateTracker())
    index.gather()
    holds = holds_by_gang(run.cache.holds.values())
    jobs = JobReader(read, lambda: 0.0, _MOST_READS)
    jobs.begin()

    def known(gang: Gang) -> Known:
        job = jobs.job_of(gang).job if lacking(gang) else None
        return Known(job, run.cache.classes, run.cache.pod_groups)

    gangs = {
        gang.key: awaiting(gang, kept_of(holds.get(gang.key, ())), now.timestamp(), known(gang))[0]
        for gang in index.gangs.values()
    }
    group_of = {objects.key(claim): group for group in run.groups.values() for claim in group.pending}
    ahead: dict[str, GroupPlacement] = {}

    def forecast(key: str) -> GroupPlacement | None:
        if key in group_of and key not in ahead:  # of a second one on, the reasons of all are worked out
            ahead.update(run.claims(now=now, of=None if ahead else group_of[key]))
        return ahead.get(key)

    statuses = statuses_of(gangs, {}, gangs, nodes=run.cache.nodes, users=run.cache.pod_index.users)
    return ClusterView(run.cache, run.placer, run.groups, gangs, statuses, run.excluded, forecast, {})

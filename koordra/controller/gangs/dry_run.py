"""Why gangs wait, worked out from the API's objects alone and without writing anything: for `koordra explain`.

Each gang is looked at as if it were its turn now: what phase it is in, and for one that waits how many of its members fit and what
the others lack. What only the leader remembers (refusals by kube-scheduler, nodes that are reserved) is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.cache.changes import Cluster
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.gangs.member_placement import MemberPlacement, Place, question
from koordra.controller.gangs.membership import Gang, GangIndex, UngateTracker
from koordra.controller.gangs.phase import GangStatus, Phase, statuses_of, with_idle
from koordra.controller.placer import Placer
from koordra.placement import gang as asked


@dataclass(frozen=True, slots=True)
class GangDryRun:
    """One gang. `fit`: members that would have devices, those that have them included; None where nothing is planned.
    `lacking`: per member without a place, why."""

    gang: str
    phase: str
    members: int
    least: int | None
    text: str
    fit: int | None = None
    lacking: dict[str, tuple[Reason, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "gang": self.gang,
            "stage": self.phase,
            "members": self.members,
            "least": self.least,
            "fit": self.fit,
            "text": self.text,
            "lacking": {
                key: [reason.to_dict() for reason in self.lacking[key]] for key in sorted(self.lacking)
            },
        }


def dry_run_gangs(
    cluster: Cluster,
    *,
    place: Place | None,
) -> list[GangDryRun]:
    """Every gang that concerns koordra, the most urgent first."""
    placer, cache = Placer(), ClusterCache.of(cluster)
    placer.sync(cache)
    predicates = InterPodPredicates(cache, placer.nodes)
    members = MemberPlacement(placer, place=place)
    nodes, users = cache.nodes, cache.pod_index.users
    found = []
    gathering = GangIndex(cache, UngateTracker())
    gathering.gather()
    gangs = {
        gang.key: gang for gang in sorted(gathering.gangs.values(), key=lambda gang: (gang.urgency, gang.key))
    }
    alone = statuses_of(gangs.values(), nodes=nodes, users=users)
    statuses = with_idle(gangs, alone, nodes=nodes, users=users)
    for gang in gangs.values():
        status = statuses[gang.key]
        if not status.plan:
            found.append(_still(gang, status))
            continue
        whole, colocated = question(gang, status, placer, excluded=predicates.of)
        answer = members.place(whole, colocated, excluded=predicates.of)
        found.append(_planned(gang, status, answer))
    return found


def _still(gang: Gang, status: GangStatus) -> GangDryRun:
    text = status.why or {
        Phase.READY: "all of the least have their devices; their gates are being lifted",
        Phase.WHOLE: "nobody waits",
    }.get(status.phase, "nothing is planned")
    return GangDryRun(gang.key, status.phase.value, len(gang.members), gang.terms.least, text)


def _planned(gang: Gang, status: GangStatus, answer: asked.GangAnswer) -> GangDryRun:
    size, least = len(gang.members), gang.terms.least
    if isinstance(answer, asked.GangPlaced):
        text = f"{answer.size} of {size} members fit now"
        return GangDryRun(gang.key, status.phase.value, size, least, text, fit=answer.size)
    lacking = {key: tuple(reasons) for key, reasons in answer.reasons.items() if reasons}
    return GangDryRun(
        gang.key, status.phase.value, size, least, answer.text, fit=answer.most, lacking=lacking
    )

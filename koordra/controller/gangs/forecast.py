"""Why gangs wait, worked out from the API's objects alone and without writing anything: for `koordra explain`.

Each gang is looked at as if it were its turn now: what stage it is in, and for one that waits how many of its members fit and what
the others lack. What only the leader remembers (refusals by kube-scheduler, nodes that are kept free) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.api.objects import Object
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.gangs.lifting import Lifts
from koordra.controller.gangs.membership import Gang, Gathering
from koordra.controller.gangs.planning import Arranging, Place, question
from koordra.controller.gangs.stages import Stage, Standing, standings_of, with_idle
from koordra.controller.obstacles import Obstacles
from koordra.controller.offers import Offers
from koordra.controller.site_answers import Planner
from koordra.controller.sites import Inventory
from koordra.controller.snapshot import Cluster
from koordra.placement import gang as asked


@dataclass(frozen=True, slots=True)
class GangAhead:
    """One gang. `fit`: members that would have devices, those that have them included; None where nothing is planned.
    `lacking`: per member without a place, why."""

    gang: str
    stage: str
    members: int
    least: int | None
    text: str
    fit: int | None = None
    lacking: dict[str, tuple[Reason, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "gang": self.gang,
            "stage": self.stage,
            "members": self.members,
            "least": self.least,
            "fit": self.fit,
            "text": self.text,
            "lacking": {
                key: [reason.to_dict() for reason in self.lacking[key]] for key in sorted(self.lacking)
            },
        }


def gangs_ahead(
    cluster: Cluster,
    *,
    planner: Planner,
    read_inventory: Callable[[Iterable[Object]], Inventory],
    place: Place | None,
) -> list[GangAhead]:
    """Every gang that concerns koordra, the most urgent first."""
    offers, cache = Offers(planner, read_inventory), ClusterCache.of(cluster)
    offers.look(cache)
    obstacles = Obstacles(cache, offers.sites.by_name)
    arranging = Arranging(offers, place=place, memory=asked.Remembered())
    nodes, users = cache.nodes, cache.pod_index.users
    found = []
    gathering = Gathering(cache, Lifts())
    gathering.gather()
    gangs = {
        gang.key: gang for gang in sorted(gathering.gangs.values(), key=lambda gang: (gang.urgency, gang.key))
    }
    alone = standings_of(gangs.values(), nodes=nodes, users=users)
    standings = with_idle(gangs, alone, nodes=nodes, users=users)
    for gang in gangs.values():
        standing = standings[gang.key]
        if not standing.plan:
            found.append(_still(gang, standing))
            continue
        whole, cells = question(gang, standing, kept_off=obstacles.of)
        answer = arranging.arrange(whole, cells, cache.classes, kept_off=obstacles.of)
        found.append(_planned(gang, standing, answer))
    return found


def _still(gang: Gang, standing: Standing) -> GangAhead:
    text = standing.why or {
        Stage.READY: "all of the least have their devices; their gates are being lifted",
        Stage.WHOLE: "nobody waits",
    }.get(standing.stage, "nothing is planned")
    return GangAhead(gang.key, standing.stage.value, len(gang.members), gang.terms.least, text)


def _planned(gang: Gang, standing: Standing, answer: asked.GangAnswer) -> GangAhead:
    size, least = len(gang.members), gang.terms.least
    if isinstance(answer, asked.GangPlaced):
        text = f"{answer.size} of {size} members fit now"
        return GangAhead(gang.key, standing.stage.value, size, least, text, fit=answer.size)
    fit = answer.most if isinstance(answer, asked.GangUnsatisfiable) else answer.found
    lacking = {key: tuple(reasons) for key, reasons in answer.reasons.items() if reasons}
    return GangAhead(gang.key, standing.stage.value, size, least, answer.text, fit=fit, lacking=lacking)

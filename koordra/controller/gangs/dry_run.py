"""Why gangs wait, worked out from the API's objects alone and without writing anything: for `koordra
explain`.

Each gang is looked at as if it were its turn now: what phase it is in, and for one that waits how many of its
members fit and what the others lack. What only the leader remembers (refusals by kube-scheduler, nodes that
are reserved) is not in it.
"""

from __future__ import annotations

from typing import Any

from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.gangs.member_placement import request_for
from koordra.controller.gangs.membership import GangIndex, UngateTracker
from koordra.controller.gangs.phase import GangPhase, statuses_of
from koordra.placement.gang import GangPlaced


def dry_run_gangs(cluster: Tables) -> list[dict[str, Any]]:
    """Every gang of which somebody waits, the most urgent first. `fit`: members that would have devices,
    those that have them included, None where nothing is planned; `lacking`: per member without a place,
    why."""
    placer, cache = Placer(), ClusterCache.of(cluster)
    placer.sync(cache)
    excluded = InterPodPredicates(cache, placer.engine.index).of
    index = GangIndex(cache, UngateTracker())
    index.gather()
    gangs = {gang.key: gang for gang in index.gangs.values()}
    statuses = statuses_of(gangs, {}, gangs, nodes=cache.nodes, users=cache.pod_index.users)
    found = []
    for gang in sorted(gangs.values(), key=lambda gang: (gang.urgency, gang.key)):
        status = statuses[gang.key]
        if status.phase is GangPhase.WHOLE:
            continue
        ready = "all of the least have their devices; their gates are being lifted"
        text = status.why or (ready if status.phase is GangPhase.READY else "nothing is planned")
        fit, lacking = None, dict[str, Any]()
        if status.plan:
            answer = request_for(gang, status, placer, excluded=excluded).place()
            if isinstance(answer, GangPlaced):
                fit, text = answer.size, f"{answer.size} of {len(gang.members)} members fit now"
            else:
                fit, text = answer.most, answer.text
                lacking = {key: answer.reasons[key] for key in sorted(answer.reasons)}
        found.append(
            {
                "gang": gang.key,
                "stage": status.phase.value,
                "members": len(gang.members),
                "least": gang.terms.least,
                "fit": fit,
                "text": text,
                "lacking": {key: reasons for key, reasons in lacking.items() if reasons},
            }
        )
    return found

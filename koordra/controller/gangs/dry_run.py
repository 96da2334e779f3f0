"""Where a gang stands and what its waiting members lack, worked out without writing anything: for `koordra
explain`.

It is looked at as if it were its turn now: what phase it is in, and of one that waits how many of its members
fit and what the others lack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koordra.api.objects import Object
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.fabrics import Fabrics
from koordra.controller.gangs.member_placement import ExcludedFor, request_for
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.phase import GangPhase, GangStatus
from koordra.controller.gangs.seats.recorded import held_for, holds_by_gang
from koordra.placement.gang import GangPlaced


def gang_entry(
    gang: Gang,
    status: GangStatus,
    placer: Placer,
    *,
    excluded: ExcludedFor,
    holds: Iterable[Object],
    fabrics: Fabrics,
) -> dict[str, Any]:
    """One gang, as if it were its turn now; of one that is whole, nothing is planned. `holds`: all
    DeviceHolds."""
    ready = "all of the least have their devices; their gates are being lifted"
    texts = {GangPhase.READY: ready, GangPhase.WHOLE: "nobody waits"}
    fit, text = None, status.why or texts.get(status.phase, "nothing is planned")
    lacking = dict[str, Any]()
    if status.plan:
        own = holds_by_gang(holds).get(gang.key, ())
        seats = held_for((*status.plan, *status.coming), own)
        request = request_for(
            gang, status, placer, excluded=excluded, seats=seats, unfit=excluded, fabrics=fabrics
        )
        answer = request.place()
        if isinstance(answer, GangPlaced):
            coming = f", {len(status.coming)} of which are made later" if status.coming else ""
            number = len(gang.members) + len(status.coming)
            fit, text = answer.size, f"{answer.size} of {number} members fit now{coming}"
        else:
            fit, text = answer.most, answer.text
            lacking = {
                key: [reason.to_dict() for reason in answer.reasons[key]] for key in sorted(answer.reasons)
            }
    return {
        "gang": gang.key,
        "stage": status.phase.value,
        "members": len(gang.members),
        "least": gang.terms.least,
        "fit": fit,
        "text": text,
        "lacking": {key: reasons for key, reasons in lacking.items() if reasons},
    }

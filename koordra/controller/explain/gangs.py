"""One gang, as if it were its turn now: its members, how far each is, and what those that wait lack."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.explain.view import ClusterView
from koordra.controller.gangs.member_placement import request_for
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import GangPhase, turn_of
from koordra.controller.gangs.seats.recorded import held_for, holds_by_gang
from koordra.placement.gang import GangPlaced


def gang_document(view: ClusterView, gang: Gang) -> Object:
    return {
        **_standing(view, gang),
        "done": gang.done,
        "pods": [_member(view, gang, one) for one in gang.members],
    }


def _standing(view: ClusterView, gang: Gang) -> Object:
    """Of one that is whole, nothing is planned."""
    status = view.statuses[gang.key]
    ready = "all of the least have their devices; their gates are being lifted"
    texts = {GangPhase.READY: ready, GangPhase.WHOLE: "nobody waits"}
    fit, text = None, status.why or texts.get(status.phase, "nothing is planned")
    lacking: Object = {}
    if status.plan:
        own = holds_by_gang(view.cache.holds.values()).get(gang.key, ())
        seats = held_for((*status.plan, *status.coming), own)
        answer = request_for(
            gang,
            status,
            view.placer,
            excluded=view.excluded,
            seats=seats,
            unfit=view.excluded,
            fabrics=view.cache.fabrics,
        ).place()
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


def _member(view: ClusterView, gang: Gang, member: Member) -> Object:
    """`state`: how far it is on its way, in one word."""
    nodes = {node for claim in member.ours if (node := claims_of.node_of(claim))}
    bound = str(objects.spec_of(member.pod).get("nodeName") or "")
    return {
        "name": objects.name(member.pod),
        "state": _state(member),
        "node": bound or ", ".join(sorted(nodes)) or None,
        "claims": [objects.name(claim) for claim in member.ours],
        "waits": view.beyond_quota.get(member.uid) or turn_of(gang, member) or None,
    }


def _state(member: Member) -> str:
    if member.claims is None:
        return "LacksClaims"
    if member.is_bound:
        return str(objects.status_of(member.pod).get("phase") or "Bound")
    if member.claims.refused:
        return "Refused"
    if member.is_placed:
        return "Allocated"
    return "Waiting" if member.is_held else "NotHeld"

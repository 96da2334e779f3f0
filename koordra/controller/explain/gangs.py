"""One gang: its members, how far each of them is, and what those that wait lack."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.explain.view import ClusterView
from koordra.controller.gangs.dry_run import gang_entry
from koordra.controller.gangs.membership import Gang, Member
from koordra.controller.gangs.phase import turn_of


def gang_document(view: ClusterView, gang: Gang) -> Object:
    status, holds = view.statuses[gang.key], view.cache.holds.values()
    fabrics = view.cache.fabrics
    entry = gang_entry(gang, status, view.placer, excluded=view.excluded, holds=holds, fabrics=fabrics)
    return {**entry, "done": gang.done, "pods": [_member(view, gang, one) for one in gang.members]}


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

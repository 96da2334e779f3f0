"""Why a group does not fit on a node: per request and clause, and the clause that all of it together fails.

First what each device says by itself (selector, taint, in use, no room, counters; `rejection`), devices of
one clause together. Devices of another class than the one asked for are not reported where some devices are
of the class. A request with fewer usable devices than it needs is the whole story. Otherwise the devices
would do one by one, and the clause that stands in the way is looked for by taking clauses away
(`nearest_fit`).

How many devices are *suitable* for a request does not depend on what is in use; how many of those are *free*
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.explain.device_counts import DeviceCounts, how_to_offer
from koordra.allocator.explain.grouping import values_text
from koordra.allocator.explain.nearest_fit import NearestFit
from koordra.allocator.explain.rejection import Rejection, device_reason
from koordra.allocator.joint_allocation import Rule
from koordra.allocator.reasons import Cause, ClaimReason, Reason, reason_of
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim


def reasons_on_node(
    node: str,
    claims: Sequence[ResolvedClaim],
    state: AllocationState,
    *,
    joint_rules: tuple[Rule, ...],
    known: dict[tuple[object, ...], list[ClaimReason]],
    form: tuple[object, ...],
) -> list[ClaimReason]:
    """Everything that keeps the group off the node, in no order; never empty.

    `known` remembers by their `form` what nodes fail by all requests together: one of the same form has the
    same story.
    """
    served, found = reasons_one_by_one(node, claims, state)
    if served:
        if form not in known:
            known[form] = NearestFit(node, claims, state, joint_rules).reasons()
        found += [(position, _on(node, reason)) for position, reason in known[form]]
    return found


def reasons_one_by_one(
    node: str, claims: Sequence[ResolvedClaim], state: AllocationState
) -> tuple[bool, list[ClaimReason]]:
    """Whether each request has enough devices by itself, and why others cannot serve it."""
    found: list[ClaimReason] = []
    served = True
    for position, claim in enumerate(claims):
        for request in claim.requests:
            # All alternatives are reported, but one that could be served is enough.
            could = False
            own: list[Reason] = []
            for wanted in request.alternatives:
                enough, reasons = _of_request(node, wanted, state)
                own += reasons
                could = could or enough
            found += [(position, replace(reason, is_aside=True) if could else reason) for reason in own]
            served = served and could
    found = list(dict.fromkeys(found))
    for pool in state.pools:
        if pool.trouble:
            detail = f"pool {pool} is {'incomplete' if pool.incomplete else 'invalid'}: {pool.trouble}"
            if pool.incomplete:
                detail += "; the log of its driver's plugin on that node says why the rest is not published"
            reason = reason_of(Cause.POOL_INCOMPLETE, detail, node)
            found += [(position, reason) for position in range(len(claims))]
    return served, found


def _on(node: str, reason: Reason) -> Reason:
    return replace(reason, node=node, nodes=1, examples=(node,))


@dataclass(slots=True)
class _Alike:
    """Devices that say the same: how many, and the one that lacks least."""

    device: int
    nearest: Rejection
    number: int = 0
    values: Counter[str] = field(default_factory=Counter)


def _of_request(node: str, wanted: RequestAlternative, state: AllocationState) -> tuple[bool, list[Reason]]:
    """Whether enough devices can serve the request, and why others cannot."""
    devices = range(len(state.devices))
    of_class = [device for device in devices if state.verdict(wanted, device).of_class]
    asked = of_class or devices
    alike: dict[tuple[Cause, object], _Alike] = {}
    usable = suitable = 0
    for device in asked:
        miss = device_reason(wanted, device, state)
        if miss is None:
            usable += 1
            continue
        suitable += not miss.for_ever
        those = alike.get((miss.cause, miss.alike))
        if those is None:
            those = alike[miss.cause, miss.alike] = _Alike(device, miss)
        those.number += 1
        if miss.values:
            those.values.update(miss.values)
        if miss.short is not None and miss.short < (those.nearest.short or 0):
            those.device, those.nearest = device, miss
    # Devices of other classes say nothing where it is known how the node would offer some of this one.
    told = alike.values() if of_class or not how_to_offer(wanted) else ()
    reasons = [_told(node, wanted.label, those, state) for those in told]
    needed = 1 if wanted.takes_all else wanted.spec.count
    if usable >= needed:
        return True, reasons
    if devices or not any(pool.trouble for pool in state.pools):
        counts = DeviceCounts(needed, len(devices), len(of_class), suitable + usable, usable)
        reasons.append(counts.reason(node, wanted, {cause for cause, _ in alike}))
    return False, reasons


def _told(node: str, request: str, those: _Alike, state: AllocationState) -> Reason:
    miss, words = those.nearest, those.nearest.words()
    rest = values_text(those.values) if those.values else words.figures
    if those.number > 1 and words.at_best:
        rest = words.at_best
    return Reason(
        node,
        state.devices[those.device].id.device,
        request,
        miss.cause.value,
        f"{words.clause} {rest}" if rest else words.clause,
        clause=words.clause,
        at_best=words.at_best,
        short=miss.short,
        values=tuple(sorted(those.values.items())),
        devices=those.number,
    )

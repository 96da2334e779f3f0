"""Why a group does not fit on a node: per device and request, and the clause that all of it together fails.

First what each device says by itself (selector, taint, in use, no room, counters; `rejection`). Devices of
another class than the one asked for are not reported where some devices are of the class. A request with
fewer usable devices than it needs is the whole story. Otherwise the devices would do one by one, and the
clause that stands in the way is looked for by taking clauses away (`nearest_fit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.explain.nearest_fit import ClaimReason, NearestFit
from koordra.allocator.explain.rejection import Rejection, device_reason
from koordra.allocator.joint_allocation import Rule
from koordra.allocator.reasons import Cause, Reason, figure, reason_of
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
    found: list[ClaimReason] = []
    served = True
    for position, claim in enumerate(claims):
        for request in claim.requests:
            # All alternatives are reported, but one that could be served is enough.
            could = False
            for wanted in request.alternatives:
                enough, reasons = _of_request(node, wanted, state)
                found += [(position, reason) for reason in reasons]
                could = could or enough
            served = served and could
    for pool in state.pools:
        if pool.trouble:
            detail = f"pool {pool} is {'incomplete' if pool.incomplete else 'invalid'}: {pool.trouble}"
            reason = reason_of(Cause.POOL_INCOMPLETE, detail, node)
            found += [(position, reason) for position in range(len(claims))]
    if served:
        if form not in known:
            known[form] = NearestFit(node, claims, state, joint_rules).reasons()
        found += [(position, replace(reason, node=node)) for position, reason in known[form]]
    return found


def _of_request(node: str, wanted: RequestAlternative, state: AllocationState) -> tuple[bool, list[Reason]]:
    """Whether enough devices can serve the request, and why others cannot."""
    devices = range(len(state.devices))
    of_class = [device for device in devices if state.verdict(wanted, device).of_class]
    asked = of_class or devices
    misses = {device: miss for device in asked if (miss := device_reason(wanted, device, state)) is not None}
    reasons = [
        Reason(node, state.devices[device].id.device, wanted.label, miss.cause.value, miss.detail)
        for device, miss in misses.items()
    ]
    usable, needed = len(asked) - len(misses), 1 if wanted.takes_all else wanted.spec.count
    if usable >= needed:
        return True, reasons
    if devices or not any(pool.trouble for pool in state.pools):
        causes = {miss.cause for miss in misses.values()}
        cause = next((cause for cause in Cause if cause in causes), Cause.INSUFFICIENT_CAPACITY)
        free = f"free {usable} of {len(of_class)} of class {wanted.device_class.name}"
        detail = f"devices: requested {needed}, {free if devices else 'the node publishes none'}"
        detail += _nearest_miss(misses, state)
        reasons.append(Reason(node, None, wanted.label, cause.value, detail))
    return False, reasons


def _nearest_miss(misses: Mapping[int, Rejection], state: AllocationState) -> str:
    """The device that lacks least of what it is short of."""

    def part(device: int) -> tuple[Decimal, int]:
        total = state.devices[device].device.capacity[misses[device].name].value
        return misses[device].lacking / total if total else Decimal("Infinity"), device

    nearest = min((device for device, miss in misses.items() if miss.lacking > 0), key=part, default=None)
    if nearest is None:
        return ""
    lacks = f"{figure(misses[nearest].lacking)} of {misses[nearest].name}"
    return f"; nearest miss {state.devices[nearest].id.device} lacks {lacks}"

"""Why one device cannot serve one request as things stand: the verdict, who uses it, what it lacks of amounts
and counters.

Of what is lacking because others hold it, the holders are named: whoever waits wants to know whom for.
"""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Final, NamedTuple

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.capacity import nano
from koordra.allocator.reasons import Cause, figure
from koordra.allocator.request.requests import RequestAlternative

_MOST_HOLDERS: Final = 3
"""Claims that are named; of more there is only their number."""


class Rejection(NamedTuple):
    """Why one device does not do; `lacking` of the capacity `name` is missing where it is a matter of
    amounts."""

    cause: Cause
    detail: str
    name: str = ""
    lacking: Decimal = Decimal(0)


def device_reason(wanted: RequestAlternative, device: int, state: AllocationState) -> Rejection | None:
    """Why the device cannot serve the request as things stand; None when it can."""
    offered = state.devices[device]
    verdict = state.verdict(wanted, device)
    if verdict.short_of is not None:
        return _no_room(state, device, *verdict.short_of)
    if verdict.cause is not None:
        return Rejection(verdict.cause, verdict.detail)
    if wanted.spec.admin_access or verdict.demand is None:
        return None
    if state.busy[device]:
        use = state.taken.of(offered.id)
        detail = f"device: requested 1, free 0 of 1{_in_use_by([use.holder] if use.holder else use.sharers)}"
        return Rejection(Cause.ALREADY_ALLOCATED, detail)
    for name, amount in sorted(verdict.demand.amounts.items()):
        if nano(amount) > state.room(device, name):
            return _no_room(state, device, name, amount)
    if state.shared[device] and state.holders[device]:
        return None
    published = state.pools[state.pool_of[device]].counters
    for counter, amount in sorted(offered.device.counters.items()):
        available = max(state.counters_left(device, counter), Decimal(0))
        if amount > available:
            total = figure(published.get(counter, Decimal(0)))
            detail = f"requested {figure(amount)}, free {figure(available)} of {total}"
            return Rejection(Cause.COUNTERS_EXHAUSTED, f"counter {'/'.join(counter)}: {detail}")
    return None


def usable_devices(wanted: RequestAlternative, state: AllocationState) -> list[int]:
    """Devices that can serve the request as things stand, each by itself."""
    return [device for device in range(len(state.devices)) if device_reason(wanted, device, state) is None]


def _no_room(state: AllocationState, device: int, name: str, amount: Decimal) -> Rejection:
    offered = state.devices[device]
    total = offered.device.capacity[name].value
    free = max(state.free(device, name), Decimal(0))
    detail = f"{name}: requested {figure(amount)}, free {figure(free)} of {figure(total)}"
    if amount <= total:
        # Who asks for more than there is waits for nobody.
        sharers = state.taken.of(offered.id).sharers
        detail += _in_use_by([holder for holder, takes in sharers.items() if name in takes])
    return Rejection(Cause.INSUFFICIENT_CAPACITY, detail, name, amount - free)


def _in_use_by(holders: Collection[str]) -> str:
    """The claims that hold something, by name; nothing where nobody does."""
    if not holders:
        return ""
    named = ", ".join(sorted(holders)[:_MOST_HOLDERS])
    more = f" and {len(holders) - _MOST_HOLDERS} more" if len(holders) > _MOST_HOLDERS else ""
    return f", in use by ResourceClaim{'s' if len(holders) > 1 else ''} {named}{more}"

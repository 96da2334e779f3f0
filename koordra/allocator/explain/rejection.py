"""Why one device cannot serve one request as things stand: the verdict, who uses it, what it lacks of amounts
and counters.

Of what is lacking because others hold it, the holders are named: whoever waits wants to know whom for. Texts
are made when somebody asks for them, which of many devices is for the nearest miss alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from decimal import Decimal
from functools import partial
from typing import Final, NamedTuple

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.eligibility import Verdict
from koordra.allocator.reasons import Cause, amount_text, figure, free_text
from koordra.allocator.request.requests import RequestAlternative

_MOST_HOLDERS: Final = 3
"""Claims that are named; of more there is only their number."""


class Words(NamedTuple):
    """A Reason's texts (`koordra.allocator.reasons`)."""

    clause: str
    figures: str = ""
    at_best: str = ""


HELD_FOR: Final = "held for "
"""Before the name of a holder that is no claim: devices that nobody has and that are kept for somebody
(`koordra.placement.holders.device_hold`). In parentheses, what of it this is."""

_BUSY: Final = Words("device: requested 1, free 0 of 1, in use by ResourceClaim")
_HELD: Final = Words("device: requested 1, free 0 of 1,")


class Rejection(NamedTuple):
    """Why one device does not do. `alike`: equal for rejections that are told together; `values`: what
    differs among them. `short`: the part of the whole that is lacking, where it is a matter of amounts.
    `for_ever`: it would not do either if nobody used it."""

    cause: Cause
    alike: object
    words: Callable[[], Words]
    short: float | None = None
    values: tuple[str, ...] = ()
    for_ever: bool = False


def device_reason(wanted: RequestAlternative, device: int, state: AllocationState) -> Rejection | None:
    """Why the device cannot serve the request as things stand; None when it can."""
    verdict = state.verdict(wanted, device)
    if verdict.cause is not None:
        return _of_verdict(verdict)
    if wanted.spec.admin_access or verdict.demand is None:
        return None
    if state.busy[device]:
        return _busy(state, device)
    used, capacity = state.used[device], state.capacity[device]
    for name, amount in verdict.demand.nano.items():
        free = capacity.get(name, 0) - used.get(name, 0)
        if amount > free:
            short = (amount - max(free, 0)) / (capacity[name] or 1)
            words = partial(_no_room, state, device, name, verdict.demand.amounts[name])
            return Rejection(Cause.INSUFFICIENT_CAPACITY, (name, amount), words, short)
    if state.devices[device].device.consumes_counters and not (
        state.shared[device] and state.holders[device]
    ):
        return _no_counter(state, device)
    return None


def usable_devices(wanted: RequestAlternative, state: AllocationState) -> list[int]:
    """Devices that can serve the request as things stand, each by itself."""
    return [device for device in range(len(state.devices)) if device_reason(wanted, device, state) is None]


def _of_verdict(verdict: Verdict) -> Rejection:
    assert verdict.cause is not None
    if verdict.short_of is not None:
        short = verdict.short_of
        words = Words(
            f"{short.clause},", f"the device has {short.has}", f"no device has more than {short.has}"
        )
        return Rejection(verdict.cause, short.clause, lambda: words, short.part, for_ever=True)
    values = (verdict.value,) if verdict.value else ()
    for_ever = verdict.cause is not Cause.ALREADY_ALLOCATED
    words = Words(verdict.clause)
    return Rejection(verdict.cause, verdict.clause, lambda: words, None, values, for_ever=for_ever)


def _busy(state: AllocationState, device: int) -> Rejection:
    use = state.taken.of(state.devices[device].id)
    holders = (use.holder,) if use.holder else tuple(use.sharers)
    if all(holder.startswith(HELD_FOR) for holder in holders):
        return Rejection(Cause.ALREADY_ALLOCATED, "held", lambda: _HELD, None, tuple(map(_hold, holders)))
    return Rejection(Cause.ALREADY_ALLOCATED, "busy", lambda: _BUSY, None, holders)


def _no_room(state: AllocationState, device: int, name: str, amount: Decimal) -> Words:
    offered = state.devices[device]
    free = free_text(name, max(state.free(device, name), Decimal(0)), asked=amount)
    total = amount_text(name, offered.device.capacity[name].value)
    sharers = state.taken.of(offered.id).sharers
    use = _in_use_by([holder for holder, takes in sharers.items() if name in takes])
    clause = f"{name}: requested {amount_text(name, amount)},"
    return Words(clause, f"free {free} of {total}{use}", f"at best free {free} of {total}{use}")


def _no_counter(state: AllocationState, device: int) -> Rejection | None:
    """The first counter of which there is less than the device takes."""
    for counter, amount in sorted(state.consumes(device).items()):
        left = max(state.counters[state.pool_of[device]].get(counter, 0), 0)
        if amount > left:
            words = partial(_counter_text, state, device, counter)
            return Rejection(
                Cause.COUNTERS_EXHAUSTED, ("counter", counter[1], amount), words, 1 - left / amount
            )
    return None


def _counter_text(state: AllocationState, device: int, counter: tuple[str, str]) -> Words:
    published = state.pools[state.pool_of[device]].counters.get(counter, Decimal(0))
    asked = figure(state.devices[device].device.counters[counter])
    free = f"free {figure(max(state.counters_left(device, counter), Decimal(0)))} of {figure(published)}"
    holders = set[str]()
    for other, offered in enumerate(state.devices):
        if state.pool_of[other] == state.pool_of[device] and counter in offered.device.counters:
            use = state.taken.of(offered.id)
            holders |= {*use.sharers, *filter(None, [use.holder])}
    figures = f"{free} in {counter[0]}{_in_use_by(holders)}"
    return Words(f"counter {counter[1]}: requested {asked},", figures, f"at best {figures}")


def _in_use_by(holders: Collection[str]) -> str:
    """The claims that hold something, by name; nothing where nobody does."""
    if not holders:
        return ""
    held = sorted({_hold(one) for one in holders if one.startswith(HELD_FOR)})
    claims = sorted(one for one in holders if not one.startswith(HELD_FOR))
    named = ", ".join(claims[:_MOST_HOLDERS])
    more = f" and {len(claims) - _MOST_HOLDERS} more" if len(claims) > _MOST_HOLDERS else ""
    used = f", in use by ResourceClaim{'s' if len(claims) > 1 else ''} {named}{more}" if claims else ""
    return used + "".join(f", {one}" for one in held[:_MOST_HOLDERS])


def _hold(holder: str) -> str:
    """What is held together is told together."""
    return holder.partition(" (")[0]

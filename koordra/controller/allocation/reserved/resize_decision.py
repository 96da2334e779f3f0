"""What the shares of an allocated claim may be held to from now on, by its wish, its class and what is free
on the node (koordra.api.opaque.resize). Pure.

All of a claim's wish is granted, or none of it: then its shares stay as they are, and the reason is told, as
Kubernetes does of pods that are resized: `Infeasible`, if waiting does not help, or `Deferred`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.pools import facts_of
from koordra.allocator.reasons import amount_text
from koordra.api import names
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.devices import Device, DeviceID
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.isolation import IsolationPolicy, published_policy
from koordra.api.opaque.resize import Wish, refusal, unknown, wish_for
from koordra.api.opaque.share_limits import (
    AMOUNTS,
    Amounts,
    ResizedClaim,
    ShareKey,
    ShareLimits,
    own_amounts,
)

LIMITER: Final = "limiter"
INFEASIBLE: Final = "Infeasible"
DEFERRED: Final = "Deferred"
NOTHING: Final = Decimal(0)

Free = Callable[[DeviceID], Amounts]
"""What nobody has of a device."""


@dataclass(frozen=True, slots=True)
class OwnShare:
    """One share of a claim: `plain` are the attributes of its card, `allocated` is what of it can be changed;
    `policy` and `priority` as class and claim say."""

    result: DeviceResult
    plain: Mapping[str, Any]
    allocated: Amounts
    policy: str | None
    priority: int | None

    @property
    def key(self) -> ShareKey:
        return self.result.device.device, self.result.share_id

    @property
    def limits(self) -> ShareLimits:
        """As it was allocated."""
        return ShareLimits(*self.key, self.allocated, self.policy, self.priority)

    def asked(self, wish: Wish) -> ShareLimits:
        said = {names.CAPACITY_MEMORY: wish.memory, names.CAPACITY_CORES: wish.cores}
        amounts = {
            name: has if (wanted := said[name]) is None else wanted for name, has in self.allocated.items()
        }
        return ShareLimits(
            *self.key,
            amounts,
            wish.policy or self.policy,
            self.priority if wish.priority is None else wish.priority,
        )


@dataclass(frozen=True, slots=True)
class Decided:
    limits: tuple[ShareLimits, ...]
    refused: str = ""

    @property
    def is_deferred(self) -> bool:
        return self.refused.startswith(DEFERRED)


def shares_of(
    allocation: Allocation, config: Configuration, devices: Mapping[DeviceID, Device]
) -> list[OwnShare] | None:
    """The claim's shares of GPUs with something that could be changed; None where the node does not publish
    one of its devices now, so that nothing is known of it."""
    found = []
    for result in allocation.results:
        if result.device.driver != names.DRIVER or result.share_id is None:
            continue
        device = devices.get(result.device)
        if device is None:
            return None
        plain = facts_of(names.DRIVER, device)[2]
        allocated = own_amounts(result.consumed, capacities(device))
        if plain.get(names.ATTR_TYPE) == names.TYPE_GPU and allocated:
            said = config.gpu(result.request)
            policy = None if said.cores_policy is None else str(said.cores_policy)
            found.append(OwnShare(result, plain, allocated, policy, said.priority))
    return found


def capacities(device: Device) -> dict[str, Decimal]:
    return {name.rpartition("/")[2]: each.value for name, each in device.capacity.items()}


def decide(
    shares: Sequence[OwnShare],
    wishes: Mapping[str, Wish],
    config: Configuration,
    *,
    before: ResizedClaim | None,
    free: Free,
    quota: Callable[[Amounts], str],
) -> Decided:
    """`before`: what the shares are held to now, and what is held for them; `quota`: why there is no room for
    so much more, empty where there is."""
    present = tuple(
        before.limits.get(share.key, share.limits) if before is not None else share.limits for share in shares
    )
    wanted = tuple(share.asked(wish_for(wishes, share.result.request)) for share in shares)
    why = _infeasible(shares, wishes, config)
    if why:
        return Decided(present, f"{INFEASIBLE}: {why}")
    growth = dict[ShareKey, Amounts]()
    left = dict[DeviceID, Amounts]()
    for share, limits in zip(shares, wanted, strict=True):
        had: Amounts = before.held.get(share.key, {}) if before is not None else {}
        more = {
            name: amount - had.get(name, NOTHING)
            for name, amount in beyond(limits, share.allocated).items()
            if amount > had.get(name, NOTHING)
        }
        growth[share.key] = more
        if more and share.plain.get(names.ATTR_ALLOCATOR) == names.ALLOCATOR_SCHEDULER:
            return Decided(
                present,
                f"{INFEASIBLE}: {_text(more)} more on {share.key[0]}: its node is in native mode, where kube-scheduler gives out "
                "what is free; a share can only be changed within its allocation there",
            )
        room = left.get(share.result.device) or free(share.result.device)
        lacking = _lacking(share, more, room)
        if lacking:
            return Decided(present, f"{DEFERRED}: {lacking}")
        left[share.result.device] = {name: amount - more.get(name, NOTHING) for name, amount in room.items()}
    total = Counter[str]()
    for grown in growth.values():
        total.update({name: int(amount) for name, amount in grown.items()})
    over = quota({name: Decimal(amount) for name, amount in total.items()}) if total else ""
    return Decided(present, f"{DEFERRED}: {over}") if over else Decided(wanted)


def _infeasible(shares: Sequence[OwnShare], wishes: Mapping[str, Wish], config: Configuration) -> str:
    if why := unknown(wishes, sorted({share.result.request.partition("/")[0] for share in shares})):
        return why
    times = defaultdict[DeviceID, set[tuple[str | None, int | None]]](set)
    for share in shares:
        wish = wish_for(wishes, share.result.request)
        times[share.result.device].add((wish.policy, wish.priority))
    for share in shares:
        request = share.result.request
        wish = wish_for(wishes, request)
        if wish == Wish():
            continue
        policy = published_policy(share.plain) or IsolationPolicy()
        word = config.isolation(request).on(policy, share=True)
        if word != LIMITER:
            return f"request {request}: isolation {word} does not change the limits of running shares; {LIMITER} does"
        if len(times[share.result.device]) > 1:
            return f"request {request}: the claim has several shares of {share.key[0]}, which have one coresPolicy and priority together"
        if why := refusal(wish, config.resize(request), has=share.allocated):
            return f"request {request}: {why}"
    return ""


def beyond(limits: ShareLimits, allocated: Amounts) -> dict[str, Decimal]:
    """What has to be held for the share."""
    return {
        name: limits.amounts[name] - allocated[name]
        for name in AMOUNTS
        if name in allocated and limits.amounts.get(name, NOTHING) > allocated[name]
    }


def largest(held: Iterable[Amounts]) -> dict[str, Decimal]:
    """Of each amount the largest."""
    found = dict[str, Decimal]()
    for amounts in held:
        for name, amount in amounts.items():
            found[name] = max(found.get(name, NOTHING), amount)
    return {name: amount for name, amount in found.items() if amount > 0}


def _lacking(share: OwnShare, more: Amounts, free: Amounts) -> str:
    for name, amount in more.items():
        if amount > free.get(name, NOTHING):
            return (
                f"{name}: {amount_text(name, amount)} more on {share.key[0]} is wanted, "
                f"{amount_text(name, free.get(name, NOTHING))} is free"
            )
    return ""


def _text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in amounts.items())

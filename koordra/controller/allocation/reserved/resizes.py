"""Live changes of allocated claims: from the wish in an annotation to a DeviceHold, which the plugin of the
node reads (koordra.api.opaque.share_limits).

    grow     what is more than allocated is held in the same write that says the limits: nobody can have it
             before, whoever leads
    shrink   the limits are written; what was held stays until the claim's status says that all its processes
             act by that revision
    over     the claim, its allocation, or its wish is gone: with the wish the limits are what was allocated,
             and the hold goes when that is acknowledged

All of it follows from the claim and its hold, each write is one object of which it names the version, so it
does not matter which leader goes on with it. Pods that wait are planned before: what is left is for growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.device_status import device_key
from koordra.api.devices import Device, DeviceID, ResourceSlice
from koordra.api.kinds import DEVICE_HOLDS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.opaque.configuration import configuration
from koordra.api.opaque.resize import ANNOTATION, readable
from koordra.api.opaque.share_limits import (
    ALWAYS,
    RESIZED,
    RESIZED_ON,
    Amounts,
    ResizedClaim,
    ShareLimits,
    claim_of_owner,
    label_of,
    owner_of,
    resized_claim,
)
from koordra.api.tables import set_or_drop
from koordra.compat.quota_charges import OWN_CORES, OWN_COUNT, OWN_MEMORY
from koordra.controller import claims as claims_of
from koordra.controller.allocation.hold_object import object_name
from koordra.controller.allocation.hold_writes import HoldWrites
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.allocation.reserved.resize_decision import (
    INFEASIBLE,
    Decided,
    OwnShare,
    beyond,
    capacities,
    decide,
    largest,
    shares_of,
)
from koordra.controller.reporting import claim_events
from koordra.errors import InvalidInput
from koordra.inert import inert
from koordra.placement.holders.device_hold import DeviceHold, Seat
from koordra.quantity import canonical

MOST: Final = 200
"""Claims that are looked at in one pass."""
TRIED_FOR: Final = 30.0
"""Seconds after which room is looked for although nothing has changed: a quota may have been raised."""
LONGEST_REFUSAL: Final = 512


class Resizes:
    """Not thread-safe."""

    def __init__(self, context: PassContext, placer: Placer, writes: HoldWrites, *, quotas: Quotas) -> None:
        self._context, self._placer = context, placer
        self._writes, self._quotas = writes, quotas
        self._holds: dict[str, DeviceHold] = {}
        """By key of the claim."""
        self._touched: set[str] = set()
        self._deferred: dict[str, tuple[object, float]] = {}
        """What was there when a claim found no room, and when it is tried anyway."""
        self._told: dict[str, tuple[int, str]] = {}
        """By key of the claim: the revision, and the refusal, that it was told of."""
        context.cache.listen(DEVICE_HOLDS, self._on_hold, replay=True)
        context.cache.listen(RESOURCE_CLAIMS, self._on_claim, replay=True)

    def _on_claim(self, key: str, before: Object | None, now: Object | None) -> None:
        if key in self._holds or any(
            obj is not None and ANNOTATION in objects.annotations_of(obj) for obj in (before, now)
        ):
            self._touched.add(key)

    def _on_hold(self, key: str, before: Object | None, now: Object | None) -> None:
        for obj in filter(None, (before, now)):
            hold = DeviceHold.of(obj)
            if (claim := claim_of_owner(hold.owner)) is not None:
                if obj is now or key == self._holds.get(claim, hold).key:
                    set_or_drop(self._holds, claim, hold if obj is now else None)
                self._touched.add(claim)

    def step(self, basis: object) -> None:
        """`basis`: another one where room may have been made. Raises ApiUnreachable."""
        context, now = self._context, self._context.clock()
        due = {key for key, (tried, again) in self._deferred.items() if tried != basis or again <= now}
        for number, key in enumerate(sorted(self._touched | due)):
            if number == MOST:
                context.wake(now)
                return
            self._touched.discard(key)
            self._deferred.pop(key, None)
            if self._settle(key):
                self._deferred[key] = basis, now + TRIED_FOR
        if self._deferred:
            context.wake(min(again for _, again in self._deferred.values()))

    def _settle(self, key: str) -> bool:
        """Whether it waits for room."""
        cache, hold = self._context.cache, self._holds.get(key)
        claim = cache.claims.get(key)
        before = None if hold is None else resized_claim(hold.obj)
        if hold is not None and (claim is None or not _is_of(hold, before, claim)):
            self._change(key, replace(hold, seats=()), hold)
            hold = before = None
        if claim is None or not claims_of.holds_koordra_devices(claim):
            self._told.pop(key, None)
            return False
        has_wish = ANNOTATION in objects.annotations_of(claim)
        node = claims_of.node_of(claim)
        if (hold is None and not has_wish) or node is None or node not in self._placer.nodes:
            return False
        try:
            allocation = Allocation.of_claim(claim)
            assert allocation is not None
            config, offered = configuration(allocation.config, claim=key, holds=True), self._offered(node)
        except InvalidInput:
            return False  # told as the claim's trouble by who prepares it, or as the node's
        shares = shares_of(allocation, config, offered)
        if shares is None:
            return True
        wishes, unreadable = readable(claim)
        decided = decide(
            shares,
            wishes,
            config,
            before=before,
            free=FreeOn(offered, self._placer),
            quota=lambda more: self._over_quota(claim, more),
        )
        if unreadable:
            decided = replace(decided, limits=_present(shares, before), refused=f"{INFEASIBLE}: {unreadable}")
        is_done = before is not None and is_acknowledged(claim, before)
        seat = _seat(claim, node, shares, decided, before, is_done=is_done)
        if (
            not has_wish
            and is_done
            and before is not None
            and not seat.devices
            and seat.revision == before.revision
        ):
            assert hold is not None
            self._change(key, replace(hold, seats=()), hold)
            self._told.pop(key, None)
            return False
        seat = replace(seat, charged=self._charged(shares, seat))
        self._write(key, claim, hold, seat)
        self._tell(key, claim, shares, decided, seat, is_done=is_done)
        return decided.is_deferred

    def _write(self, key: str, claim: Object, hold: DeviceHold | None, seat: Seat) -> None:
        if hold is not None:
            self._change(key, replace(hold, seats=(seat,)), hold)
            return
        uid = objects.uid(claim)
        metadata = {
            "name": object_name(f"claim {key}", objects.name(claim), [replace(seat, pod=uid)]),
            "namespace": objects.namespace(claim),
            "labels": {RESIZED_ON: label_of(seat.node)},
            "ownerReferences": [{**RESOURCE_CLAIMS.type_meta, "name": objects.name(claim), "uid": uid}],
        }
        wanted = DeviceHold({"metadata": metadata}, owner_of(key), 0, 0, (seat,))
        if not self._writes.create(metadata, wanted):
            self._deferred[key] = None, self._context.clock() + REFUSED_PAUSE

    def _change(self, key: str, wanted: DeviceHold, hold: DeviceHold) -> None:
        if self._writes.change(wanted, hold):
            self._deferred[key] = None, self._context.clock() + REFUSED_PAUSE

    def _offered(self, node: str) -> dict[DeviceID, Device]:
        """What the node publishes now, in either mode. Raises InvalidInput."""
        slices = map(ResourceSlice.from_dict, self._context.cache.slice_index.published(node))
        return {
            DeviceID(names.DRIVER, one.pool, device.name): device
            for one in slices
            if one.driver == names.DRIVER
            for device in one.devices
        }

    def _over_quota(self, claim: Object, more: Amounts) -> str:
        charged = self._charge(more)
        return self._quotas.refusal(objects.namespace(claim), charged) if charged else ""

    def _charged(self, shares: Sequence[OwnShare], seat: Seat) -> Object:
        found = resized_claim({"spec": {"owner": owner_of("a/b"), "seats": [seat.to_dict()]}})
        total = dict[str, Decimal]()
        for share in shares if found is not None else ():
            assert found is not None
            for name, amount in found.held.get(share.key, {}).items():
                total[name] = total.get(name, Decimal(0)) + amount
        return self._charge(total) if total else {}

    def _charge(self, more: Amounts) -> Object:
        """As which so much of a card counts for quotas, beside the share that is counted already."""
        capacity = {"requests": {name: canonical(amount) for name, amount in more.items()}}
        asked = {"name": "more", "exactly": {"deviceClassName": names.CLASS_GPU, "capacity": capacity}}
        charged = self._quotas.charged([{"devices": {"requests": [asked]}}])
        unsaid = {OWN_MEMORY: names.CAPACITY_MEMORY, OWN_CORES: names.CAPACITY_CORES}
        left_out = (own for own, name in unsaid.items() if name not in more)
        amounts = objects.without(objects.fields(charged.get("amounts")), OWN_COUNT, *left_out)
        return {"amounts": amounts} if amounts else {}

    def _tell(
        self,
        key: str,
        claim: Object,
        shares: Sequence[OwnShare],
        decided: Decided,
        seat: Seat,
        *,
        is_done: bool,
    ) -> None:
        """Once of each refusal, and of each revision that is acknowledged."""
        before = self._told.get(key, (0, ""))
        if seat.refused and seat.refused != before[1]:
            self._context.events.report(claim_events.resize_refused(claim, why=seat.refused))
        told = before[0]
        if is_done and seat.revision != told and not seat.refused:
            told = seat.revision
            of = {share.key: share.allocated for share in shares}
            text = "; ".join(f"{one.device}: {one.words(of[one.key])}" for one in decided.limits)
            self._context.events.report(claim_events.resized(claim, limits=text))
        self._told[key] = told, seat.refused


class FreeOn:
    """What nobody has of the devices of a node, held amounts included."""

    def __init__(self, offered: Mapping[DeviceID, Device], placer: Placer) -> None:
        self._offered, self._taken = offered, placer.engine.index.taken

    def __call__(self, device: DeviceID) -> dict[str, Decimal]:
        if device not in self._offered:
            return {}
        used = self._taken.of(device).consumed
        return {
            name: max(Decimal(0), amount - used.get(name, Decimal(0)))
            for name, amount in capacities(self._offered[device]).items()
        }


def _present(shares: Sequence[OwnShare], before: ResizedClaim | None) -> tuple[ShareLimits, ...]:
    return tuple(
        share.limits if before is None else before.limits.get(share.key, share.limits) for share in shares
    )


def _is_of(hold: DeviceHold, before: ResizedClaim | None, claim: Object) -> bool:
    """Whether the hold is about the claim as it is allocated now."""
    if before is None or before.uid != objects.uid(claim) or not claims_of.is_allocated(claim):
        return False
    has = {(str(one.get("device")), one.get("shareID")) for one in claims_of.results(claim)}
    is_here = {seat.node for seat in hold.seats} == {claims_of.node_of(claim)}
    return is_here and before.limits.keys() <= has and before.held.keys() <= has


def is_acknowledged(claim: Fields, granted: ResizedClaim) -> bool:
    """Whether the plugin of the node says of every share that all processes act by this revision."""
    said = {
        device_key(entry)[2:]: condition
        for entry in objects.status_of(claim).get("devices") or ()
        if isinstance(entry, Mapping) and entry.get("driver") == names.DRIVER
        for condition in entry.get("conditions") or ()
        if condition.get("type") == RESIZED
    }
    return all(
        said.get(key, {}).get("status") == "True" and said[key].get("observedGeneration") == granted.revision
        for key in granted.limits
    )


def _seat(
    claim: Object,
    node: str,
    shares: Sequence[OwnShare],
    decided: Decided,
    before: ResizedClaim | None,
    *,
    is_done: bool,
) -> Seat:
    """What is held is enough for the limits, and for those before until nobody acts by them."""
    limits = {one.key: one for one in decided.limits}
    is_same = before is not None and before.limits == limits
    devices = []
    for share in shares:
        held: list[Amounts] = [beyond(limits[share.key], share.allocated)]
        if before is not None and not is_done:
            held.append(before.held.get(share.key, {}))
        elif before is not None and share.key in before.limits and not is_same:
            held.append(beyond(before.limits[share.key], share.allocated))
        if amounts := largest(held):
            result = replace(share.result, consumed=amounts, consumed_spelled={})
            spelled = {name: canonical(amount) for name, amount in sorted(amounts.items())}
            devices.append({**result.to_dict(), "consumedCapacity": spelled})
    revision = 0 if before is None else before.revision
    return Seat(
        name="",
        node=node,
        pod="",
        claims=((objects.name(claim), objects.uid(claim)),),
        devices=tuple(devices),
        until=ALWAYS,
        limits=tuple(one.to_dict() for one in decided.limits),
        revision=revision if is_same else revision + 1,
        refused=inert(decided.refused)[:LONGEST_REFUSAL],
    )

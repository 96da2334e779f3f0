"""Why a group does not fit on a node: per device and request, and the clause that all of it together fails.

First what each device says by itself (selector, taint, in use, no room, counters). Devices of another class than the one
asked for are not told where some devices are of the class. A request with fewer usable devices than it needs is the whole
story. Otherwise the devices would do one by one, and the search is asked again with clauses left out: without the
partitions of the fabric, without the JointAllocations, then without the constraints too. The first relaxation that fits names the clause at fault, and how it
would fit is told as the nearest miss. When nothing helps, the amounts asked for in all are set against what is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from koordra.allocator import constraints as rules
from koordra.allocator.bounds import candidates_of, enough
from koordra.allocator.fabric import HONOR, POLICY_LABELS, spelled_sizes
from koordra.allocator.joint import Rule
from koordra.allocator.node_state import NodeState
from koordra.allocator.reasons import Cause, Reason, figure
from koordra.allocator.requests import AskedClaim, Wanted
from koordra.allocator.search import Search
from koordra.api.parameters import Scope
from koordra.errors import PlanError

_BUDGET: Final = 20_000
"""Placements a relaxation may try; past that the nearest miss is left untold."""

_TOLD_CONSTRAINTS: Final = 3

Told = tuple[int, Reason]
"""A reason with the position of the claim it is for."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why one device does not do; `lacking` of the capacity `name` is missing where it is a matter of amounts."""

    cause: Cause
    detail: str
    name: str = ""
    lacking: Decimal = Decimal(0)


@dataclass(slots=True)
class _Diagnosis:
    node: str
    claims: Sequence[AskedClaim]
    state: NodeState
    joint_rules: Sequence[Rule]
    known: dict[tuple[object, ...], list[Told]]
    form: tuple[object, ...]
    of_devices: list[Told] = field(default_factory=list)
    of_requests: list[Told] = field(default_factory=list)

    def run(self) -> list[Told]:
        served = True
        for position, claim in enumerate(self.claims):
            for request in claim.requests:
                # All alternatives are told, but one that could be served is enough.
                could = [self._tell(position, claim, wanted) for wanted in request.alternatives]
                served = served and any(could)
        for pool in self.state.pools:
            if pool.trouble:
                detail = f"pool {pool} is {'incomplete' if pool.incomplete else 'invalid'}: {pool.trouble}"
                self._for_all(Cause.POOL_INCOMPLETE, detail)
        if served:
            self.of_requests += self._together_known()
        return [*self.of_requests, *self.of_devices]

    def _together_known(self) -> list[Told]:
        """A node of the same form has the same story, so it is worked out once."""
        if self.form not in self.known:
            self.known[self.form] = self._together()
        return [(position, replace(reason, node=self.node)) for position, reason in self.known[self.form]]

    def _for_all(self, cause: Cause, detail: str) -> None:
        reason = Reason(self.node, None, None, cause.value, detail)
        self.of_requests += [(position, reason) for position in range(len(self.claims))]

    def _tell(self, position: int, claim: AskedClaim, wanted: Wanted) -> bool:
        """Tell the devices that cannot serve the request; true when enough others can."""
        own, state = claim.own_driver_only, self.state
        of_class = [
            device
            for device in range(len(state.devices))
            if state.verdict(wanted, device, own_driver_only=own).of_class
        ]
        usable, misses = 0, dict[int, Miss]()
        for device in of_class or range(len(state.devices)):
            miss = device_reason(wanted, device, state, own_driver_only=own)
            if miss is None:
                usable += 1
                continue
            misses[device] = miss
            name = state.devices[device].id.device
            self.of_devices.append(
                (position, Reason(self.node, name, wanted.label, miss.cause.value, miss.detail))
            )
        needed = 1 if wanted.takes_all else wanted.spec.count
        if usable >= needed:
            return True
        if not state.devices and any(pool.trouble for pool in state.pools):
            return False
        causes = {miss.cause for miss in misses.values()}
        cause = next((cause for cause in Cause if cause in causes), Cause.INSUFFICIENT_CAPACITY)
        detail = f"devices: requested {needed}, free {usable} of {len(of_class)} of class {wanted.device_class.name}"
        if not state.devices:
            detail = f"devices: requested {needed}, the node publishes none"
        detail += self._nearest(misses)
        self.of_requests.append((position, Reason(self.node, None, wanted.label, cause.value, detail)))
        return False

    def _nearest(self, misses: dict[int, Miss]) -> str:
        """The device that lacks least of what it is short of."""
        short = {device: miss for device, miss in misses.items() if miss.lacking > 0}
        if not short:
            return ""

        def part(device: int) -> Decimal:
            total = self.state.devices[device].device.capacity[short[device].name].value
            return short[device].lacking / total if total else Decimal("Infinity")

        nearest = min(short, key=lambda device: (part(device), device))
        lacks = f"{figure(short[nearest].lacking)} of {short[nearest].name}"
        return f"; nearest miss {self.state.devices[nearest].id.device} lacks {lacks}"

    # --- all requests have devices, together they do not fit -----------------------------------------------------------

    def _together(self) -> list[Told]:
        short = list(self._short_classes())
        if short:
            return short
        demanded = self.state.honors_partitions and bool(self.state.fabric.partitions)
        if demanded and self._fits(self.joint_rules, without_partitions=True):
            return list(self._no_partition())
        if any(rule.scope is not None for rule in self.joint_rules) and self._fits(()):
            return list(self._unmet_scopes())
        if any(claim.constraints for claim in self.claims) and self._fits((), without_constraints=True):
            return list(self._violated())
        several = "" if len(self.claims) == 1 else f" of the {len(self.claims)} claims that belong together"
        detail = f"every request has enough devices by itself, but not all requests{several} at once: {self._totals_text()}"
        reason = Reason(self.node, None, None, Cause.INSUFFICIENT_CAPACITY.value, detail)
        return [(position, reason) for position in range(len(self.claims))]

    def _short_classes(self) -> Iterator[Told]:
        """Classes of which all requests together want more devices than there are places."""
        found = candidates_of(self.claims, self.state)
        for name in sorted({wanted.device_class.name for wanted in found or ()}):
            of_class = {
                wanted: devices
                for wanted, devices in (found or {}).items()
                if wanted.device_class.name == name
            }
            if enough(self.state, of_class):
                continue
            asked = sum(wanted.spec.count for wanted in of_class)
            free = len({device for devices in of_class.values() for device in devices})
            detail = (
                f"class {name}: {asked} devices requested in all, {free} have room: {self._totals_text()}"
            )
            for position in sorted({wanted.claim for wanted in of_class}):
                yield position, Reason(self.node, None, None, Cause.INSUFFICIENT_CAPACITY.value, detail)

    def _unmet_scopes(self) -> Iterator[Told]:
        for rule in self.joint_rules:
            if rule.scope is None:
                continue
            reached = self._reachable(rule)
            nearest = (
                f"it would fit with scope {reached}"
                if reached
                else "it would fit without the JointAllocation"
            )
            detail = (
                f"JointAllocation scope {rule.scope}, pairing {rule.pairing}: "
                f"no choice of the free devices meets it; {nearest}"
            )
            for position in sorted({claim for claim, _ in rule.members}):
                yield position, Reason(self.node, None, None, Cause.TOPOLOGY_SCOPE_UNMET.value, detail)

    def _violated(self) -> Iterator[Told]:
        for position, claim in enumerate(self.claims):
            more = len(claim.constraints) - _TOLD_CONSTRAINTS
            for index, constraint in enumerate(claim.constraints[:_TOLD_CONSTRAINTS]):
                detail = (
                    f"{constraint}: the free devices have {self._values_text(claim, index)}; "
                    "it would fit without the constraints of the claim"
                )
                if more > 0 and index == _TOLD_CONSTRAINTS - 1:
                    detail += f" ({more} more constraints)"
                covered = ", ".join(constraint.requests) or None
                yield position, Reason(self.node, None, covered, Cause.CONSTRAINT_VIOLATED.value, detail)

    def _no_partition(self) -> Iterator[Told]:
        """The node's fabric is given out in partitions, and those of the sizes asked for are not free."""
        state = self.state
        free = {card for card in state.fabric.cards if not state.busy[card] and not state.holders[card]}
        whole = [members for members in state.fabric.partitions if members <= free]
        listed = ", ".join(
            "{" + " ".join(state.devices[card].id.device for card in sorted(members)) + "}"
            for members in whole
        )
        for position, claim in enumerate(self.claims):
            cards = sum(
                wanted.spec.count
                for wanted in (request.alternatives[0] for request in claim.requests)
                if any(
                    state.verdict(wanted, card, own_driver_only=claim.own_driver_only).demand is not None
                    for card in state.fabric.cards
                )
            )
            if not cards:
                continue
            detail = (
                f"partitions of the NVLink fabric: requested {cards} GPUs, the node gives out {spelled_sizes(state.fabric.sizes)} "
                f"together; free are {listed or 'single cards only'}; it would fit without {POLICY_LABELS[0]}: {HONOR}"
            )
            yield position, Reason(self.node, None, None, Cause.PARTITION_MISMATCH.value, detail)

    def _fits(
        self,
        joint_rules: Sequence[Rule],
        *,
        without_constraints: bool = False,
        without_partitions: bool = False,
    ) -> bool:
        search = Search(
            self.claims,
            self.state,
            joint_rules=joint_rules,
            strict=False,
            without_constraints=without_constraints,
            without_partitions=without_partitions,
            budget=_BUDGET,
        )
        try:
            return search.run().solution is not None
        except PlanError:
            return False
        finally:
            search.unwind()

    def _reachable(self, rule: Rule) -> Scope | None:
        """The narrowest wider scope with which the group would fit."""
        ladder = list(Scope)
        assert rule.scope is not None
        for scope in ladder[ladder.index(rule.scope) + 1 :]:
            relaxed = [
                Rule(other.members, scope, other.pairing) if other is rule else other
                for other in self.joint_rules
            ]
            if self._fits(relaxed):
                return scope
        return None

    def _values_text(self, claim: AskedClaim, index: int) -> str:
        """How many usable devices have which value, over the requests that the constraint covers."""
        constraint = claim.constraints[index]
        name = rules.attribute_of(constraint)
        counts: dict[str, dict[str, int]] = {}
        for wanted in (wanted for request in claim.requests for wanted in request.alternatives):
            if not constraint.covers(wanted.base, wanted.sub):
                continue
            for device, offered in enumerate(self.state.devices):
                if device_reason(wanted, device, self.state, own_driver_only=claim.own_driver_only) is None:
                    attribute = offered.facts.attributes.get(name)
                    value = "no value" if attribute is None else str(attribute)
                    tally = counts.setdefault(wanted.label, {})
                    tally[value] = tally.get(value, 0) + 1
        parts = [
            f"{label}: " + ", ".join(f"{value} x{times}" for value, times in sorted(tally.items()))
            for label, tally in sorted(counts.items())
        ]
        return "; ".join(parts) or f"no {name}"

    def _totals_text(self) -> str:
        """What is asked for in all and what is free, per capacity, over the devices that could serve something."""
        asked: dict[str, Decimal] = {}
        free: dict[str, Decimal] = {}
        serving: set[int] = set()
        devices = 0
        for claim in self.claims:
            for wanted in (request.alternatives[0] for request in claim.requests):
                count = 1 if wanted.takes_all else wanted.spec.count
                devices += count
                fitting = [
                    device
                    for device in range(len(self.state.devices))
                    if device_reason(wanted, device, self.state, own_driver_only=claim.own_driver_only)
                    is None
                ]
                serving.update(fitting)
                demands = [self.state.demand(wanted, device) for device in fitting]
                for demand in demands[:1]:
                    for name, amount in demand.amounts.items() if demand else ():
                        asked[name] = asked.get(name, Decimal(0)) + amount * count
        for device in serving:
            for name, capacity in self.state.devices[device].device.capacity.items():
                left = capacity.value - self.state.used[device].get(name, Decimal(0))
                free[name] = free.get(name, Decimal(0)) + left
        amounts = [
            f"{name} {figure(amount)} of {figure(free.get(name, Decimal(0)))} free"
            for name, amount in sorted(asked.items())
            if amount > 0
        ]
        return ", ".join([f"requested {devices} devices, {len(serving)} have room", *amounts])


def reasons_on_node(
    node: str,
    claims: Sequence[AskedClaim],
    state: NodeState,
    *,
    joint_rules: Sequence[Rule],
    known: dict[tuple[object, ...], list[Told]] | None = None,
    form: tuple[object, ...] = (),
) -> list[Told]:
    """Everything that keeps the group off the node; never empty.

    `known` remembers what was found for nodes by their `form`; an empty form is remembered for nobody.
    """
    remembered = known if known is not None and form else {}
    return _Diagnosis(node, claims, state, joint_rules, remembered, form).run()


def device_reason(wanted: Wanted, device: int, state: NodeState, *, own_driver_only: bool) -> Miss | None:
    """Why the device cannot serve the request as things stand; None when it can."""
    offered = state.devices[device]
    verdict = state.verdict(wanted, device, own_driver_only=own_driver_only)
    if verdict.short_of is not None:
        return _no_room(state, device, *verdict.short_of)
    if verdict.cause is not None:
        return Miss(verdict.cause, verdict.detail)
    if wanted.spec.admin_access or verdict.demand is None:
        return None
    if state.busy[device]:
        holder = state.taken.dedicated.get(offered.id)
        by = f"by ResourceClaim {holder}" if holder else f"in {state.holders[device]} shares"
        return Miss(Cause.ALREADY_ALLOCATED, f"device: requested 1, free 0 of 1, in use {by}")
    for name, amount in sorted(verdict.demand.amounts.items()):
        if amount > offered.device.capacity[name].value - state.used[device].get(name, Decimal(0)):
            return _no_room(state, device, name, amount)
    if not (state.shared[device] and state.holders[device]):
        pool = state.pool_of[device]
        for set_name, counters in sorted(offered.device.consumes_counters.items()):
            for counter, amount in sorted(counters.items()):
                available = max(state.counters[pool].get((set_name, counter), Decimal(0)), Decimal(0))
                if amount > available:
                    total = state.pools[pool].counters.get((set_name, counter), Decimal(0))
                    free = f"free {figure(available)} of {figure(total)}"
                    detail = f"counter {set_name}/{counter}: requested {figure(amount)}, {free}"
                    return Miss(Cause.COUNTERS_EXHAUSTED, detail)
    return None


def _no_room(state: NodeState, device: int, name: str, amount: Decimal) -> Miss:
    total = state.devices[device].device.capacity[name].value
    free = max(total - state.used[device].get(name, Decimal(0)), Decimal(0))
    detail = f"{name}: requested {figure(amount)}, free {figure(free)} of {figure(total)}"
    return Miss(Cause.INSUFFICIENT_CAPACITY, detail, name, amount - free)

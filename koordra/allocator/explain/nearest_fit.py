"""Why all requests together do not fit on a node, though each of them would: which clause to take away so that they do.

First counting: a class of which more devices are asked for than have room. Then the search is asked again with clauses left
out, each by itself and then more of them: a JointAllocation in a wider scope, or without it; one constraint, or those of one
claim, or all; the demand for partitions of the NVLink fabric; at last the shared counters. The first relaxation that fits
is told as the nearest miss, and what is told is exactly what was tried, so taking it away does make the group fit. When
nothing helps, the amounts asked for in all are set against what is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from koordra.allocator import constraints as rules
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.devices.nvlink_fabric import PartitionTracker, spelled_sizes
from koordra.allocator.explain.rejection import device_reason
from koordra.allocator.joint_allocation import Rule, ScopeTracker
from koordra.allocator.node_state import NodeState
from koordra.allocator.reasons import Cause, Reason, figure
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.search.feasibility import Candidates, candidates_of, enough, narrow, rooms_of
from koordra.allocator.search.search import Search
from koordra.api import names
from koordra.api.opaque.parameters import Scope
from koordra.errors import PlanError

_BUDGET: Final = 5_000
"""Placements a relaxation may try; past that the nearest miss is left untold."""

_TOLD_CONSTRAINTS: Final = 3
_TOLD_COUNTERS: Final = 4
_TRIED_ALONE: Final = 4
_BUDGET_ALONE: Final = 400
"""How many constraints are left out one by one, and the placements that each of them may try."""

ClaimReason = tuple[int, Reason]
"""A reason with the position of the claim it is for."""

ConstraintAt = tuple[int, int]
"""A constraint by the position of its claim and its own."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the clauses: rules, constraints that are taken away, whether partitions are still demanded and shared
    counters count."""

    joint_rules: tuple[Rule, ...]
    without: frozenset[ConstraintAt] = frozenset()
    partitions: bool = True
    counters: bool = True


@dataclass(slots=True)
class Together:
    node: str
    claims: Sequence[ResolvedClaim]
    state: NodeState
    joint_rules: Sequence[Rule]
    candidates: Candidates | None = None

    def reasons(self) -> list[ClaimReason]:
        self.candidates = candidates_of(self.claims, self.state)
        short = list(self._short_classes())
        if short:
            return short
        return self._nearest() or self._for_all(Cause.INSUFFICIENT_CAPACITY, self._totals())

    def _for_all(self, cause: Cause, detail: str) -> list[ClaimReason]:
        reason = Reason(self.node, None, None, cause.value, detail)
        return [(position, reason) for position in range(len(self.claims))]

    def _totals(self) -> str:
        several = "" if len(self.claims) == 1 else f" of the {len(self.claims)} claims that belong together"
        return f"every request has enough devices by itself, but not all requests{several} at once: {self._totals_text()}"

    # --- relaxations ----------------------------------------------------------------------------------------------------

    def _nearest(self) -> list[ClaimReason]:
        """One kind of clause is left out, then two, then all; the first that fits tells its story."""
        demanded = self.state.demanded_of(self.claims)
        joints = tuple(rule for rule in self.joint_rules if rule.scope is not None)
        constraints = frozenset(
            (position, index)
            for position, claim in enumerate(self.claims)
            for index in range(len(claim.constraints))
        )
        kinds = [
            kind
            for kind, there in (
                ("partitions", demanded is not None),
                ("joints", joints),
                ("constraints", constraints),
            )
            if there
        ]
        for count in range(1, len(kinds) + 1):
            for out in itertools.combinations(kinds, count):
                left = Left(
                    () if "joints" in out else joints,
                    constraints if "constraints" in out else frozenset(),
                    "partitions" not in out,
                )
                if self._fits(left):
                    return list(self._story(out, left, joints, demanded))
        if self._fits(Left(joints, counters=False)):
            return self._for_all(Cause.COUNTERS_EXHAUSTED, self._exclusion())
        return []

    def _story(
        self, out: Sequence[str], left: Left, joints: tuple[Rule, ...], demanded: PartitionTracker | None
    ) -> Iterator[ClaimReason]:
        alone = len(out) == 1
        wanted = []
        if "joints" in out:
            wanted.append("the JointAllocation" if len(joints) == 1 else "the JointAllocations")
        if "constraints" in out:
            wanted.append("the constraints")
        if "partitions" in out and demanded is not None:
            wanted.append(self._demands(demanded))
        nearest = "" if alone else f"it would fit without {' and '.join(wanted)}"
        if "partitions" in out and demanded is not None:
            yield from self._no_partition(demanded, nearest)
        if "joints" in out:
            yield from self._unmet_scopes(joints, left, nearest)
        if "constraints" in out:
            yield from self._violated(left, nearest)

    def _fits(self, left: Left, *, budget: int = _BUDGET) -> bool:
        search = Search(
            self.claims,
            self.state,
            joint_rules=left.joint_rules,
            strict=False,
            in_any_order=True,
            without_constraints=left.without,
            without_partitions=not left.partitions,
            without_counters=not left.counters,
            budget=budget,
        )
        try:
            if self.candidates is not None and left.counters:
                search.candidates = narrow(
                    self.claims,
                    self.state,
                    self.candidates,
                    joint_rules=left.joint_rules,
                    without=left.without,
                )
                if not enough(search.candidates, rooms_of(self.state, search.candidates)):
                    return False
            return search.run().solution is not None
        except PlanError:
            return False
        finally:
            search.unwind()

    # --- JointAllocations -----------------------------------------------------------------------------------------------

    def _unmet_scopes(self, joints: tuple[Rule, ...], left: Left, nearest: str) -> Iterator[ClaimReason]:
        alone = {rule: self._relaxed(rule, joints, left) for rule in joints} if not nearest else {}
        at_fault = [rule for rule in joints if alone.get(rule)] or list(joints)
        for rule in at_fault:
            end = alone.get(rule) or nearest or "it would fit without the JointAllocations"
            detail = (
                f"JointAllocation scope {rule.scope}, pairing {rule.pairing}: {self._scope_text(rule)}; {end}"
            )
            for position in sorted({claim for claim, _ in rule.members}):
                yield position, Reason(self.node, None, None, Cause.TOPOLOGY_SCOPE_UNMET.value, detail)

    def _scope_text(self, rule: Rule) -> str:
        """What the rule's requests ask for, and how the devices that would do lie in the scope."""
        tally, asked, places = ScopeTracker(rule), {GPU: 0, NIC: 0}, dict[str, set[int]]()
        devices = self.state.devices
        for position, index in sorted(rule.members):
            claim = self.claims[position]
            wanted = claim.requests[index].alternatives[0]
            usable = [
                device
                for device, offered in enumerate(devices)
                if offered.kind in asked and device_reason(wanted, device, self.state) is None
            ]
            for kind in {devices[device].kind for device in usable[:1]}:
                asked[kind] += len(usable) if wanted.takes_all else wanted.spec.count
            for device in usable:
                places.setdefault(tally.key(devices[device]) or "no known place", set()).add(device)
        shapes: dict[str, int] = {}
        for found in places.values():
            text = _counted({kind: sum(devices[device].kind == kind for device in found) for kind in asked})
            shapes[text] = shapes.get(text, 0) + 1
        free = ", ".join(f"{times} x ({text})" for text, times in sorted(shapes.items()))
        return f"requested {_counted(asked)}; free per {rule.scope}: {free}"

    def _relaxed(self, rule: Rule, joints: tuple[Rule, ...], left: Left) -> str:
        """The narrowest wider scope of this one rule with which the group fits, or that it fits without the rule."""
        assert rule.scope is not None
        scopes = list(Scope)
        wider: list[Scope | None] = [*scopes[scopes.index(rule.scope) + 1 :], None]
        for scope in wider:
            changed = tuple(replace(other, scope=scope) if other is rule else other for other in joints)
            if self._fits(replace(left, joint_rules=changed)):
                return (
                    f"it would fit with scope {scope}"
                    if scope
                    else "it would fit without the JointAllocation"
                )
        return ""

    # --- constraints ----------------------------------------------------------------------------------------------------

    def _violated(self, left: Left, nearest: str) -> Iterator[ClaimReason]:
        every = sorted(left.without)
        at_fault: list[ConstraintAt] = []
        if not nearest:
            for one in every[:_TRIED_ALONE]:
                if self._fits(replace(left, without=frozenset({one})), budget=_BUDGET_ALONE):
                    at_fault = [one]
                    break
            nearest = "it would fit without it" if at_fault else ""
        if not nearest:
            for position in sorted({claim for claim, _ in every}):
                own = frozenset(one for one in every if one[0] == position)
                if self._fits(replace(left, without=own)):
                    at_fault, nearest = sorted(own), "it would fit without the constraints of the claim"
                    break
        at_fault = at_fault or every
        nearest = nearest or "it would fit without the constraints of the claims"
        for position, claim in enumerate(self.claims):
            own_faults = [index for owner, index in at_fault if owner == position]
            more = len(own_faults) - _TOLD_CONSTRAINTS
            for number, index in enumerate(own_faults[:_TOLD_CONSTRAINTS], start=1):
                constraint = claim.constraints[index]
                detail = f"{constraint}: the free devices have {self._values_text(claim, index)}; {nearest}"
                if more > 0 and number == _TOLD_CONSTRAINTS:
                    detail += f" ({more} more constraints)"
                covered = ", ".join(constraint.requests) or None
                yield position, Reason(self.node, None, covered, Cause.CONSTRAINT_VIOLATED.value, detail)

    # --- shared counters ------------------------------------------------------------------------------------------------

    def _exclusion(self) -> str:
        """Devices that exclude each other: for each request one that would do, with the counter it takes most of."""
        state, told = self.state, []
        for claim in self.claims:
            for wanted in (request.alternatives[0] for request in claim.requests):
                usable = (
                    device
                    for device, offered in enumerate(state.devices)
                    if offered.device.consumes_counters and device_reason(wanted, device, state) is None
                )
                device = next(usable, None)
                if device is not None:
                    text = f"{wanted.label}: {self._takes_text(device)}"
                    told += [text] if text not in told else []
        more = f"; {len(told) - _TOLD_COUNTERS} more requests" if len(told) > _TOLD_COUNTERS else ""
        return (
            "devices that take of the same counters exclude each other: "
            f"{'; '.join(told[:_TOLD_COUNTERS])}{more}; all would fit if they did not"
        )

    def _takes_text(self, device: int) -> str:
        offered = self.state.devices[device]
        takes = {
            (set_name, counter): amount
            for set_name, counters in offered.device.consumes_counters.items()
            for counter, amount in counters.items()
        }
        left = {counter: self.state.counters_left(device, counter) for counter in takes}
        most = max(sorted(takes), key=lambda one: takes[one] / (left[one] or Decimal(1)))
        free = figure(left[most])
        return (
            f"{offered.id.device} takes {figure(takes[most])} of {'/'.join(most)}, of which {free} are free"
        )

    # --- partitions -----------------------------------------------------------------------------------------------------

    def _demands(self, demanded: PartitionTracker) -> str:
        said = []
        if self.state.honors_partitions and self.state.fabric.partitions:
            said.append(f"{names.PARTITION_POLICY_LABELS[0]}: {names.PARTITION_HONOR}")
        if any(self.claims[position].demands_partition for position in demanded.claims):
            said.append(f"GpuConfig partition: {names.PARTITION_HONOR}")
        return " and ".join(said)

    def _no_partition(self, demanded: PartitionTracker, nearest: str) -> Iterator[ClaimReason]:
        """Cards are to be partitions of the node's fabric, and those of the sizes asked for are not free."""
        state = self.state
        nearest = nearest or f"it would fit without {self._demands(demanded)}"
        free = {card for card in demanded.cards if not state.busy[card] and not state.holders[card]}
        whole = [members for members in state.fabric.partitions if members <= free]
        listed = ", ".join(
            "{" + " ".join(state.devices[card].id.device for card in sorted(members)) + "}"
            for members in whole
        )
        for position, claim in enumerate(self.claims):
            cards, every = 0, ""
            for wanted in (request.alternatives[0] for request in claim.requests):
                fitting = [card for card in demanded.cards if state.verdict(wanted, card).demand is not None]
                if fitting:
                    cards += len(fitting) if wanted.takes_all else wanted.spec.count
                    every = "all " if wanted.takes_all else every
            if not cards or position not in demanded.claims:
                continue
            sizes = spelled_sizes(state.fabric.sizes)
            detail = (
                f"partitions of the NVLink fabric: requested {every}{cards} GPUs, the node gives out {sizes} together; "
                f"free are {listed or 'single cards only'}; {nearest}"
            )
            yield position, Reason(self.node, None, None, Cause.PARTITION_MISMATCH.value, detail)

    # --- figures --------------------------------------------------------------------------------------------------------

    def _short_classes(self) -> Iterator[ClaimReason]:
        """Classes of which all requests together want more devices than there are places."""
        found = self.candidates
        for name in sorted({wanted.device_class.name for wanted in found or ()}):
            of_class = {
                wanted: devices
                for wanted, devices in (found or {}).items()
                if wanted.device_class.name == name
            }
            if enough(of_class, rooms_of(self.state, of_class)):
                continue
            asked = sum(wanted.spec.count for wanted in of_class)
            free = len({device for devices in of_class.values() for device in devices})
            count = f"class {name}: {asked} devices requested in all, {free} have room"
            detail = "; ".join([count, *self._amounts(name)[1]])
            for position in sorted({wanted.claim for wanted in of_class}):
                yield position, Reason(self.node, None, None, Cause.INSUFFICIENT_CAPACITY.value, detail)

    def _values_text(self, claim: ResolvedClaim, index: int) -> str:
        """How many usable devices have which value, over the requests that the constraint covers."""
        constraint = claim.constraints[index]
        name = rules.attribute_of(constraint)
        counts: dict[str, dict[str, int]] = {}
        for wanted in (wanted for request in claim.requests for wanted in request.alternatives):
            if not constraint.covers(wanted.base, wanted.sub):
                continue
            for device, offered in enumerate(self.state.devices):
                if device_reason(wanted, device, self.state) is None:
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
        """What is asked for in all and what is free."""
        (asked, room), amounts = self._amounts()
        return "; ".join([f"devices: requested {asked}, {room} have room", *amounts])

    def _amounts(self, of_class: str | None = None) -> tuple[tuple[int, int], list[str]]:
        """Devices asked for and those that could serve something; both figures of the capacities that are short in all (of all
        capacities where none is). `of_class`: only for requests for this class."""
        asked: dict[str, Decimal] = {}
        free: dict[str, Decimal] = {}
        serving: set[int] = set()
        devices = 0
        for claim in self.claims:
            for wanted in (request.alternatives[0] for request in claim.requests):
                if of_class not in (None, wanted.device_class.name):
                    continue
                count = 1 if wanted.takes_all else wanted.spec.count
                devices += count
                fitting = [
                    device
                    for device in range(len(self.state.devices))
                    if device_reason(wanted, device, self.state) is None
                ]
                serving.update(fitting)
                demands = [self.state.demand(wanted, device) for device in fitting]
                for demand in demands[:1]:
                    for name, amount in demand.amounts.items() if demand else ():
                        asked[name] = asked.get(name, Decimal(0)) + amount * count
        for device in serving:
            for name in self.state.capacity[device]:
                free[name] = free.get(name, Decimal(0)) + self.state.free(device, name)
        short = [name for name, amount in asked.items() if amount > free.get(name, Decimal(0))]
        figures = [
            f"{name}: requested {figure(asked[name])}, free {figure(free.get(name, Decimal(0)))}"
            for name in sorted(short or asked)
            if asked[name] > 0
        ]
        return (devices, len(serving)), figures


def _counted(devices: Mapping[str, int]) -> str:
    """`2 GPUs and 1 NIC`"""
    words = ((devices[GPU], "GPU"), (devices[NIC], "NIC"))
    return " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in words)

"""Why all requests together do not fit on a node, though each of them would: which clause to take away so
that they do.

First counting (`together`): a class of which more devices are asked for than have room. Then the search is
asked again with clauses left out, each by itself and then more of them: a JointAllocation in a wider scope,
or without it; one constraint, or those of one claim, or all; the demand for partitions of the NVLink fabric;
that a claim with a share by MPS has one card; at last the shared counters. The first relaxation that fits is
reported as the nearest miss, and what is reported is exactly what was tried, so taking it away does make the
group fit. When nothing helps, the amounts asked for in all are set against what is free.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Final

from koordra.allocator import constraints as rules
from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import GPU, NIC, Usage
from koordra.allocator.devices.nvlink_fabric import PartitionTracker, spelled_sizes
from koordra.allocator.explain.rejection import usable_devices
from koordra.allocator.explain.together import Together, count_of
from koordra.allocator.joint_allocation import Rule, ScopeTracker
from koordra.allocator.reasons import Cause, ClaimReason, Reason, figure, reason_of
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.search.feasibility import candidates_of, enough, narrow, rooms_of
from koordra.allocator.search.one_card import one_card_of
from koordra.allocator.search.partial_choice import Clauses
from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import Outcome
from koordra.api import names
from koordra.api.opaque.isolation import ONE_CARD, ONE_CARD_REMEDY
from koordra.api.opaque.parameters import Scope
from koordra.errors import PlanError

_BUDGET: Final = 5_000
"""Placements a relaxation may try; past that the nearest miss is not reported."""

_MOST_CONSTRAINTS: Final = 3
_MOST_COUNTERS: Final = 4
_TRIED_ALONE: Final = 4
_BUDGET_ALONE: Final = 400
"""How many constraints are left out one by one, and the placements that each of them may try."""

ConstraintAt = tuple[int, int]
"""A constraint by the position of its claim and its own."""


class NearestFit:
    def __init__(
        self,
        node: str,
        claims: Sequence[ResolvedClaim],
        state: AllocationState,
        joint_rules: tuple[Rule, ...],
    ) -> None:
        self.node, self.claims, self.state, self.joints = node, claims, state, joint_rules
        self.demanded = state.demanded_of(claims)
        self.candidates = candidates_of(claims, state)
        self.wanted = [request.alternatives[0] for claim in claims for request in claim.requests]

    def reasons(self) -> list[ClaimReason]:
        together = Together(self.node, self.claims)
        short = together.short_classes(self.state, self._unused, self.candidates)
        return list(short) or self._nearest() or together.totals(self.state)

    def _reasons(self, cause: Cause, detail: str, claims: Iterable[int] | None = None) -> list[ClaimReason]:
        """The same for these claims, or for all."""
        reason = reason_of(cause, detail, self.node)
        return [(position, reason) for position in (range(len(self.claims)) if claims is None else claims)]

    def _nearest(self) -> list[ClaimReason]:
        """One kind of clause is left out, then two, then all; the first that fits tells its story."""
        constraints = frozenset(
            (position, index)
            for position, claim in enumerate(self.claims)
            for index in range(len(claim.constraints))
        )
        one_card = one_card_of(self.claims, self.state)
        there = {
            "partitions": self.demanded,
            "joints": self.joints,
            "constraints": constraints,
            "one_card": one_card,
        }
        kinds = [kind for kind, clauses in there.items() if clauses]
        for count in range(1, len(kinds) + 1):
            for out in itertools.combinations(kinds, count):
                left = Clauses(
                    () if "joints" in out else self.joints,
                    constraints if "constraints" in out else frozenset(),
                    "partitions" not in out,
                    "one_card" not in out,
                )
                if self._fits(left):
                    return list(self._story(out, left))
        if self._fits(Clauses(self.joints, counters=False)):
            return self._reasons(Cause.COUNTERS_EXHAUSTED, self._exclusion())
        return []

    def _story(self, out: Sequence[str], left: Clauses) -> Iterator[ClaimReason]:
        words = {
            "joints": f"the JointAllocation{'s' if len(self.joints) > 1 else ''}",
            "constraints": "the constraints",
            "partitions": "" if self.demanded is None else self._demands(self.demanded),
            "one_card": "isolation mps",
        }
        without = f"it would fit without {' and '.join(words[kind] for kind in words if kind in out)}"
        nearest = without if len(out) > 1 else ""
        if self.demanded is not None and "partitions" in out:
            yield from self._no_partition(self.demanded, without)
        if "one_card" in out:
            text = f"isolation mps: the shares of a claim would be of several cards, and {ONE_CARD}; {ONE_CARD_REMEDY}"
            yield from self._reasons(Cause.BACKEND_UNAVAILABLE, f"{text}; {nearest}" if nearest else text)
        if "joints" in out:
            yield from self._unmet_scopes(left, nearest)
        if "constraints" in out:
            yield from self._violated(left, nearest)

    def _fits(self, left: Clauses, *, budget: int = _BUDGET) -> bool:
        return self.outcome(left, budget).solution is not None

    def outcome(self, left: Clauses, budget: int) -> Outcome:
        """Counting, then the search; an error is as good as no answer."""
        search = Search(self.claims, self.state, left, in_any_order=True, budget=budget)
        try:
            if self.candidates is not None and left.counters:
                search.candidates = fewer = narrow(search, self.candidates)
                if not enough(fewer, rooms_of(self.state, fewer)):
                    return Outcome(None)
            return search.run()
        except PlanError:
            return Outcome(None, exhausted=True)
        finally:
            search.unwind()

    def _unmet_scopes(self, left: Clauses, nearest: str) -> Iterator[ClaimReason]:
        alone = {rule: "" if nearest else self._relaxed(rule, left) for rule in self.joints}
        for rule in [rule for rule in self.joints if alone[rule]] or self.joints:
            end = alone[rule] or nearest or "it would fit without the JointAllocations"
            yield from self._reasons(
                Cause.TOPOLOGY_SCOPE_UNMET,
                f"JointAllocation scope {rule.scope}, pairing {rule.pairing}: {self._scope_text(rule)}"
                f"{self._ever()}; {end}",
                sorted({claim for claim, _ in rule.members}),
            )

    @cached_property
    def _unused(self) -> AllocationState:
        """As if nothing were in use."""
        return AllocationState(
            self.state.pools,
            Usage(),
            self.state.features,
            namespace=self.state.namespace,
            honors_partitions=self.state.honors_partitions,
            verdicts=self.state.verdicts,
        )

    def _ever(self) -> str:
        """Whether the node has such a place when nothing is in use; empty where that is not found out."""
        found = Outcome(None)
        if any(self.state.busy) or any(self.state.holders):
            found = NearestFit(self.node, self.claims, self._unused, self.joints).outcome(
                Clauses(self.joints), _BUDGET
            )
        if found.solution is not None:
            return "; with nothing in use there is such a place"
        return "" if found.exhausted else "; the node has no such place, whatever is in use"

    def _scope_text(self, rule: Rule) -> str:
        """What the rule's requests ask for, and how the devices that would do lie in the scope."""
        tally, asked, places = ScopeTracker(rule), Counter[str](), dict[str, set[int]]()
        devices = self.state.devices
        for position, index in sorted(rule.members):
            wanted = self.claims[position].requests[index].alternatives[0]
            usable = [at for at in usable_devices(wanted, self.state) if devices[at].kind in (GPU, NIC)]
            for device in usable[:1]:
                asked[devices[device].kind] += count_of(wanted, usable)
            for device in usable:
                places.setdefault(tally.key(devices[device]) or "no known place", set()).add(device)
        shapes = Counter(
            _counted(Counter(devices[device].kind for device in found)) for found in places.values()
        )
        free = ", ".join(f"{times} x ({text})" for text, times in sorted(shapes.items()))
        return f"requested {_counted(asked)}; free per {rule.scope}: {free}"

    def _relaxed(self, rule: Rule, left: Clauses) -> str:
        """The narrowest wider scope of this one rule with which the group fits, or that it fits without the
        rule."""
        scopes = list(Scope)
        for scope in (*scopes[scopes.index(rule.scope) + 1 :], None):
            changed = tuple(
                replace(other, scope=scope) if other is rule and scope else other
                for other in self.joints
                if other is not rule or scope
            )
            if self._fits(replace(left, joint_rules=changed)):
                return f"it would fit {f'with scope {scope}' if scope else 'without the JointAllocation'}"
        return ""

    def _violated(self, left: Clauses, nearest: str) -> Iterator[ClaimReason]:
        at_fault, end = sorted(left.without), nearest or "it would fit without the constraints of the claims"
        if not nearest:
            at_fault, end = self._constraints_at_fault(left) or (at_fault, end)
        for position, claim in enumerate(self.claims):
            own = [index for owner, index in at_fault if owner == position]
            more = len(own) - _MOST_CONSTRAINTS
            for number, index in enumerate(own[:_MOST_CONSTRAINTS], start=1):
                constraint = claim.constraints[index]
                detail = f"{constraint}: free devices by its value: {self._values_text(claim, index)}; {end}"
                if more > 0 and number == _MOST_CONSTRAINTS:
                    detail += f" ({more} more constraints)"
                covered = ", ".join(constraint.requests) or None
                yield position, Reason(self.node, None, covered, Cause.CONSTRAINT_VIOLATED.value, detail)

    def _constraints_at_fault(self, left: Clauses) -> tuple[list[ConstraintAt], str] | None:
        """One constraint, or those of one claim, without which the group fits."""
        every = sorted(left.without)
        for one in every[:_TRIED_ALONE]:
            if self._fits(replace(left, without=frozenset({one})), budget=_BUDGET_ALONE):
                return [one], "it would fit without it"
        for position in sorted({claim for claim, _ in every}):
            own = [one for one in every if one[0] == position]
            if self._fits(replace(left, without=frozenset(own))):
                return own, "it would fit without the constraints of the claim"
        return None

    def _values_text(self, claim: ResolvedClaim, index: int) -> str:
        """How many usable devices have which value, over the requests that the constraint covers."""
        constraint = claim.constraints[index]
        name = rules.attribute_of(constraint)
        counts: dict[str, Counter[str]] = {}
        for wanted in claim.alternatives:
            usable = usable_devices(wanted, self.state) if constraint.covers(wanted.base, wanted.sub) else ()
            for device in usable:
                value = self.state.devices[device].facts.attributes.get(name, "no value")
                counts.setdefault(wanted.label, Counter())[str(value)] += 1
        parts = [
            f"{label}: " + ", ".join(f"{value} ({times})" for value, times in sorted(tally.items()))
            for label, tally in sorted(counts.items())
        ]
        return "; ".join(parts) or f"no {name}"

    def _exclusion(self) -> str:
        """Devices that exclude each other: for each request one that would do, with the counter it takes most
        of."""
        takes: dict[str, None] = {}
        for wanted in self.wanted:
            for device in usable_devices(wanted, self.state):
                if self.state.devices[device].device.consumes_counters:
                    takes[f"{wanted.label}: {self._takes_text(device)}"] = None
                    break
        more = f"; {len(takes) - _MOST_COUNTERS} more requests" if len(takes) > _MOST_COUNTERS else ""
        return (
            "devices that take of the same counters exclude each other: "
            f"{'; '.join([*takes][:_MOST_COUNTERS])}{more}; all would fit if they did not"
        )

    def _takes_text(self, device: int) -> str:
        offered = self.state.devices[device]
        takes = offered.device.counters
        left = {counter: self.state.counters_left(device, counter) for counter in takes}
        most = max(sorted(takes), key=lambda one: takes[one] / (left[one] or Decimal(1)))
        amounts = f"{figure(takes[most])} of {'/'.join(most)}, of which {figure(left[most])} are free"
        return f"{offered.id.device} takes {amounts}"

    def _demands(self, demanded: PartitionTracker) -> str:
        sources = []
        if self.state.honors_partitions and self.state.fabric.partitions:
            sources.append(f"{names.PARTITION_POLICY_LABELS[0]}: {names.PARTITION_HONOR}")
        if any(self.claims[position].demands_partition for position in demanded.claims):
            sources.append(f"GpuConfig partition: {names.PARTITION_HONOR}")
        return " and ".join(sources)

    def _no_partition(self, demanded: PartitionTracker, nearest: str) -> Iterator[ClaimReason]:
        """Cards are to be partitions of the node's fabric, and those of the sizes asked for are not free."""
        state = self.state
        free = {card for card in demanded.cards if not state.busy[card] and not state.holders[card]}
        listed = ", ".join(
            "{" + " ".join(state.devices[card].id.device for card in sorted(members)) + "}"
            for members in state.fabric.partitions
            if members <= free
        )
        for position in sorted(demanded.claims):
            cards, every = 0, ""
            for wanted in (request.alternatives[0] for request in self.claims[position].requests):
                fitting = [card for card in demanded.cards if state.verdict(wanted, card).demand is not None]
                if fitting:
                    cards += count_of(wanted, fitting)
                    every = "all " if wanted.takes_all else every
            if cards:
                yield from self._reasons(
                    Cause.PARTITION_MISMATCH,
                    f"partitions of the NVLink fabric: requested {every}{cards} GPUs, the node gives out"
                    f" {spelled_sizes(state.fabric.sizes)} together; free are"
                    f" {listed or 'single cards only'}; {nearest}",
                    [position],
                )


def _counted(devices: Mapping[str, int]) -> str:
    """`2 GPUs and 1 NIC`"""
    words = ((devices.get(GPU, 0), "GPU"), (devices.get(NIC, 0), "NIC"))
    return " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in words)

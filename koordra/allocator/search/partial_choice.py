"""How far a search is: what is asked, in which order, the node as it was, and what is chosen so far.

What looks at a search without steering it (symmetry, objective, bounds, packing) reads this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koordra.allocator import constraints as rules
from koordra.allocator.joint_allocation import Rule, ScopeTracker
from koordra.allocator.node_state import NodeState
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim, ResolvedRequest
from koordra.allocator.search.solution import Placed

Entry = tuple[int, int, ResolvedRequest]
"""A request with the positions of its claim and its own."""


class PartialChoice:
    """`requests` are in the order in which they are served, `candidates` the devices that each of them may get (all, where it
    is not there). `allocating`: claims that took a device as a whole; `*_before`: the node as it was before anything was chosen.
    `scored`: choices are compared by cost.
    """

    def __init__(
        self,
        claims: Sequence[ResolvedClaim],
        state: NodeState,
        *,
        joint_rules: Sequence[Rule],
        candidates: Mapping[RequestAlternative, Sequence[int]],
        scored: bool,
        tied: bool,
        without_constraints: frozenset[tuple[int, int]],
        without_partitions: bool,
    ) -> None:
        self.claims = claims
        self.state = state
        self.scored = scored
        self.candidates = candidates
        self.constraints = [
            tuple(
                constraint
                for index, constraint in enumerate(claim.constraints)
                if (position, index) not in without_constraints
            )
            for position, claim in enumerate(claims)
        ]
        self.requests = walking_order(claims, tied=tied)
        self.tallies = [ScopeTracker(rule) for rule in joint_rules if rule.scope is not None]
        self.demanded = None if without_partitions else state.demanded_of(claims)
        self.constraint_states: list[list[rules.State]] = [[() for _ in found] for found in self.constraints]
        self.placed: list[Placed] = []
        self.per_claim = [0] * len(claims)
        self.allocating: dict[int, list[int]] = {}
        self.used_before = list(state.used)
        self.shares_before = list(state.holders)
        self.counters_before = [dict(left) for left in state.counters]

    def values_of(self, claim: int, index: int, device: int) -> rules.Values:
        """The device's values under one constraint."""
        return self.state.values(rules.attribute_of(self.constraints[claim][index]), device)


def walking_order(claims: Sequence[ResolvedClaim], *, tied: bool) -> list[Entry]:
    """Requests in the claims' order; with `tied`, those that share a constraint follow one another."""
    order = [
        (position, index, request)
        for position, claim in enumerate(claims)
        for index, request in enumerate(claim.requests)
    ]
    if not tied or not any(claim.constraints for claim in claims):
        return order
    members = _members(claims, order)
    over = [
        [constraint for constraint, covered in enumerate(members) if at in covered]
        for at in range(len(order))
    ]
    ties = [0] * len(order)
    touched: set[tuple[int, int]] = set()
    left = list(range(len(order)))
    tied_order = []
    while left:
        best = max(left, key=lambda at: (ties[at], -at))
        left.remove(best)
        tied_order.append(order[best])
        for constraint in over[best]:
            for other in members[constraint]:
                if other != best and (other, constraint) not in touched:
                    touched.add((other, constraint))
                    ties[other] += 1
    return tied_order


def _members(claims: Sequence[ResolvedClaim], order: Sequence[Entry]) -> list[set[int]]:
    """For each constraint that names requests, their places in the order; one over all requests ties nothing closer."""
    places = {(claim, request.name): at for at, (claim, _, request) in enumerate(order)}
    found = []
    for position, claim in enumerate(claims):
        for constraint in claim.constraints:
            named = {entry.partition("/")[0] for entry in constraint.requests}
            found.append({places[position, name] for name in named if (position, name) in places})
    return found

"""How far a search is: what is asked, in which order, the node as it was, and what is chosen so far.

What looks at a search without steering it (symmetry, objective, bounds, packing) reads this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordra.allocator import constraints as rules
from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.capacity import Demand
from koordra.allocator.joint_allocation import RequestKey, Rule, ScopeTracker
from koordra.allocator.reasons import ClaimRefused
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim, ResolvedRequest
from koordra.allocator.search.one_card import one_card_of
from koordra.allocator.search.solution import Placed
from koordra.api import names

Entry = tuple[int, int, ResolvedRequest]
"""A request with the positions of its claim and its own."""


@dataclass(frozen=True, slots=True)
class Clauses:
    """What is demanded of the devices of several requests together, as far as it is to hold:
    JointAllocations, all constraints but those in `without` (by claim and own position), partitions of the
    NVLink fabric, that claims by MPS have one card, shared counters.
    """

    joint_rules: tuple[Rule, ...] = ()
    without: frozenset[tuple[int, int]] = frozenset()
    partitions: bool = True
    one_card: bool = True
    counters: bool = True


class PartialChoice:
    """`requests` are in the order in which they are served, `candidates` the devices that each of them may
    get (all, where it is not there). `allocating`: claims that took a device as a whole; `by_request`: which
    devices each request has; `all_devices`: those that an `All` request is for; `forced_error`: with which
    upstream would end if nothing fits; `*_before`: the node as it was before anything was chosen. `scored`:
    choices are compared by cost. `strict`: in upstream's order, and a selector error ends the search, as
    upstream does.
    """

    def __init__(
        self,
        claims: Sequence[ResolvedClaim],
        state: AllocationState,
        clauses: Clauses,
        *,
        scored: bool,
        strict: bool,
    ) -> None:
        self.claims = claims
        self.state = state
        self.clauses = clauses
        self.scored = scored
        self.strict = strict
        self.candidates: Mapping[RequestAlternative, Sequence[int]] = {}
        self.constraints = [
            tuple(
                constraint
                for index, constraint in enumerate(claim.constraints)
                if (position, index) not in clauses.without
            )
            for position, claim in enumerate(claims)
        ]
        self.requests = walking_order(claims, tied=not strict)
        self.tallies = [ScopeTracker(rule) for rule in clauses.joint_rules]
        self.demanded = state.demanded_of(claims) if clauses.partitions else None
        self.one_card = one_card_of(claims, state) if clauses.one_card else None
        self.constraint_states: list[list[rules.State]] = [[() for _ in found] for found in self.constraints]
        self.placed: list[Placed] = []
        self.per_claim = [0] * len(claims)
        self.allocating: dict[int, list[int]] = {}
        self.by_request: set[tuple[RequestKey, int]] = set()
        self.all_devices: dict[RequestAlternative, list[int]] = {}
        self.forced_error: ClaimRefused | None = None
        self.used_before = list(state.used)
        self.shares_before = list(state.holders)
        self.counters_before = [dict(left) for left in state.counters]

    def values_of(self, claim: int, index: int, device: int) -> rules.Values:
        """The device's values under one constraint."""
        return self.state.values(rules.attribute_of(self.constraints[claim][index]), device)

    def takes_card(self, claim: int, device: int, demand: Demand) -> bool:
        """Whether partitions are demanded of the claim and the demand takes a card as a whole."""
        if self.demanded is None or claim not in self.demanded.claims or device not in self.demanded.cards:
            return False
        capacity = self.state.devices[device].device.capacity.get(names.CAPACITY_MEMORY)
        taken = demand.amounts.get(names.CAPACITY_MEMORY)
        return not self.state.shared[device] or capacity is None or taken == capacity.value


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
    over = [[covered for covered in members if at in covered] for at in range(len(order))]
    left = list(range(len(order)))
    taken = dict[int, Entry]()
    while left:
        ties = [sum(not taken.keys().isdisjoint(covered) for covered in over[at]) for at in left]
        best = left.pop(ties.index(max(ties)))
        taken[best] = order[best]
    return list(taken.values())


def _members(claims: Sequence[ResolvedClaim], order: Sequence[Entry]) -> list[set[int]]:
    """For each constraint that names requests, their places in the order; one over all requests ties nothing
    closer."""
    places = {(claim, request.name): at for at, (claim, _, request) in enumerate(order)}
    found = []
    for position, claim in enumerate(claims):
        for constraint in claim.constraints:
            named = {entry.partition("/")[0] for entry in constraint.requests}
            found.append({places[position, name] for name in named if (position, name) in places})
    return found

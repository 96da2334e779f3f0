"""In which order the search takes the requests: as written, or so that what is tied together stands together."""

from __future__ import annotations

from collections.abc import Sequence

from koordra.allocator.request.requests import ResolvedClaim, ResolvedRequest

Entry = tuple[int, int, ResolvedRequest]


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

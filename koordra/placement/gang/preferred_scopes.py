"""Preferred scopes of several members on one node.

    all in their narrowest scopes ─▶ fits: taken
                                  └▶ does not: do they fit at all? ─▶ no: refused
                                                                   └▶ yes: the fewest levels wider in sum, then the next fewest, …

The combinations are not tried in every order (that is exponential): members of a class are alike, so it is asked how many of them are
how many levels wider. A few ways are tried; if none of them fits, what fitted without scopes is taken, counted as if all were at their
widest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from koordra.allocator.joint_allocation import relaxation_levels
from koordra.allocator.offer import Offer
from koordra.allocator.placement import NodeAnswer
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.opaque.parameters import Enforcement
from koordra.placement.gang.member_assignment import Alike

MOST_WAYS: Final = 8
"""Ways to widen scopes that are tried on one node for one count."""

_MOST_COMBINATIONS: Final = 20_000


def prefers(claim: ResolvedClaim) -> bool:
    return any(joint.enforcement is Enforcement.PREFERRED for joint in claim.joints)


def widening(
    asked: Sequence[ResolvedClaim],
    alike: Alike,
    place: Callable[[Sequence[ResolvedClaim]], NodeAnswer],
    *,
    budget: int,
) -> tuple[Offer | None, int, bool]:
    """The offer to members with Preferred scopes, how many levels wider they are, and whether a better one is not known.

    `place` asks the node for claims, which are these ones with other scopes.
    """
    anyhow = None
    exhausted = False
    for steps in itertools.islice(_ways(asked, alike), MOST_WAYS * budget):
        answer = place(_widened(asked, steps))
        if answer.offer is not None:
            return answer.offer, sum(map(sum, steps)), exhausted
        exhausted = exhausted or answer.exhausted
        if anyhow is None:
            anyhow = place([replace(claim, joints=(), joint_requests=()) for claim in asked])
            if anyhow.offer is None:
                return None, 0, anyhow.exhausted
    if anyhow is None or anyhow.offer is None:
        return None, 0, True
    most = sum(len(relaxation_levels(joint)) - 1 for claim in asked for joint in claim.joints)
    return anyhow.offer, most, True


def _ways(asked: Sequence[ResolvedClaim], alike: Alike) -> Iterator[list[tuple[int, ...]]]:
    """Levels wider per claim and joint, the fewest in sum first; members of a class in order of their steps."""
    of_claim = [[range(len(relaxation_levels(joint))) for joint in claim.joints] for claim in asked]
    at = 0
    choices: list[list[tuple[tuple[tuple[int, ...], ...], ...]]] = []
    for _, own in alike:
        size = len(own[0].asked)
        per_member = list(
            itertools.product(*(itertools.product(*levels) for levels in of_claim[at : at + size]))
        )
        choices.append(list(itertools.combinations_with_replacement(per_member, len(own))))
        at += size * len(own)
        if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
            yield [(0,) * len(claim.joints) for claim in asked]
            return
    flat = [
        [steps for own in chosen for member in own for steps in member]
        for chosen in itertools.product(*choices)
    ]
    yield from sorted(flat, key=lambda steps: (sum(map(sum, steps)), steps))


def _widened(asked: Sequence[ResolvedClaim], steps: Sequence[tuple[int, ...]]) -> list[ResolvedClaim]:
    """The claims with every Preferred scope turned into the one that is so many levels wider, now Required."""
    found = []
    for claim, wider in zip(asked, steps, strict=True):
        kept = [
            (replace(joint, scope=scope, enforcement=Enforcement.REQUIRED), covered)
            for joint, covered, level in zip(claim.joints, claim.joint_requests, wider, strict=True)
            if (scope := relaxation_levels(joint)[level]) is not None
        ]
        found.append(
            replace(
                claim,
                joints=tuple(joint for joint, _ in kept),
                joint_requests=tuple(covered for _, covered in kept),
            )
        )
    return found

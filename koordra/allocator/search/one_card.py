"""Claims that have a share by MPS, and so no other card (koordra.api.opaque.isolation).

What a claim has of cards so far is nothing, one card by MPS, or cards that MPS does not keep, and it stays
what it is: once a card is refused, more cards never make it acceptable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.capacity import Demand
from koordra.allocator.devices.inventory import GPU
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim

Standing = int | None
"""The position of the card by MPS, OTHERS, or None."""
OTHERS: Final = -1


class OneCard:
    """`standings`: of each claim."""

    def __init__(self, claims: Sequence[ResolvedClaim], state: AllocationState) -> None:
        self.state = state
        self.standings: list[Standing] = [None] * len(claims)

    def after(self, wanted: RequestAlternative, device: int, demand: Demand) -> Standing | bool:
        """The claim's standing with this device too; False where it may not have it."""
        before = self.standings[wanted.claim]
        if self.state.devices[device].kind != GPU:
            return before
        card = device if self.state.by_mps(wanted, device, demand) else OTHERS
        return card if before is None or before == card else False


def one_card_of(claims: Sequence[ResolvedClaim], state: AllocationState) -> OneCard | None:
    """None where the node has no cards by MPS, or no claim asks for several devices."""
    several = any(len(claim.requests) > 1 or _may_be_several(claim) for claim in claims)
    return OneCard(claims, state) if several and state.has_mps else None


def _may_be_several(claim: ResolvedClaim) -> bool:
    return any(wanted.takes_all or wanted.spec.count > 1 for wanted in claim.alternatives)

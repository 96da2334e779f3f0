"""What the requests that are still to be served can bring, so that a branch stops when it cannot be enough (or is too much)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koordra.allocator.inventory import GPU
from koordra.allocator.joint import Tally
from koordra.allocator.node_state import NodeState
from koordra.allocator.requests import AskedClaim, Wanted
from koordra.allocator.walking_order import Entry
from koordra.api.claims import MAX_RESULTS


def nics_after(
    requests: Sequence[Entry], claims: Sequence[AskedClaim], state: NodeState, tallies: Sequence[Tally]
) -> list[list[int]]:
    """Per joint rule and request in walking order: how many NICs later requests of that rule can bring at most.

    Fewer, where shares of them coincide on one NIC.
    """
    nics = [device for device, offered in enumerate(state.devices) if offered.kind != GPU]
    joined = {member for tally in tallies for member in tally.rule.members}
    counts = []
    for claim, index, request in requests:
        can_bring = 0
        if (claim, index) in joined:
            for wanted in request.alternatives:
                count = len(state.devices) if wanted.takes_all else wanted.spec.count
                can_bring = max(can_bring, count if _may_have(wanted, nics, claims, state) else 0)
        counts.append(can_bring)
    found = []
    for tally in tallies:
        own = [
            count if (claim, index) in tally.rule.members else 0
            for (claim, index, _), count in zip(requests, counts, strict=True)
        ]
        found.append([sum(own[position + 1 :]) for position in range(len(own))])
    return found


def cards_after(
    requests: Sequence[Entry], claims: Sequence[AskedClaim], state: NodeState, cards: Iterable[int]
) -> list[tuple[int, int]]:
    """Per request in walking order: the fewest and the most of the cards that later requests of its claim take."""
    bounds = []
    for _, _, request in requests:
        counts = [
            _range(wanted) if _may_have(wanted, cards, claims, state) else (0, 0)
            for wanted in request.alternatives
        ]
        bounds.append((min(fewest for fewest, _ in counts), max(most for _, most in counts)))
    found = []
    for position, (claim, _, _) in enumerate(requests):
        later = [bounds[at] for at in range(position + 1, len(requests)) if requests[at][0] == claim]
        found.append((sum(fewest for fewest, _ in later), sum(most for _, most in later)))
    return found


def _range(wanted: Wanted) -> tuple[int, int]:
    # What `All` finds, and which of it are whole cards, is not known before.
    return (0, MAX_RESULTS) if wanted.takes_all else (wanted.spec.count, wanted.spec.count)


def _may_have(wanted: Wanted, devices: Iterable[int], claims: Sequence[AskedClaim], state: NodeState) -> bool:
    own = claims[wanted.claim].own_driver_only
    return any(state.verdict(wanted, device, own_driver_only=own).demand is not None for device in devices)

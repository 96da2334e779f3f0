"""What the requests that are still to be served can bring, so that a branch stops when it cannot be enough (or is too much)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

from koordra.allocator.devices.inventory import GPU
from koordra.allocator.joint_allocation import ScopeTracker
from koordra.allocator.node_state import NodeState
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.search.packing import SubsetSums
from koordra.allocator.search.partial_choice import Entry
from koordra.api.claims import MAX_RESULTS


def nics_after(
    requests: Sequence[Entry],
    claims: Sequence[ResolvedClaim],
    state: NodeState,
    tallies: Sequence[ScopeTracker],
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
                can_bring = max(can_bring, count if _may_have(wanted, nics, state) else 0)
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
    requests: Sequence[Entry], claims: Sequence[ResolvedClaim], state: NodeState, cards: Iterable[int]
) -> list[tuple[int, int]]:
    """Per request in walking order: the fewest and the most of the cards that later requests of its claim take."""
    bounds = []
    for _, _, request in requests:
        counts = [
            _range(wanted) if _may_have(wanted, cards, state) else (0, 0) for wanted in request.alternatives
        ]
        bounds.append((min(fewest for fewest, _ in counts), max(most for _, most in counts)))
    found = []
    for position, (claim, _, _) in enumerate(requests):
        later = [bounds[at] for at in range(position + 1, len(requests)) if requests[at][0] == claim]
        found.append((sum(fewest for fewest, _ in later), sum(most for _, most in later)))
    return found


def _range(wanted: RequestAlternative) -> tuple[int, int]:
    # What `All` finds, and which of it are whole cards, is not known before.
    return (0, MAX_RESULTS) if wanted.takes_all else (wanted.spec.count, wanted.spec.count)


def _may_have(wanted: RequestAlternative, devices: Iterable[int], state: NodeState) -> bool:
    return any(state.verdict(wanted, device).demand is not None for device in devices)


@dataclass(frozen=True, slots=True)
class DeviceTypeDemand:
    """What the open requests take of GPUs, or of all other devices.

    `most`: devices given to them at most, each share counted. `unshared`: the least number of those that nobody else can have.
    `distinct`: the most that one request surely gets, all different. `devices`: what can serve them, and which of it is `shared`.
    `thousandths`, `parts`: what they take of devices at most, the latter in the units of `NodeState.parts`. `sums`: by capacity,
    what they take of shared devices.
    """

    most: int = 0
    unshared: int = 0
    distinct: int = 0
    devices: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    thousandths: int = 0
    parts: int = 0
    sums: tuple[tuple[str, SubsetSums], ...] = ()

    def least_cover(
        self,
        state: NodeState,
        chosen: Sequence[int],
        free: Sequence[tuple[int, int]],
        *,
        more: int,
        penalty: int,
    ) -> int:
        """The least sum of at least `more` of the values in `free`, whose devices have the room that `chosen` lack.

        `free` is sorted; each one beyond `more` costs the penalty too. 0 where no set has the room.
        """
        lacking = [
            sums.least - sum([sums.usable(state.room(d, name)) for d in chosen]) for name, sums in self.sums
        ]
        rooms = [[sums.usable(state.room(d, name)) for name, sums in self.sums] for _, d in free]
        best: int | None = None

        def extend(start: int, total: int, count: int, lacking: Sequence[int]) -> None:
            nonlocal best
            if best is not None and total >= best:
                return
            if count >= more and max(lacking, default=0) <= 0:
                best = total
                return
            for at in range(start, len(free)):
                extra = penalty if count >= more else 0
                extend(at + 1, total + free[at][0] + extra, count + 1, list(map(sub, lacking, rooms[at])))

        extend(0, 0, 0, lacking)
        return best or 0


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The open requests. `brings_nic`: they surely get a NIC; `nics`: NICs that they may get; `may_get`: that any request may."""

    gpus: DeviceTypeDemand
    others: DeviceTypeDemand
    brings_nic: bool
    nics: frozenset[int]
    may_get: frozenset[int]

"""What the requests that are still to be served can bring, so that a branch stops when it cannot be enough
(or is too much)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import GPU
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.packing import SubsetSums
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.api.claims import MAX_RESULTS


def nics_after(search: PartialChoice) -> list[list[int]]:
    """Per joint rule and request in walking order: how many NICs later requests of that rule can bring at
    most.

    Fewer, where shares of them coincide on one NIC.
    """
    nics = [device for device, offered in enumerate(search.state.devices) if offered.kind != GPU]
    found = []
    for tally in search.tallies:
        most = [
            max(_most_of(wanted, nics, search.state) for wanted in request.alternatives)
            if (claim, index) in tally.rule.members
            else 0
            for claim, index, request in search.requests
        ]
        found.append([sum(most[position + 1 :]) for position in range(len(most))])
    return found


def cards_after(search: PartialChoice) -> list[tuple[int, int]]:
    """Per request in walking order: the fewest and the most of the cards, of which partitions are demanded,
    that later requests of its claim take. Empty where no partitions are demanded."""
    if search.demanded is None:
        return []
    found = []
    totals = [(0, 0)] * len(search.claims)
    for claim, _, request in reversed(search.requests):
        fewest, most = totals[claim]
        found.append((fewest, most))
        counts = [cards_taken(search, wanted, wanted.spec.count) for wanted in request.alternatives]
        totals[claim] = fewest + min(counts)[0], most + max(most for _, most in counts)
    return found[::-1]


def cards_taken(search: PartialChoice, wanted: RequestAlternative, count: int) -> tuple[int, int]:
    """The fewest and the most of so many devices of the alternative that are cards of which partitions are
    demanded.

    A share of a card is none, and what `All` finds is not known before.
    """
    if not count:
        return 0, 0
    whole, others = 0, 0
    for device in range(len(search.state.devices)):
        demand = search.state.verdict(wanted, device).demand
        if demand is not None:
            taken = search.takes_card(wanted.claim, device, demand)
            whole, others = whole + taken, others + (not taken)
    if wanted.takes_all:
        return 0, whole
    return max(0, count - others), min(count, whole)


def _most_of(wanted: RequestAlternative, devices: Iterable[int], state: AllocationState) -> int:
    """How many of these devices the alternative takes at most."""
    if all(state.verdict(wanted, device).demand is None for device in devices):
        return 0
    return MAX_RESULTS if wanted.takes_all else wanted.spec.count


@dataclass(frozen=True, slots=True)
class DeviceTypeDemand:
    """What the open requests take of GPUs, or of all other devices.

    `most`: devices given to them at most, each share counted. `unshared`: the least number of those that
    nobody else can have. `distinct`: the most that one request surely gets, all different. `devices`: what
    can serve them, and which of it is `shared`. `thousandths`, `parts`: what they take of devices at most,
    the latter in the units of `AllocationState.parts`. `sums`: by capacity, what they take of shared devices.
    """

    most: int = 0
    unshared: int = 0
    distinct: int = 0
    devices: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    thousandths: int = 0
    parts: int = 0
    sums: tuple[tuple[str, SubsetSums], ...] = ()

    def beside(self, other: DeviceTypeDemand, sums: tuple[tuple[str, SubsetSums], ...]) -> DeviceTypeDemand:
        """What these and another open request take, by capacity `sums` together."""
        return DeviceTypeDemand(
            self.most + other.most,
            self.unshared + other.unshared,
            max(self.distinct, other.distinct),
            self.devices | other.devices,
            self.shared | other.shared,
            self.thousandths + other.thousandths,
            self.parts + other.parts,
            sums,
        )

    def least_cover(
        self,
        state: AllocationState,
        chosen: Sequence[int],
        free: Sequence[tuple[int, int]],
        *,
        more: int,
        penalty: int,
    ) -> int:
        """The least sum of at least `more` of the values in `free`, whose devices have the room that `chosen`
        lack.

        `free` is sorted; each one beyond `more` costs the penalty too. 0 where no set has the room.
        """
        lacking = [
            sums.least - sum([sums.usable(state.room(d, name)) for d in chosen]) for name, sums in self.sums
        ]
        rooms = [[sums.usable(state.room(d, name)) for name, sums in self.sums] for _, d in free]
        best: int | None = None
        open_choices: list[tuple[int, int, int, Sequence[int]]] = [(0, 0, 0, lacking)]
        while open_choices:
            start, total, count, short = open_choices.pop()
            if best is not None and total >= best:
                continue
            if count >= more and max(short, default=0) <= 0:
                best = total
                continue
            extra = penalty if count >= more else 0
            open_choices += [
                (at + 1, total + free[at][0] + extra, count + 1, list(map(sub, short, rooms[at])))
                for at in reversed(range(start, len(free)))
            ]
        return best or 0


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The open requests. `brings_nic`: they surely get a NIC; `nics`: NICs that they may get; `may_get`: that
    any request may."""

    gpus: DeviceTypeDemand
    others: DeviceTypeDemand
    brings_nic: bool
    nics: frozenset[int]
    may_get: frozenset[int]

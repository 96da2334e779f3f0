"""What the search said about a request class on nodes of one DeviceState, without the names of node and claims.

Results never go stale: a node that changes enters another state. A result is a cost with the devices by position, or a proof that
nothing fits, or, where the search was told how much a placement may cost (its ceiling), a bound: no placement costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from koordra.allocator.devices.capacity import Demand
from koordra.allocator.offer import Offer
from koordra.allocator.placement import NodeAnswer
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.search.solution import NOTHING, CostPair, Placed
from koordra.placement.index import NodeInfo
from koordra.placement.node_class import DeviceState

_MOST: Final = 1 << 14


class DeviceAssignment(NamedTuple):
    """One device, by position, given to one request, by position."""

    claim: int
    request: int
    alternative: int
    device: int
    demand: Demand
    shared: bool


class Result(NamedTuple):
    """`cost` None: nothing fits, or (`bound`) nothing that costs less than that. `generation` is the node's, for a result that
    holds for one node; `epoch` that of the table by which devices were chosen, and by which
    the bound was worked out."""

    cost: CostPair | None = None
    given: tuple[DeviceAssignment, ...] = ()
    bound: CostPair | None = None
    undecided: bool = False
    defect: str = ""
    generation: int = 0
    epoch: int = 0


class ResultCache:
    """Of one request class. Bounded; what is forgotten is searched again."""

    def __init__(self) -> None:
        self._known: dict[DeviceState | NodeInfo, Result] = {}

    def get(
        self, where: DeviceState | NodeInfo, generation: int, epoch: int, ceiling: CostPair | None
    ) -> Result | None:
        """What is known, if it says enough for this ceiling."""
        found = self._known.get(where)
        if found is None or found.generation != generation:
            return None
        fits_nowhere = found.cost is None and found.bound is None
        if found.epoch != epoch and not fits_nowhere:
            return None
        if found.bound is not None and (ceiling is None or found.bound < ceiling):
            return None
        return found

    def keep(self, where: DeviceState | NodeInfo, result: Result) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[where] = result


def assignments_of(offer: Offer) -> tuple[DeviceAssignment, ...]:
    return tuple(
        [
            DeviceAssignment(
                one.wanted.claim, one.wanted.request, one.wanted.index, one.device, one.demand, one.shared
            )
            for one in offer.placed
        ]
    )


def result_of(answer: NodeAnswer, *, generation: int, epoch: int) -> Result:
    if answer.offer is not None:
        return Result(answer.offer.cost, assignments_of(answer.offer), generation=generation, epoch=epoch)
    return Result(bound=answer.bound, undecided=answer.exhausted, generation=generation, epoch=epoch)


def offer_of(result: Result, info: NodeInfo, asked: Sequence[ResolvedClaim]) -> Offer:
    """The result written for these claims on this node."""
    placed = tuple(
        [
            Placed(
                asked[one.claim].requests[one.request].alternatives[one.alternative],
                one.device,
                one.demand,
                one.shared,
            )
            for one in result.given
        ]
    )
    devices = [device for pool in info.pools for device in pool.devices]
    return Offer(info.name, asked, devices, placed, result.cost or NOTHING)

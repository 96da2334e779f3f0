"""What the search produces: devices given to requests, and how the walk ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from koordra.allocator.devices.capacity import Demand
from koordra.allocator.request.requests import RequestAlternative


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One device given to one request. `demand` is empty for a device that is taken whole."""

    wanted: RequestAlternative
    device: int
    demand: Demand
    shared: bool


class Position(NamedTuple):
    """Where the walk stands: request (in walking order), chosen alternative, devices placed for it."""

    request: int
    alternative: int | None = None
    placed: int = 0


class CostPair(NamedTuple):
    """What the claim pays, then what the cluster pays: the most significant number first, at last the rest of
    the written cost.

    A bound may have fewer numbers than a cost.
    """

    claim: int = 0
    cluster: tuple[int, ...] = ()

    @property
    def written(self) -> int:
        """As it is published."""
        return self.claim + self.cluster[-1]

    def plus(self, claim: int) -> CostPair:
        return CostPair(self.claim + claim, self.cluster)


NOTHING: Final = CostPair(0, (0,))


@dataclass(slots=True)
class Outcome:
    """`solution` None with neither `exhausted` nor `bound` is a proof that nothing fits.

    `bound`: what there may be costs that much at least, which is not below the ceiling that was asked for.
    """

    solution: tuple[Placed, ...] | None
    cost: CostPair = NOTHING
    exhausted: bool = False
    bound: CostPair | None = None

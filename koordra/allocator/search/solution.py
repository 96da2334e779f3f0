"""What the search produces: devices given to requests, and how the walk ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(slots=True)
class Outcome:
    """`solution` None with neither `exhausted` nor `bound` is a proof that nothing fits.

    `bound`: what there may be costs that much at least, which is above the ceiling that was asked for.
    """

    solution: tuple[Placed, ...] | None
    cost: int = 0
    exhausted: bool = False
    tried: int = 0
    bound: int | None = None

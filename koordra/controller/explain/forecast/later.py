"""When what waits will fit: the controller's passes over a copy in which claims end as is expected of them.

    copy ─ passes ─▶ what fits now ─ the next claims end ─▶ passes ─▶ what fits then ─ ...

Who comes first in the queue, gangs, quotas and reservations count as they do for the controller, and what is
held until a time is given back at that time. What nobody can know is left out: who comes later and is more
urgent, and that claims end otherwise. A claim that gets devices on the way ends in its turn, where that can
be expected of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.hold_object import first_end
from koordra.controller.explain.forecast.ends import ANNOTATION, End, Ends
from koordra.controller.explain.forecast.forecast import Forecast, come_to_rest, taken_in
from koordra.controller.explain.forecast.intake import Intake
from koordra.logs import imagined
from koordra.placement.holders.device_hold import Seat
from koordra.placement.policy.departures import Departures

MOST_STEPS: Final = 64
MOST_TRIED: Final = 20_000
"""Claims that wait, times steps: a quarter of a minute of one core, by and large."""
MOST_NAMED: Final = 3
"""Claims that are named as those whose end made room."""


@dataclass(frozen=True, slots=True)
class Later:
    """`at`: seconds from now; None where it does not come to that. `after`: the claims whose ends came last
    before it, and what says when they end. `unknown`: of the `running` claims those of which nobody says when
    they end. `looked`: seconds that were looked ahead; None where all ends that are known were."""

    at: float | None
    after: tuple[tuple[str, str], ...] = ()
    unknown: int = 0
    running: int = 0
    looked: float | None = None

    def to_dict(self) -> Object:
        return {
            "seconds": None if self.at is None else round(self.at),
            "after": [{"claim": key, "how": how} for key, how in self.after],
            "unknown": self.unknown,
            "told": str(self),
        }

    def __str__(self) -> str:
        """In words."""
        if self.at is not None:
            ended = "; ".join(f"{key} has ended ({how})" for key, how in self.after)
            when = f", when {ended}" if ended else ", when what is held is given back"
            return f"forecast: it fits in about {span(self.at)}{when}"
        if self.looked is not None:
            return f"forecast: it does not fit within {span(self.looked)}, and further it was not looked"
        if not self.running:
            return "forecast: no claim that ends makes room for it"
        if self.unknown == self.running:
            return (
                f"forecast: none, for nobody says when any of the {self.running} claims with devices ends "
                f"(annotation {ANNOTATION} of their pods)"
            )
        if self.unknown:
            return (
                f"forecast: none, for of {self.unknown} of the {self.running} claims with devices nobody says when "
                "they end, and the ends of the others make no room"
            )
        return f"forecast: it does not fit when all {self.running} claims with devices have ended either"


def span(seconds: float) -> str:
    """As exact as a forecast is."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"


def fits_later(forecast: Forecast, most: int = MOST_TRIED) -> Mapping[str, Later]:
    """Of every claim that waits for koordra and is given nothing now, by key. `most`: claims times steps,
    after which no further step is looked at."""
    if not forecast.lacking:
        return {}
    with imagined():
        return _Future(taken_in(forecast.given, forecast.terms)).run(most)


class _Future:
    def __init__(self, taken: Intake) -> None:
        self._taken, self._cache = taken, taken.reconciler.cache
        self._ends = Ends(self._cache, taken.terms.now, taken.terms.durations, taken.terms.read)
        self._fits: dict[str, Later] = {}
        self._noted = set[float]()
        """Unix times at which holds end."""

    def run(self, most: int) -> Mapping[str, Later]:
        running = sorted(self._cache.claim_index.held)
        ends = {key: self._ends.of_running(key) for key in running}
        departures = Departures[tuple[str, End] | None](
            (end.at, (key, end)) for key, end in ends.items() if end is not None
        )
        come_to_rest(self._taken)
        if self._taken.stand_ins:
            self._taken.take(PODS, self._taken.stand_ins)
            come_to_rest(self._taken)
        self._note_holds(departures)
        held = set(self._cache.claim_index.held)
        self._note_new(held - set(running), 0.0, departures)
        waiting, at = {key for key in self._waiting() if key not in held}, 0.0
        for _ in range(MOST_STEPS):
            most -= len(waiting)
            if not departures or not waiting or most < 0:
                break
            at, gone = departures.take()
            ended = [one for one in gone if one is not None]
            for key, _end in ended:
                self._end(key)
            self._taken.clock = max(self._taken.clock, at)
            come_to_rest(self._taken)
            self._note_holds(departures)
            fit = waiting & self._cache.claim_index.held
            after = tuple((key, end.how) for key, end in ended[-MOST_NAMED:])
            self._fits |= {key: Later(at, after) for key in fit}
            self._note_new(fit, at, departures)
            waiting -= fit
        unknown = sum(end is None for end in ends.values())
        looked = at if departures else None
        return self._fits | {key: Later(None, (), unknown, len(running), looked) for key in waiting}

    def _waiting(self) -> Iterator[str]:
        for key, claim in self._cache.claims.items():
            ours = claims_of.owner(claim, self._cache.classes) is not claims_of.Owner.FOREIGN
            if ours and not claims_of.is_allocated(claim) and not objects.is_deleting(claim):
                yield key

    def _note_new(self, keys: set[str], at: float, departures: Departures[tuple[str, End] | None]) -> None:
        for key in sorted(keys):
            if (end := self._ends.of_new(key)) is not None:
                departures.add(at + end.at, (key, end))

    def _note_holds(self, departures: Departures[tuple[str, End] | None]) -> None:
        """When something that is held for somebody is held no longer: the passes see to that. They have made
        these holds, too, of reservations that were not filled yet."""
        for hold in self._cache.holds.values():
            for said in objects.mappings(objects.spec_of(hold).get("seats")):
                end = first_end([Seat.read(said).until])
                if end is not None and end not in self._noted:
                    self._noted.add(end)
                    departures.add(max(0.0, end - self._taken.terms.now.timestamp()), None)

    def _end(self, key: str) -> None:
        """The claim and its pods are gone."""
        copy = self._taken.copy
        for pod in list(self._cache.pod_index.users.get(key, ())):
            copy.lose(PODS, pod)
        if (claim := self._cache.claims.get(key)) is not None:
            copy.lose(RESOURCE_CLAIMS, claim)
        self._cache.apply(copy.source.changes())

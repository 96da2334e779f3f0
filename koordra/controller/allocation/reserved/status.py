"""What a Reservation's status says.

seats, held, used   how many there are, of which nobody uses any device, and of which claims use some
start, expires      as they count; `nodes`: where the seats are
condition Ready     True: all seats are there. False, by reason: Ahead, Waiting, QuotaExceeded, Refused,
                    Invalid, Over; the message says what lacks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.kinds import RESERVATIONS
from koordra.api.objects import Fields, Object
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.reserved.period import Period, Stage
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.inert import inert
from koordra.logs import get_logger
from koordra.placement.holders.device_hold import Seat
from koordra.placement.holders.reservation import Reservation

log = get_logger(__name__)

READY: Final = "Ready"
MOST_NODES: Final = 64
KEPT: Final = "ReservationKept"
"""a Reservation has its devices"""
WAITING: Final = "ReservationWaiting"
"""a Reservation waits, and for what"""
INVALID: Final = "ReservationInvalid"
"""a Reservation cannot be meant"""
AHEAD: Final = "ReservationAhead"
"""a Reservation is booked, and its time has not come"""
OVER: Final = "ReservationOver"
"""a Reservation's time is over"""
_EVENTS: Final = {
    "Kept": KEPT,
    "Waiting": WAITING,
    "QuotaExceeded": WAITING,
    "Refused": WAITING,
    "Invalid": INVALID,
    "Ahead": AHEAD,
    "Over": OVER,
}
_QUIET: Final = frozenset({"Kept", "Over"})


class Told(NamedTuple):
    """`reason` and `why` no place was found for more seats."""

    period: Period
    seats: Sequence[Seat]
    reason: str
    why: str


class StatusWriter:
    """Writes what has changed, and tells an Event when a condition moves."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._refused: dict[str, float] = {}

    def tell(self, one: Reservation, told: Told) -> None:
        """Raises ApiUnreachable."""
        obj = dict(one.obj)
        now, clock = self._context.writer.now(), self._context.clock()
        before = objects.status_of(obj)
        status = status_of(one, told, before, now=now)
        if status == before or clock < self._refused.get(one.key, 0.0):
            return
        written = self._context.settled(self._context.writer.write_status(RESERVATIONS, obj, status))
        if written.outcome is WriteOutcome.REFUSED:
            log.warning("reservation_status_not_written", reservation=one.key, error=written.message)
            self._refused[one.key] = clock + REFUSED_PAUSE
            return
        self._refused.pop(one.key, None)
        condition, old = status["conditions"][0], _condition(before)
        if (condition["reason"], condition["message"]) != (old.get("reason"), old.get("message")):
            reason = str(condition["reason"])
            about: Object = {**RESERVATIONS.type_meta, **obj}
            event = ClaimEvent(
                _EVENTS[reason], cut(str(condition["message"])), (about,), warning=reason not in _QUIET
            )
            self._context.events.report(event)


def status_of(one: Reservation, told: Told, before: Fields, *, now: str) -> Object:
    used = sum(bool(seat.claims) for seat in told.seats)
    held = len(told.seats) - used
    reason, message = _words(one, told, held, used)
    old = _condition(before)
    ready = "True" if reason == "Kept" else "False"
    moved = old.get("lastTransitionTime") if old.get("status") == ready else None
    return {
        "seats": len(told.seats),
        "held": held,
        "used": used,
        "nodes": sorted({seat.node for seat in told.seats})[:MOST_NODES],
        **({"start": told.period.start, "expires": told.period.end} if told.period.end else {}),
        "conditions": [
            {
                "type": READY,
                "status": ready,
                "reason": reason,
                "message": inert(message),
                "lastTransitionTime": moved or now,
                "observedGeneration": int(objects.metadata(one.obj).get("generation") or 0),
            }
        ],
    }


def _words(one: Reservation, told: Told, held: int, used: int) -> tuple[str, str]:
    period, there = told.period, len(told.seats)
    if period.stage is Stage.INVALID:
        return "Invalid", period.why
    if period.stage is Stage.OVER:
        return "Over", f"expired at {period.end}"
    if period.stage is Stage.AHEAD:
        return "Ahead", f"begins at {period.start}" + (f"; {told.why}" if told.why else "")
    counted = f"{there} of {one.seats} seats are there: {held} held, {used} used"
    if there >= one.seats:
        return "Kept", f"{counted}; until {period.end}"
    return told.reason or "Waiting", f"{counted}" + (f"; {told.why}" if told.why else "")


def _condition(status: Fields) -> Mapping[str, object]:
    found = status.get("conditions") or ()
    return next((one for one in found if one.get("type") == READY), {})

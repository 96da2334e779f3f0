"""From when until when a reservation counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from koordra.api import objects
from koordra.placement.holders.reservation import Reservation
from koordra.quantity import seconds_of

LONGEST: Final = timedelta(days=30)
_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Stage(StrEnum):
    INVALID = "Invalid"
    AHEAD = "Ahead"
    OPEN = "Open"
    OVER = "Over"


@dataclass(frozen=True, slots=True)
class Period:
    """RFC 3339 in UTC. `left`: seconds until the stage ends, 0 where it does not. `why` it is invalid."""

    stage: Stage
    start: str = ""
    end: str = ""
    left: float = 0.0
    why: str = ""


def period_of(one: Reservation, now: str) -> Period:
    if one.problems:
        return Period(Stage.INVALID, why="; ".join(one.problems))
    made = str(objects.metadata(one.obj).get("creationTimestamp") or now)
    try:
        start = _time(one.start or made)
        seconds = seconds_of(one.ttl, longest=LONGEST.total_seconds())
        if seconds is None and not one.expires:
            return Period(Stage.INVALID, why="spec.ttl: write a time such as 90m or 24h, 30 days at most")
        end = _time(one.expires) if one.expires else start + timedelta(seconds=seconds or 0)
        here = _time(now)
    except ValueError:
        return Period(Stage.INVALID, why="spec.start, spec.expires: write times such as 2026-11-21T08:00:00Z")
    if end <= start:
        return Period(Stage.INVALID, why="spec.expires: is not after the start")
    if end - start > LONGEST:
        return Period(Stage.INVALID, why=f"spec.expires: {LONGEST.days} days after the start at most")
    stage, until = Stage.OPEN, end
    if end <= here:
        stage, until = Stage.OVER, here
    elif start > here:
        stage, until = Stage.AHEAD, start
    return Period(stage, start.strftime(_FORMAT), end.strftime(_FORMAT), (until - here).total_seconds())


def _time(text: str) -> datetime:
    """Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)

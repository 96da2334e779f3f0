"""How DeviceHolds are called and dated in the API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

from koordra.placement.holders.device_hold import DeviceHold, Seat, held_key

_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST_NAME: Final = 200


def held_keys(hold: DeviceHold | None) -> set[str]:
    return set() if hold is None else {held_key(hold.owner, seat) for seat in hold.seats if seat.until}


def object_name(key: str, name: str, seats: Sequence[Seat]) -> str:
    """By the name of who it is for, and another one for each set of seats. `key`: its key."""
    of = "/".join([key, *(seat.pod or f"{seat.name} {seat.until}" for seat in seats)])
    plain = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name.lower())
    return f"{plain[:_LONGEST_NAME].strip('-') or 'gang'}-{sha256(of.encode()).hexdigest()[:10]}"


def after(now: str, seconds: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return (_time(now) + timedelta(seconds=int(seconds))).strftime(_FORMAT)


def seconds_until(end: str, *, now: str) -> float:
    """None are left where the end cannot be read: koordra did not write it."""
    try:
        return max(0.0, (_time(end) - _time(now)).total_seconds())
    except ValueError:
        return 0.0


def first_end(ends: Iterable[str | None]) -> float | None:
    """The earliest, in Unix time; without those that cannot be read."""
    found = []
    for end in ends:
        with suppress(ValueError):
            found.append(_time(end or "").timestamp())
    return min(found, default=None)


def _time(text: str) -> datetime:
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC)

"""DeviceHolds, as they are written: here at once, and in the API. Each write names the version that it
changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS
from koordra.api.objects import Fields, Object
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.writes import WriteOutcome
from koordra.logs import get_logger
from koordra.placement.holders.device_hold import DeviceHold, Seat

log = get_logger(__name__)

MOST_SEATS: Final = 200
"""In one object; a seat of 8 GPUs and 8 NICs takes 1.5 KB."""


class HoldWrites:
    """Not thread-safe."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._unwritten: set[str] = set()
        """Keys of objects that are not as they are here in the API yet."""
        self.refused_until = 0.0
        """Nothing is created before: the API server said no."""
        context.cache.listen(DEVICE_HOLDS, self._on_hold)

    def _on_hold(self, key: str, before: Object | None, now: Object | None) -> None:
        if now is not before:  # an audit tells of every object again
            self._unwritten.discard(key)

    def unwritten(self) -> list[DeviceHold]:
        """As they are here."""
        holds = self._context.cache.holds
        return [DeviceHold.of(holds[key]) for key in sorted(self._unwritten) if key in holds]

    def change(self, wanted: DeviceHold, hold: DeviceHold) -> bool:
        """Without seats it is deleted. Whether the API server refused. What a seat that goes has held is
        nobody else's until the API server has said that it went. Raises ApiUnreachable."""
        if wanted.spec() == hold.spec() and hold.key not in self._unwritten:
            return False
        if not objects.resource_version(hold.obj):
            there = self._answered(hold)
            if there is None:
                return False
            hold = replace(hold, obj=there)
        key, cache, writer = hold.key, self._context.cache, self._context.writer
        obj: Object = {**hold.obj, "spec": wanted.spec()}
        cache.put_hold(key, {**obj, "spec": _with_seats_of(wanted, hold).spec()})
        self._unwritten.add(key)
        written = writer.change_hold(obj) if wanted.seats else writer.delete_hold(obj)
        if written.outcome is WriteOutcome.REFUSED:
            log.warning("hold_not_written", owner=hold.owner, error=written.message)
        self._context.settled(written)
        if written.outcome is WriteOutcome.GONE or (written.ok and not wanted.seats):
            cache.put_hold(key, None)
        elif written.ok:
            cache.put_hold(key, written.obj)
        return written.outcome is WriteOutcome.REFUSED

    def create(self, metadata: Fields, wanted: DeviceHold) -> bool:
        """Whether it was; if not, nothing is for a while. Raises ApiUnreachable."""
        if self._context.clock() < self.refused_until:
            return False
        body: Object = {**DEVICE_HOLDS.type_meta, "metadata": dict(metadata), "spec": wanted.spec()}
        return self._create(body, wanted.owner)

    def _create(self, body: Object, owner: str) -> bool:
        """Without an answer it may be there now, or come to be: what it holds is nobody else's until the same
        request, made again, has an answer."""
        key, cache = objects.key(body), self._context.cache
        written = self._context.writer.create_hold(body)
        if written.outcome is WriteOutcome.UNREACHABLE:
            cache.put_hold(key, body)
            self._unwritten.add(key)
        self._context.settled(written)
        if written.ok:
            cache.put_hold(key, written.obj)
        else:
            log.warning("nothing_is_held", owner=owner, outcome=written.outcome.value, error=written.message)
            self.refused_until = self._context.clock() + REFUSED_PAUSE
        return written.ok

    def _answered(self, hold: DeviceHold) -> Object | None:
        """The object that was created without an answer, as it is; None where there is none. Raises
        ApiUnreachable."""
        cache, body = self._context.cache, {**hold.obj}
        if not self._create(body, hold.owner):
            namespace = objects.namespace(body)
            there = self._context.writer.find(DEVICE_HOLDS, objects.name(body), namespace)
            cache.put_hold(hold.key, there)
        return cache.holds.get(hold.key)


def _with_seats_of(wanted: DeviceHold, before: DeviceHold) -> DeviceHold:
    """A seat that is exchanged has its new place alone."""
    kept = {(seat.name, seat.pod) for seat in wanted.seats}
    gone = (seat for seat in before.seats if (seat.name, seat.pod) not in kept)
    return replace(wanted, seats=(*wanted.seats, *gone))


def in_objects(holds: Sequence[DeviceHold], seats: Sequence[Seat | None]) -> list[tuple[Seat, ...]]:
    """Of `seats`, which are those of the holds one after the other (None: it is over), what each keeps."""
    found, at = list[tuple[Seat, ...]](), 0
    for hold in holds:
        found.append(tuple(seat for seat in seats[at : at + len(hold.seats)] if seat is not None))
        at += len(hold.seats)
    return found

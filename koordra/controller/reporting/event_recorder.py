"""Claim events as core/v1 Events: one Event per object and reason, whose count goes up, never a stream of new
ones.

The Event's name is made from the object's uid and the reason, so that every controller that was ever active
counts on the same Event. One that this recorder has written is patched, any other is created: one request
each. Where a predecessor's is there already, the answer to a first patch says what to count on from. An
Event that has expired (an hour by default) is made again.

Recording only puts the newest message for that name aside; `flush` writes, in a thread of its own, and never
raises. Nothing ever waits for Events, and they wait for everything else:

    nobody answers     all are kept (a bounded number), and tried again after a growing pause
    401, 403           an API server that has just started says so before it has read its RBAC rules. The
                       namespace's Events are kept and tried again, MOST_REFUSALS times: a quota or a policy
                       of a tenant may be what says no, so others' Events do not wait for that
    namespace gone     its Events are dropped, like one that the server refuses as it is
    one object has     more than BURST of late: its newest words are kept, and one is written in
    REFILL             seconds, as client-go's spam filter allows
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import EVENTS
from koordra.api.objects import Object
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.errors import ApiError, ApiUnreachable, Conflict, Forbidden, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process.backoff import Backoff
from koordra.process.lifecycle import count_failure
from koordra.process.progress import resting, step, watched

log = get_logger(__name__)


COMPONENT: Final = "koordra-controller"
MOST_PENDING: Final = 4096
"""Events kept for writing while the API server is away; the oldest go first."""
MOST_KNOWN: Final = 4096
"""Events of which it is remembered that they are there, and objects whose number is counted."""
MOST_REFUSALS: Final = 8
"""In a row, over about a minute: after them what is kept of a namespace is dropped."""
BURST: Final = 25.0
REFILL: Final = 300.0

_Place = tuple[str, str]
"""Namespace and name of an Event."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What an Event is to say, the object that it is about, and how often that happened."""

    event: ClaimEvent
    about: Object
    times: int


@dataclass(slots=True)
class _Refused:
    """A namespace that takes no Events: asked again at `due`."""

    backoff: Backoff = field(default_factory=Backoff)
    due: float = 0.0


class EventRecorder:
    """Thread-safe. `now`: wall clock as RFC 3339 in whole seconds; `identity`: which replica reports; `clock`
    is monotonic."""

    def __init__(
        self, api: KubeClient, *, now: Callable[[], str], identity: str, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._now = now
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[_Place, _Told] = {}
        self._counts: dict[_Place, int] = {}
        self._refused: dict[str, _Refused] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        """By uid of an object: how many of its BURST are used up, and when that was."""
        self._wake = threading.Event()

    def __call__(self, claim_event: ClaimEvent, /) -> None:
        with self._lock:
            for about in claim_event.about:
                place = objects.namespace(about), event_name(about, claim_event.reason)
                self._put_aside(place, _Told(claim_event, about, 1))
        self._wake.set()

    @property
    def kept(self) -> int:
        """Events that are not written yet."""
        return len(self._pending)

    @watched()
    def run(self, stop: threading.Event) -> None:
        """Write what is put aside until `stop`, then once more."""
        backoff = Backoff()
        while not stop.is_set():
            step()
            self._wake.wait(0.5)
            self._wake.clear()
            if self.flush():
                backoff.reset()
            else:
                with resting():
                    stop.wait(backoff.next())
        self.flush()

    def flush(self) -> bool:
        """Write what is put aside and may be written now; False when the API server is away."""
        with self._lock:
            pending, self._pending = self._pending, {}
        kept = dict(pending)
        try:
            for place, told in pending.items():
                if self._may_write(place[0], told.about) and self._settled(place, told):
                    kept.pop(place, None)
        except ApiUnreachable as error:
            count_failure(error)
            log.warning("events_not_written_yet", number=len(kept), error=str(error))
            return False
        finally:
            self._drop_refused(kept)
            with self._lock:
                newer, self._pending = self._pending, kept
                for place, told in newer.items():
                    self._put_aside(place, told)
        return True

    def _put_aside(self, place: _Place, told: _Told) -> None:
        before = self._pending.pop(place, None)
        times = told.times + (before.times if before else 0)
        self._pending[place] = replace(told, times=times)
        _forget_oldest(self._pending, MOST_PENDING)

    def _may_write(self, namespace: str, about: Object) -> bool:
        refused = self._refused.get(namespace)
        spent, _ = self._used(about)
        return (refused is None or refused.due <= self._clock()) and spent <= BURST - 1

    def _used(self, about: Object) -> tuple[float, float]:
        now = self._clock()
        spent, at = self._spent.get(objects.uid(about), (0.0, now))
        return max(0.0, spent - (now - at) / REFILL), now

    def _settled(self, place: _Place, told: _Told) -> bool:
        """Whether there is nothing more to do. Raises ApiUnreachable."""
        namespace, uid = place[0], objects.uid(told.about)
        try:
            self._write(place, told)
        except ApiUnreachable:
            raise
        except Forbidden as error:
            refused = self._refused.setdefault(namespace, _Refused())
            refused.due = self._clock() + refused.backoff.next()
            log.info("events_refused", namespace=namespace, error=str(error))
            return False
        except Exception as error:
            count_failure(error)
            log.warning(
                "event_lost",
                object=objects.describe(told.about),
                reason=told.event.reason,
                error=str(error),
                exc_info=None if isinstance(error, ApiError) else error,
            )
            return True
        self._refused.pop(namespace, None)
        spent, now = self._used(told.about)
        self._spent.pop(uid, None)
        self._spent[uid] = spent + 1, now
        _forget_oldest(self._spent, MOST_KNOWN)
        return True

    def _drop_refused(self, kept: dict[_Place, _Told]) -> None:
        """What namespaces refuse for good. They are asked again, by one Event, once their pause is over."""
        gone = {name for name, each in self._refused.items() if each.backoff.failures >= MOST_REFUSALS}
        dropped = [place for place in kept if place[0] in gone]
        for place in dropped:
            del kept[place]
        if dropped:
            log.warning(
                "events_lost", namespaces=sorted({place[0] for place in dropped}), number=len(dropped)
            )
        long_ago = self._clock() - REFILL
        self._refused = {name: each for name, each in self._refused.items() if each.due > long_ago}

    def _write(self, place: _Place, told: _Told) -> None:
        namespace, name = place
        now = self._now()
        newest = {
            "message": cut(told.event.message),
            "lastTimestamp": now,
            "type": "Warning" if told.event.warning else "Normal",
        }
        count = self._counts.pop(place, 0)
        try:
            if not count:
                self._api.create(EVENTS, self._first(place, told, newest | {"count": told.times}))
                self._remember(place, told.times)
                return
        except Conflict:
            there = self._api.patch(EVENTS, name, newest, namespace=namespace)
            count = int(there.get("count") or 0)
        count += told.times
        try:
            self._api.patch(EVENTS, name, {**newest, "count": count}, namespace=namespace)
        except NotFound:  # it has expired
            count = told.times
            self._api.create(EVENTS, self._first(place, told, newest | {"count": count}))
        self._remember(place, count)

    def _remember(self, place: _Place, count: int) -> None:
        self._counts[place] = count
        _forget_oldest(self._counts, MOST_KNOWN)

    def _first(self, place: _Place, told: _Told, newest: Object) -> Object:
        namespace, name = place
        about = told.about
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": namespace, "name": name},
            "involvedObject": {
                "apiVersion": about.get("apiVersion", "v1"),
                "kind": about.get("kind", ""),
                **({"namespace": namespace} if "namespace" in objects.metadata(about) else {}),
                "name": objects.name(about),
                "uid": objects.uid(about),
            },
            "reason": told.event.reason,
            "firstTimestamp": newest["lastTimestamp"],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
            **newest,
        }


def _forget_oldest(table: dict[Any, Any], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]


def event_name(about: Object, reason: str) -> str:
    digest = hashlib.sha256(f"{objects.uid(about)}/{reason}/{COMPONENT}".encode()).hexdigest()[:16]
    return f"{objects.name(about)[:200].rstrip('.-')}.{digest}"

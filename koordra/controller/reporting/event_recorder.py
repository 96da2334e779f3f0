"""Claim events as core/v1 Events: one Event per object and reason, whose count goes up, never a stream of new
ones.

The Event's name is made from the object's uid and the reason, so that every controller that was ever active
counts on the same Event: create it; if it exists, raise its count; if it has expired (an hour by default),
create it again. Recording only puts the newest message for that name aside; `flush` writes, in a thread of
its own, and never raises: while the API server is away Events are kept (a bounded number), one that the
server refuses is logged and dropped. Nothing ever waits for them.

A claim that waits is reported once per reason. When only the figures change, the newest ones are reported after a pause
that doubles from FIRST_PAUSE to LONGEST_PAUSE seconds, so that the last Event of a claim never stays wrong.
An allocation resets the pause.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.kinds import EVENTS, Kind
from koordra.api.objects import Object
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.logs import get_logger

log = get_logger(__name__)


COMPONENT: Final = "koordra-controller"
MOST_PENDING: Final = 4096
"""Events kept for writing while the API server is away; the oldest go first."""

UNREACHABLE_PAUSE: Final = 2.0


class EventApi(Protocol):
    """What the recorder needs of koordra.kube.KubeClient."""

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object: ...

    def create(self, kind: Kind, body: Object, *, namespace: str | None = None) -> Object: ...

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Object: ...


@dataclass(frozen=True, slots=True)
class _PendingEvent:
    about: Object
    reason: str
    message: str
    type: str
    times: int


class EventRecorder:
    """Thread-safe. `now`: wall clock as RFC 3339 in whole seconds; `identity`: which replica reports."""

    def __init__(self, api: EventApi, *, now: Callable[[], str], identity: str) -> None:
        self._api = api
        self._now = now
        self._identity = identity
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str], _PendingEvent] = {}
        self._wake = threading.Event()

    def __call__(self, claim_event: ClaimEvent, /) -> None:
        """Put one Event per object aside."""
        with self._lock:
            for about in claim_event.about:
                place = (objects.namespace(about), event_name(about, claim_event.reason))
                before = self._pending.pop(place, None)
                kind = "Warning" if claim_event.warning else "Normal"
                times = 1 + (before.times if before else 0)
                self._pending[place] = _PendingEvent(
                    about, claim_event.reason, claim_event.message, kind, times
                )
            while len(self._pending) > MOST_PENDING:
                del self._pending[next(iter(self._pending))]
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Write what is put aside until `stop`, then once more."""
        while not stop.is_set():
            self._wake.wait(0.5)
            self._wake.clear()
            if not self.flush():
                stop.wait(UNREACHABLE_PAUSE)
        self.flush()

    def flush(self) -> bool:
        """Write everything that is put aside; False when the API server is away and some of it was kept."""
        with self._lock:
            pending, self._pending = self._pending, {}
        unwritten = dict(pending)
        for place, event in pending.items():
            try:
                self._write(*place, event)
            except ApiUnreachable as error:
                log.warning("events_kept", number=len(unwritten), error=str(error))
                with self._lock:
                    self._pending = {**unwritten, **self._pending}
                return False
            except ApiError as error:
                log.warning(
                    "event_lost", object=objects.describe(event.about), reason=event.reason, error=str(error)
                )
            del unwritten[place]
        return True

    def _write(self, namespace: str, name: str, event: _PendingEvent) -> None:
        try:
            before = self._api.get(EVENTS, name, namespace=namespace)
        except NotFound:
            try:
                self._api.create(EVENTS, self._event(namespace, name, event), namespace=namespace)
            except Conflict:
                before = self._api.get(EVENTS, name, namespace=namespace)
            else:
                return
        count = int(before.get("count") or 0) + event.times
        change = {"count": count, "message": event.message, "lastTimestamp": self._now(), "type": event.type}
        self._api.patch(EVENTS, name, change, namespace=namespace)

    def _event(self, namespace: str, name: str, event: _PendingEvent) -> Object:
        now = self._now()
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": namespace, "name": name},
            "involvedObject": {
                "apiVersion": event.about.get("apiVersion", "v1"),
                "kind": event.about.get("kind", ""),
                **({"namespace": namespace} if "namespace" in objects.metadata(event.about) else {}),
                "name": objects.name(event.about),
                "uid": objects.uid(event.about),
            },
            "reason": event.reason,
            "message": event.message,
            "type": event.type,
            "count": event.times,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
        }


def event_name(about: Object, reason: str) -> str:
    """The Event's name: the object's, and a digest of uid and reason."""
    digest = hashlib.sha256(f"{objects.uid(about)}/{reason}/{COMPONENT}".encode()).hexdigest()[:16]
    return f"{objects.name(about)[:200].rstrip('.-')}.{digest}"


FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Reported:
    reason: str
    message: str
    until: float
    pause: float


class EventDedup:
    """Passes events on to the sinks. Not thread-safe; sinks neither block nor raise."""

    def __init__(self, sinks: Sequence[EventSink], *, clock: Callable[[], float]) -> None:
        self._sinks = tuple(sinks)
        self._clock = clock
        self._reported: dict[str, _Reported] = {}
        self._held_back: dict[str, ClaimEvent] = {}

    def report(self, claim_event: ClaimEvent) -> None:
        for sink in self._sinks:
            sink(claim_event)

    def allocated(self, claim: Object, pods: Iterable[Object], *, level: str | None) -> None:
        """The claim has its devices."""
        self._reported.pop(objects.uid(claim), None)
        self._held_back.pop(objects.uid(claim), None)
        self.report(claim_events.allocated(claim, pods, level=level))

    def waiting(self, claim: Object, pods: Iterable[Object], reasons: Sequence[Reason]) -> None:
        """The claim waits; reported only if that is new."""
        self._report_if_new(claim_events.waiting(claim, tuple(pods), reasons), objects.uid(claim))

    def pinned(self, claim: Object, pod: Object, reasons: Sequence[Reason]) -> None:
        """The pod has no place beside a claim that others use; reported only if that is new."""
        self._report_if_new(claim_events.pinned(claim, pod, reasons), objects.uid(pod))

    def _report_if_new(self, claim_event: ClaimEvent, uid: str) -> None:
        before = self._reported.get(uid)
        self._held_back.pop(uid, None)
        if before is not None and (before.reason, before.message) == (
            claim_event.reason,
            claim_event.message,
        ):
            return
        if before is not None and before.reason == claim_event.reason and self._clock() < before.until:
            self._held_back[uid] = claim_event
            return
        self._report_new(uid, claim_event)

    def flush_due(self) -> float | None:
        """Report what was held back and is due; returns when the next is, None when nothing is held back."""
        now = self._clock()
        for uid in [uid for uid in self._held_back if self._reported[uid].until <= now]:
            self._report_new(uid, self._held_back.pop(uid))
        return min((self._reported[uid].until for uid in self._held_back), default=None)

    def _report_new(self, uid: str, claim_event: ClaimEvent) -> None:
        before, now = self._reported.get(uid), self._clock()
        pause = FIRST_PAUSE
        if before is not None and before.reason == claim_event.reason and now < before.until + LONGEST_PAUSE:
            pause = min(before.pause * 2, LONGEST_PAUSE)
        self._reported[uid] = _Reported(claim_event.reason, claim_event.message, now + pause, pause)
        log.info(
            "claim_waits",
            about=objects.describe(claim_event.about[0]),
            reason=claim_event.reason,
            message=claim_event.message,
        )
        self.report(claim_event)

    def forget(self, uid: str) -> None:
        """The claim or pod is gone."""
        self._reported.pop(uid, None)
        self._held_back.pop(uid, None)

"""Claim events as core/v1 Events: one Event per object and reason, whose count goes up, never a stream of new
ones.

The Event's name is made from the object's uid and the reason, so that every controller that was ever active
counts on the same Event: create it; if it exists, raise its count; if it has expired (an hour by default),
create it again. Recording only puts the newest message for that name aside; `flush` writes, in a thread of
its own, and never raises: while the API server is away Events are kept (a bounded number), one that the
server refuses is logged and dropped. Nothing ever waits for them.

A claim that waits is reported once per reason. When only the figures change, the newest ones are reported
after a pause that doubles from FIRST_PAUSE to LONGEST_PAUSE seconds, so that the last Event of a claim never
stays wrong. An allocation resets the pause.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.kinds import EVENTS
from koordra.api.objects import Object
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink, cut
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)


COMPONENT: Final = "koordra-controller"
MOST_PENDING: Final = 4096
"""Events kept for writing while the API server is away; the oldest go first."""

UNREACHABLE_PAUSE: Final = 2.0


class EventRecorder:
    """Thread-safe. `now`: wall clock as RFC 3339 in whole seconds; `identity`: which replica reports."""

    def __init__(self, api: KubeClient, *, now: Callable[[], str], identity: str) -> None:
        self._api = api
        self._now = now
        self._identity = identity
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str], tuple[ClaimEvent, Object, int]] = {}
        """By namespace and name of the Event: what it says, the object that it is about, and how often that
        happened."""
        self._wake = threading.Event()

    def __call__(self, claim_event: ClaimEvent, /) -> None:
        with self._lock:
            for about in claim_event.about:
                place = (objects.namespace(about), event_name(about, claim_event.reason))
                _, _, times = self._pending.pop(place, (None, None, 0))
                self._pending[place] = claim_event, about, times + 1
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
        for place, (event, about, times) in pending.items():
            try:
                self._write(*place, event, about, times)
            except ApiUnreachable as error:
                log.warning("events_not_written_yet", number=len(unwritten), error=str(error))
                with self._lock:
                    self._pending = {**unwritten, **self._pending}
                return False
            except ApiError as error:
                log.warning(
                    "event_lost", object=objects.describe(about), reason=event.reason, error=str(error)
                )
            del unwritten[place]
        return True

    def _write(self, namespace: str, name: str, event: ClaimEvent, about: Object, times: int) -> None:
        now = self._now()
        newest = {
            "count": times,
            "message": cut(event.message),
            "lastTimestamp": now,
            "type": "Warning" if event.warning else "Normal",
        }
        try:
            before = self._api.get(EVENTS, name, namespace=namespace)
        except NotFound:
            body = {
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
                "reason": event.reason,
                "firstTimestamp": now,
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "reportingInstance": self._identity,
                **newest,
            }
            with suppress(Conflict):
                self._api.create(EVENTS, body, namespace=namespace)
                return
            before = self._api.get(EVENTS, name, namespace=namespace)
        count = int(before.get("count") or 0) + times
        self._api.patch(EVENTS, name, {**newest, "count": count}, namespace=namespace)


def event_name(about: Object, reason: str) -> str:
    digest = hashlib.sha256(f"{objects.uid(about)}/{reason}/{COMPONENT}".encode()).hexdigest()[:16]
    return f"{objects.name(about)[:200].rstrip('.-')}.{digest}"


FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Reported:
    event: ClaimEvent
    until: float
    pause: float


class EventDedup:
    """Passes events on, to one that neither blocks nor raises. Not thread-safe."""

    def __init__(self, report: EventSink, *, clock: Callable[[], float]) -> None:
        self.report = report
        self._clock = clock
        self._reported: dict[str, _Reported] = {}
        self._held_back: dict[str, ClaimEvent] = {}

    def allocated(self, claim: Object, pods: Iterable[Object], *, level: str | None) -> None:
        self.forget(objects.uid(claim))
        self.report(claim_events.allocated(claim, pods, level=level))

    def waiting(self, claim: Object, pods: Iterable[Object], reasons: Sequence[Reason]) -> None:
        self._report_if_new(claim_events.waiting(claim, tuple(pods), reasons), objects.uid(claim))

    def pinned(self, claim: Object, pod: Object, reasons: Sequence[Reason]) -> None:
        """The pod has no place beside a claim that others use; reported only if that is new."""
        self._report_if_new(claim_events.pinned(claim, pod, reasons), objects.uid(pod))

    def _report_if_new(self, claim_event: ClaimEvent, uid: str) -> None:
        before = self._reported.get(uid)
        self._held_back.pop(uid, None)
        if before is None or before.event.reason != claim_event.reason:
            self._report_new(uid, claim_event)
        elif before.event.message != claim_event.message:
            if self._clock() < before.until:
                self._held_back[uid] = claim_event
            else:
                self._report_new(uid, claim_event)

    def flush_due(self) -> float | None:
        """Report what was held back and is due; returns when the next is, None when nothing is held back."""
        now = self._clock()
        for uid in [uid for uid in self._held_back if self._reported[uid].until <= now]:
            self._report_new(uid, self._held_back.pop(uid))
        return min((self._reported[uid].until for uid in self._held_back), default=None)

    def _report_new(self, uid: str, claim_event: ClaimEvent) -> None:
        before, now, pause = self._reported.get(uid), self._clock(), FIRST_PAUSE
        if before and before.event.reason == claim_event.reason and now < before.until + LONGEST_PAUSE:
            pause = min(before.pause * 2, LONGEST_PAUSE)
        self._reported[uid] = _Reported(claim_event, now + pause, pause)
        log.info(
            "claim_waits",
            about=objects.describe(claim_event.about[0]),
            reason=claim_event.reason,
            message=claim_event.message,
        )
        self.report(claim_event)

    def forget(self, uid: str) -> None:
        self._reported.pop(uid, None)
        self._held_back.pop(uid, None)

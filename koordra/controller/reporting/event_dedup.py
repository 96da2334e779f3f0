"""Reporting what happened, and not reporting the same thing over and over.

A claim that waits is reported once per reason. When only the figures change, the newest ones are reported after a pause
that doubles from FIRST_PAUSE to LONGEST_PAUSE seconds, so that the last Event of a claim never stays wrong.
An allocation resets the pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink
from koordra.logs import get_logger

log = get_logger(__name__)

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

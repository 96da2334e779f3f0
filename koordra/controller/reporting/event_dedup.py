"""Of a claim that waits is told what is news.

It is reported once per reason. When other clauses fail for the same reason, that is reported after a pause
that doubles from FIRST_PAUSE to LONGEST_PAUSE seconds; when only figures, places and holders change, the
newest ones are reported every FIGURES_PAUSE seconds, so that the last Event of a claim does not stay wrong.
An allocation resets the pauses. What still holds is told again every RETOLD seconds: the API server forgets
Events after an hour.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import DueKeys
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink, ReasonsSink
from koordra.logs import get_logger

log = get_logger(__name__)

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 60.0
FIGURES_PAUSE: Final = 600.0
RETOLD: Final = 2700.0
_FIGURE: Final = re.compile(r"\S*\d\S*")


@dataclass(frozen=True, slots=True)
class _Reported:
    """`about`: what it says, without the figures."""

    event: ClaimEvent
    about: object
    at: float
    pause: float

    def due_for(self, about: object) -> float:
        """When other words may be told for the same reason."""
        return self.at + (FIGURES_PAUSE if about == self.about else self.pause)


class EventDedup:
    """Passes events on, to one that neither blocks nor raises. Not thread-safe."""

    def __init__(
        self,
        report: EventSink,
        *,
        clock: Callable[[], float],
        holds: Callable[[ClaimEvent], bool] = lambda claim_event: True,
        reasons: ReasonsSink = lambda claim, reasons: None,
    ) -> None:
        """`holds`: whether what was told is still so, if nothing else was told since. `reasons` is told what
        is no news, too."""
        self.report = report
        self._clock = clock
        self._holds = holds
        self._reasons = reasons
        self._reported = OrderedDict[str, _Reported]()
        """By uid, the longest told first."""
        self._held_back: dict[str, tuple[ClaimEvent, object]] = {}
        self._due = DueKeys()

    def allocated(self, claim: Object, pods: Iterable[Object], *, level: str | None) -> None:
        self.forget(objects.uid(claim))
        self.report(claim_events.allocated(claim, pods, level=level))

    def waiting(self, claim: Object, pods: Iterable[Object], reasons: Sequence[Reason]) -> None:
        self._reasons(claim, reasons)
        told = claim_events.waiting(claim, tuple(pods), reasons)
        self._report_if_new(told, objects.uid(claim), _without_figures(reasons))

    def pinned(self, claim: Object, pod: Object, reasons: Sequence[Reason]) -> None:
        """The pod has no place beside a claim that others use; reported only if that is new."""
        self._reasons(claim, reasons)
        told = claim_events.pinned(claim, pod, reasons)
        self._report_if_new(told, objects.uid(pod), _without_figures(reasons))

    def gate_refused(self, pod: Object, *, message: str) -> None:
        self._report_if_new(claim_events.gate_refused(pod, message=message), objects.uid(pod), message)

    def lacking(self, pod: Object, *, message: str) -> None:
        self._report_if_new(claim_events.lacking(pod, message=message), objects.uid(pod), message)

    def _report_if_new(self, claim_event: ClaimEvent, uid: str, about: object) -> None:
        before = self._reported.get(uid)
        earlier = self._held_back.pop(uid, None)
        if before is None or before.event.reason != claim_event.reason:
            self._report_new(uid, claim_event, about)
        elif before.event.message != claim_event.message:
            due = before.due_for(about)
            if self._clock() < due:
                self._held_back[uid] = claim_event, about
                if earlier is None or earlier[1] != about:
                    self._due.add(due, uid)
            else:
                self._report_new(uid, claim_event, about)

    def flush_due(self) -> float | None:
        """Report what was held back and is due; returns when to look again, None when nothing is held
        back."""
        now = self._clock()
        for uid in sorted(self._due.pop(now) & self._held_back.keys()):
            if self._reported[uid].due_for(self._held_back[uid][1]) <= now:
                self._report_new(uid, *self._held_back.pop(uid))
        while self._reported:
            uid, told = next(iter(self._reported.items()))
            if told.at + RETOLD > now:
                break
            if self._holds(told.event):
                self._report_new(uid, told.event, told.about)
            else:
                self.forget(uid)
        return self._due.next if self._held_back else None

    def _report_new(self, uid: str, claim_event: ClaimEvent, about: object) -> None:
        before, now, pause = self._reported.get(uid), self._clock(), FIRST_PAUSE
        if before and before.event.reason == claim_event.reason:
            lately = now < before.at + before.pause + LONGEST_PAUSE
            pause = min(before.pause * 2, LONGEST_PAUSE) if lately else FIRST_PAUSE
        self._reported[uid] = _Reported(claim_event, about, now, pause)
        self._reported.move_to_end(uid)
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


def _without_figures(reasons: Iterable[Reason]) -> object:
    """Which clauses fail, of which requests; neither how far, nor where, nor who holds what is asked for."""
    return frozenset(
        (one.reason, one.request, one.clause or _FIGURE.sub("", one.detail))
        for one in reasons
        if not one.is_aside
    )

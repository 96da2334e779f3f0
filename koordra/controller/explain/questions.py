"""Questions on their way from the threads that serve to the worker that owns the indices, and answers back.

    webhook's threads ── ask ──▶ queue ── between two passes ──▶ answer ──▶ the thread that waits

The worker answers after each pass, in the order asked, and gives a tenth of its time to it at most: after an
answer that took a second, none begins for nine. So whoever asks, and whatever about, passes go on. A question
nobody answers in WITHIN is dropped, as are those that are more than MOST_WAITING. What an answer may cost is
bounded like the planning of a group: by the placements tried, and by the selectors.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Final

from koordra.api.objects import Object
from koordra.controller.explain.answer import answer
from koordra.controller.explain.question import NOT_LEADING, Question
from koordra.controller.explain.view import ClusterView
from koordra.effort import counted
from koordra.errors import ApiError, ApiUnreachable, SelectorsCostTooMuch
from koordra.logs import get_logger
from koordra.process.lifecycle import count_failure
from koordra.process.progress import step

log = get_logger(__name__)

MOST_WAITING: Final = 16
WITHIN: Final = 5.0
"""Seconds from the question to its answer; a caller that waits longer reads the cluster meanwhile."""
SHARE: Final = 9.0
"""So many times as long as an answer took no other one begins."""
SELECTORS: Final = 500_000
"""Units of CEL that the selectors of one answer may cost."""


class NotLeading(ApiError):
    """This replica decides nothing; the message says who does."""


class Busy(ApiError):
    """Others asked first."""


@dataclass(slots=True)
class _Waiting:
    question: Question
    asked: float
    answer: Future[Object] = field(default_factory=Future)


class Questions:
    """Thread-safe. `clock` is monotonic. `leader`: who leads, as far as this replica knows."""

    def __init__(
        self, *, leader: Callable[[], str] = lambda: "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.leader = leader
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._wake: Callable[[], object] | None = None
        self._rest_until = 0.0

    # the threads that serve

    def ask(self, question: Question) -> Object:
        """Waits for the worker's answer. Raises NotLeading, Busy, NotFound and ApiUnreachable."""
        waiting = _Waiting(question, self._clock())
        with self._lock:
            wake = self._wake
            if wake is None:
                raise self.not_leading()
            if len(self._queue) >= MOST_WAITING:
                raise Busy("others have asked first", code=429, reason="TooManyRequests")
            self._queue.append(waiting)
        wake()
        try:
            return waiting.answer.result(WITHIN)
        except (TimeoutError, CancelledError):
            waiting.answer.cancel()
            text = f"the controller had no time to answer within {WITHIN:g} s"
            raise ApiUnreachable(text, code=504, reason="Timeout") from None

    @property
    def is_leading(self) -> bool:
        return self._wake is not None

    def not_leading(self) -> NotLeading:
        leader = self.leader() or "nobody that is known here"
        return NotLeading(f"this replica does not lead; {leader} does", code=503, reason=NOT_LEADING)

    # the worker

    def open(self, wake: Callable[[], object]) -> None:
        """A term begins. `wake`: have the worker make a pass."""
        with self._lock:
            self._wake = wake

    def close(self) -> None:
        """It is over: whoever waits asks another replica."""
        with self._lock:
            self._wake = None
            left, self._queue = list(self._queue), deque()
        for waiting in left:
            if waiting.answer.set_running_or_notify_cancel():
                waiting.answer.set_exception(self.not_leading())

    def answer(self, view: Callable[[], ClusterView]) -> float | None:
        """Answer what fits into the worker's share. Returns the seconds until the next one may be answered;
        None where nobody waits."""
        while self._queue:
            began = self._clock()
            if began < self._rest_until:
                return self._rest_until - began
            with self._lock:
                waiting = self._queue.popleft()
            late = began - waiting.asked > WITHIN
            if late or not waiting.answer.set_running_or_notify_cancel():
                continue
            step()
            _answer(waiting, view)
            took = self._clock() - began
            self._rest_until = self._clock() + SHARE * took
            log.debug("explained", question=str(waiting.question), seconds=round(took, 3))
        return None


def _answer(waiting: _Waiting, view: Callable[[], ClusterView]) -> None:
    try:
        with counted(selectors=SELECTORS):
            waiting.answer.set_result(answer(view(), waiting.question))
    except (ApiError, SelectorsCostTooMuch) as error:
        waiting.answer.set_exception(error)
    except Exception as defect:
        count_failure(defect)
        log.exception("explain_failed", question=str(waiting.question))
        waiting.answer.set_exception(defect)

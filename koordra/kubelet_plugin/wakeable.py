"""Work that is done at every wake, and again after a while: the plugin's writers and comparisons, each in a
thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from koordra.errors import KoordraError, NodeError
from koordra.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds until the next step: `at_least`, also if there is a wake, and `at_most`, if there is none
    (None: until one)."""

    at_least: float
    at_most: float | None


class Wakeable:
    """A part with a `step` of its own. `wake` may be called from any thread; `run` does all the work in its
    own."""

    gather = 0.0
    """Seconds between a wake and the step, where several changes arrive as several events: one step answers
    them all."""
    failed = "step_failed"
    """The event in the log, once until it is another error."""
    retry = Pause(0.0, 10.0)
    """After a step that failed."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.was_woken = False
        self._error = ""

    def wake(self) -> None:
        """Work soon: something may have changed."""
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        """Until `stop`, which is to be followed by a `wake`."""
        while not stop.is_set():
            self.was_woken = self._woken.is_set()
            self._woken.clear()
            pause = self.attempt()
            if not stop.wait(pause.at_least):
                self._woken.wait(None if pause.at_most is None else pause.at_most - pause.at_least)
                if self.gather:
                    stop.wait(self.gather)

    def attempt(self) -> Pause:
        """One step, whose errors the next one may not meet."""
        try:
            pause, error = self.step(), ""
        except (OSError, KoordraError) as failure:
            pause, error = self.retry, str(failure)
        if error and error != self._error:
            log.warning(self.failed, error=error)
        self._error = error
        return pause

    def step(self) -> Pause:
        """Do the work once. `was_woken`: since the last step began. Raises OSError, KoordraError."""
        raise NotImplementedError


def require_alive(threads: Sequence[threading.Thread], stop: threading.Event) -> None:
    """Raises NodeError where a thread has ended before `stop`: better than a plugin that seems alive and does
    nothing."""
    ended = [thread.name for thread in threads if not thread.is_alive()]
    if ended and not stop.is_set():
        raise NodeError(
            f"the thread {ended[0]} has ended; its traceback is in the log, and the plugin has to be started again"
        )

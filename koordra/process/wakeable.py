"""Work that is done at every wake, and again after a while: a process's writers and comparisons, each in a
thread of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from koordra.errors import KoordraError
from koordra.logs import get_logger
from koordra.process.backoff import LONGEST_PAUSE, Backoff
from koordra.process.lifecycle import count_failure
from koordra.process.progress import resting, watched

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
    longest = LONGEST_PAUSE
    """Seconds between steps that fail, at last; a wake does not cut them short."""

    def __init__(self) -> None:
        self._backoff = Backoff(longest=self.longest)
        self._woken = threading.Event()
        self.was_woken = False
        self._error = ""

    def wake(self) -> None:
        """Work soon: something may have changed."""
        self._woken.set()

    @watched()
    def run(self, stop: threading.Event) -> None:
        """Until `stop`, which is to be followed by a `wake`."""
        while not stop.is_set():
            self.was_woken = self._woken.is_set()
            self._woken.clear()
            pause = self.attempt()
            with resting():
                if not stop.wait(pause.at_least):
                    self._woken.wait(None if pause.at_most is None else pause.at_most - pause.at_least)
                    if self.gather:
                        stop.wait(self.gather)

    def attempt(self) -> Pause:
        """One step, whose errors the next one may not meet; defects are among them, since the plugin's other
        parts are not to end with this one."""
        pause, error = None, ""
        try:
            pause = self.step()
        except Exception as failure:
            count_failure(failure)
            error = str(failure) or repr(failure)
            if error != self._error:
                expected = isinstance(failure, (OSError, KoordraError))
                log.warning(self.failed, error=error, exc_info=None if expected else failure)
        self._error = error
        if pause is not None:
            self._backoff.reset()
            return pause
        seconds = self._backoff.next()
        return Pause(seconds, seconds)

    def step(self) -> Pause | None:
        """Do the work once. `was_woken`: since the last step began. None: some of it could not be done, which
        is known and told already. Raises OSError, KoordraError."""
        raise NotImplementedError

"""Work that is done at every wake, and again after a while: the plugin's writers and comparisons, each in a
thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from koordra.errors import NodeError


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

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.was_woken = False

    def wake(self) -> None:
        """Work soon: something may have changed."""
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        """Until `stop`, which is to be followed by a `wake`."""
        while not stop.is_set():
            self.was_woken = self._woken.is_set()
            self._woken.clear()
            pause = self.step()
            if not stop.wait(pause.at_least):
                self._woken.wait(None if pause.at_most is None else pause.at_most - pause.at_least)
                if self.gather:
                    stop.wait(self.gather)

    def step(self) -> Pause:
        """Do the work once; errors that the next step may not meet are logged. `was_woken`: since the last
        step began."""
        raise NotImplementedError


def require_alive(threads: Sequence[threading.Thread], stop: threading.Event) -> None:
    """Raises NodeError where a thread has ended before `stop`: better than a plugin that seems alive and does
    nothing."""
    ended = [thread.name for thread in threads if not thread.is_alive()]
    if ended and not stop.is_set():
        raise NodeError(
            f"the thread {ended[0]} has ended; its traceback is in the log, and the plugin has to be started again"
        )

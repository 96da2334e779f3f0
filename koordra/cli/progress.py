"""That something goes on, for whoever waits: nothing for two seconds, then a line on stderr. On a terminal
it says for how long, or how far, and goes away at the end; anywhere else it is one line. It never mixes with
a result: who asks for a document hears nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from koordra.cli.options import NARROW, say
from koordra.inert import inert
from koordra.process.lifecycle import spawn

AFTER: Final = 2.0
"""Seconds for which nobody needs to hear anything."""
PERIOD: Final = 0.5


class Progress:
    """What goes on, and how far it is. Other lines are printed within `aside`."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._far = ""
        self._shown = False
        self._lock = threading.RLock()

    def far(self, done: int, of: int) -> None:
        self._far = f": {100 * done // max(of, 1)} %"

    def show(self, seconds: float) -> None:
        """The line anew."""
        with self._lock:
            self._shown = True
            text = inert(f"{self.what}{self._far or f', {seconds:.0f} s'}")[: NARROW - 1]
            click.echo(f"\r\x1b[K{text}", nl=False, err=True, color=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The line is away, and stays away until the end."""
        with self._lock:
            if self._shown:
                click.echo("\r\x1b[K", nl=False, err=True, color=True)
            self._shown = False
            yield


@contextmanager
def progress(
    what: str,
    *,
    silent: bool = False,
    line: bool = True,
    after: float = AFTER,
    on_terminal: bool | None = None,
) -> Iterator[Progress]:
    """While something that may take long is done. `silent`: a document was asked for. `line`: say it once
    where stderr is no terminal; who says enough by itself needs none."""
    told, stop = Progress(what), threading.Event()
    shows = sys.stderr.isatty() if on_terminal is None else on_terminal

    def tell() -> None:
        if stop.wait(after):
            return
        if not shows:
            say(f"koordra: {what} ...", err=True)
            return
        seconds = after
        while True:
            told.show(seconds)
            if stop.wait(PERIOD):
                return
            seconds += PERIOD

    teller = spawn(tell, name="progress") if not silent and (shows or line) else None
    try:
        yield told
    finally:
        stop.set()
        if teller is not None:
            teller.join()
        with told.aside():
            pass

"""Steps of threads, by which a watchdog (koordra.process.watchdog) tells work from standing still.

watched()   this thread has to make steps while it is in here
step()      it made one: an object, a request, a claim decided; called wherever work may take long
resting()   it waits for somebody else, for as long as that takes: no step is due
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, eq=False)
class WatchedThread:
    name: str
    steps: int = 0
    rests: bool = False


threads: Final[dict[int, WatchedThread]] = {}
"""Those that are watched, by their identity; each is written by its own thread alone."""


@contextmanager
def watched(name: str = "") -> Iterator[None]:
    """`name`: where the thread's own does not say what it does. Within another `watched` it is one step."""
    ident, here = threading.get_ident(), threads
    if ident in here:
        step()
        yield
        return
    here[ident] = WatchedThread(name or threading.current_thread().name)
    try:
        yield
    finally:
        del here[ident]


def step() -> None:
    """This thread, if it is watched, gets on."""
    found = threads.get(threading.get_ident())
    if found is not None:
        found.steps += 1


@contextmanager
def resting() -> Iterator[None]:
    found = threads.get(threading.get_ident())
    if found is None:
        yield
        return
    found.rests = True
    try:
        yield
    finally:
        found.steps += 1
        found.rests = False

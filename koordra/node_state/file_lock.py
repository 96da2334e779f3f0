"""Locks of the state directory: flock(2), which the kernel releases when the holder dies, so nothing is left
after a kill."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable


def try_lock(descriptor: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(descriptor: int, stop: threading.Event, *, retry: float, busy: Callable[[], None]) -> bool:
    """Take the lock, trying every `retry` seconds; False when `stop` comes first. `busy` is called once, if
    another process has the lock."""
    reported = False
    while not stop.is_set():
        if try_lock(descriptor):
            return True
        if not reported:
            busy()
            reported = True
        stop.wait(retry)
    return False

"""Exactly one hook of a node is registered at a time.

Two that adjust the same container would both set the same variables, and the runtime would fail the
container. During an update two processes overlap; the newer one waits for the older one's lock, which the
kernel releases however that one ends. Containers created between the two are reported to the newer one in
Synchronize.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from koordra.errors import NRIError
from koordra.logs import get_logger
from koordra.node_state.file_lock import wait_for_lock

LOCK_FILE: Final = "nri.lock"
_POLL_S: Final = 0.1

log = get_logger(__name__)


@contextlib.contextmanager
def instance_lock(
    state_dir: Path, stop: threading.Event, *, waiting: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Hold the node's lock for the time of the block; False when `stop` came first. `waiting` is called once
    when another process has it. NRIError: the lock file cannot be opened."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor = os.open(
            state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise NRIError(f"cannot open {LOCK_FILE} in {state_dir}: {error.strerror or error}") from error
    try:
        yield _acquire(descriptor, stop, waiting)
    finally:
        os.close(descriptor)


def first_start(state_dir: Path, *, now: Callable[[], float] = time.time) -> float:
    """When a hook first held this node's lock (Unix time): the file stays, and nothing is ever written to it.

    A time in the future means that the clock was ahead then (a machine that booted without the time): it is
    set to now, or every container until then would count as older than the hook.
    """
    path = state_dir / LOCK_FILE
    since, today = path.stat().st_mtime, now()
    if since <= today:
        return since
    log.warning("first_start_in_future", first_start=since, now=today)
    os.utime(path, (today, today))
    return today


def _acquire(descriptor: int, stop: threading.Event, waiting: Callable[[], None]) -> bool:
    def busy() -> None:
        log.info("nri_instance_lock_waiting")
        waiting()

    return wait_for_lock(descriptor, stop, retry=_POLL_S, busy=busy)

"""Locks of the state directory: flock(2), which the kernel releases when the holder dies, so nothing is left
after a kill.

StateLock        one writer of the state directory, also while two instances of the plugin overlap during an
                 update
CardLocks        one at a time does something to a card
sole_instance    one owner of each pair of socket names
node_lock        one hook of a node is registered at a time
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from koordra.errors import CheckpointError, KoordraError, NRIError
from koordra.node_state.disk import reported

HOOK_LOCK: Final = "nri.lock"
_RETRY_S: Final = 0.1
_STATE_RETRY_S: Final = 0.02
"""Seconds between two attempts at a lock that another process holds; Prepare holds it for milliseconds."""


_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def opened(path: Path, kind: type[KoordraError]) -> Iterator[int]:
    """The descriptor of a lock file, for the time of the block: the lock on it goes with it."""
    with reported(kind, path, "opened", remedy="make its directory writable"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
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


class StateLock:
    """`timeout` (seconds) stays well below the 45 s after which the kubelet gives a call up."""

    def __init__(self, path: Path, *, timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises CheckpointError when another holder does not let go in time."""
        if not self._threads.acquire(timeout=self._timeout):
            raise self._busy("a call of this process")
        try:
            with opened(self._path, CheckpointError) as descriptor:
                deadline = time.monotonic() + self._timeout
                while not try_lock(descriptor):
                    if time.monotonic() >= deadline:
                        raise self._busy("another instance of the plugin")
                    time.sleep(_STATE_RETRY_S)
                yield
        finally:
            self._threads.release()

    def _busy(self, holder: str) -> CheckpointError:
        return CheckpointError(
            f"the state lock {self._path} was held for {self._timeout:g} s by {holder}; the call is repeated by the kubelet"
        )


class CardLocks:
    """Files in `folder`, one for each card. Who waits for one may hold no StateLock, whose holders do not
    wait for cards. A lock is a descriptor, and is held until all its duplicates are closed: a call that
    nobody waits for any more keeps its card."""

    def __init__(self, folder: Path, *, timeout: float = 20.0) -> None:
        self._folder, self._timeout = folder, timeout

    def take(self, card: str) -> int | None:
        """None where another holds it. Raises CheckpointError."""
        with opened(self._folder / f"{card}.lock", CheckpointError) as descriptor:
            return os.dup(descriptor) if try_lock(descriptor) else None

    def wait_for(self, card: str) -> int | None:
        """None where another holds it for too long."""
        deadline = time.monotonic() + self._timeout
        while (descriptor := self.take(card)) is None and time.monotonic() < deadline:
            time.sleep(_STATE_RETRY_S)
        return descriptor


@contextmanager
def sole_instance(
    path: Path, stop: threading.Event, *, waiting: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Own a socket name for the time of the block; False when `stop` came before its other owner ended.

    Two instances that bind the same sockets would take them from each other repeatedly. Instances with names
    of their own (`--pod-uid`) do not share a lock. The owner removes the file when it ends; one that was
    killed leaves it, which marks its sockets as `abandoned`. Raises CheckpointError when the file cannot be
    opened.
    """
    while not stop.is_set():
        with opened(path, CheckpointError) as descriptor:
            if not wait_for_lock(descriptor, stop, retry=_RETRY_S, busy=waiting):
                break
            if not _is_at(descriptor, path):
                continue  # its last owner removed the file while we waited: our lock is on a deleted file
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return
    yield False


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Whether the lock file exists without an owner. It is then locked for the time of the block, so that no
    new owner comes meanwhile, and removed."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        yield False
        return
    try:
        if not try_lock(descriptor) or not _is_at(descriptor, path):
            yield False
            return
        yield True
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


@contextmanager
def node_lock(
    state_dir: Path, stop: threading.Event, *, waiting: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Hold the lock of the node's hook for the time of the block; False when `stop` came first. `waiting` is
    called once when another process has it. NRIError: the lock file cannot be opened.

    Two hooks that adjust the same container would both set the same variables, and the runtime would fail the
    container. During an update two processes overlap; the newer one waits for the older one's lock.
    Containers created between the two are reported to the newer one in Synchronize.
    """
    with opened(state_dir / HOOK_LOCK, NRIError) as descriptor:
        yield wait_for_lock(descriptor, stop, retry=_RETRY_S, busy=waiting)

"""One writer of the state directory, also while two instances overlap during an update.

The lock file is in the state directory. Threads of one process queue at a lock of their own first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordra.errors import CheckpointError
from koordra.node_state.file_lock import try_lock

_RETRY = 0.02
"""Seconds between two attempts at a lock that another process holds; Prepare holds it for some
milliseconds."""


class StateLock:
    """`timeout` (seconds) stays well below the 45 s after which the kubelet gives a call up."""

    def __init__(
        self,
        path: Path,
        *,
        timeout: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises CheckpointError when another holder does not let go in time."""
        if not self._threads.acquire(timeout=self._timeout):
            raise self._busy("a call of this process")
        try:
            descriptor = self._acquire()
            try:
                yield
            finally:
                os.close(descriptor)
        finally:
            self._threads.release()

    def _acquire(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise CheckpointError(
                f"the state lock {self._path} cannot be opened: {error.strerror}; make the state directory writable"
            ) from error
        deadline = self._clock() + self._timeout
        while not try_lock(descriptor):
            if self._clock() >= deadline:
                os.close(descriptor)
                raise self._busy("another instance of the plugin")
            self._sleep(_RETRY)
        return descriptor

    def _busy(self, holder: str) -> CheckpointError:
        return CheckpointError(
            f"the state lock {self._path} was held for {self._timeout:g} s by {holder}; the call is repeated by the kubelet"
        )

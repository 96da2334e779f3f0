"""Something done in a child of fork, within a deadline: a driver that hangs takes the child, not the self
test."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from koordra.errors import NodeError

T = TypeVar("T")


def aside(act: Callable[[], T], *, deadline: float) -> T:
    """What `act` returns; it is pickled on its way. Raises NodeError where it raises anything, dies, or does
    not end within `deadline` seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(act, writing)
    os.close(writing)
    said = None
    try:
        said = _heard(reading, until=time.monotonic() + deadline)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        # One that hangs in the kernel does not even die: it is left to itself.
        os.waitpid(child, os.WNOHANG if said is None else 0)
    if said is None:
        raise NodeError(f"no answer within {deadline:.0f} s: the driver hangs")
    if not said:
        raise NodeError("the driver's library ended the process that asked it")
    found, error = pickle.loads(said)
    if error:
        raise NodeError(error)
    return found  # type: ignore[no-any-return]


def _tell(act: Callable[[], object], pipe: int) -> None:
    """The child: never returns."""
    with suppress(BaseException):
        try:
            said = pickle.dumps((act(), ""))
        except Exception as error:  # noqa: BLE001  (the parent says it)
            said = pickle.dumps((None, f"{type(error).__name__}: {error}"))
        with os.fdopen(pipe, "wb") as file:
            file.write(said)
    os._exit(0)


def _heard(pipe: int, *, until: float) -> bytes | None:
    """All that is written until the other end closes; None where it does not by then."""
    parts: list[bytes] = []
    written = select.poll()  # select.select takes no descriptor above 1,023
    written.register(pipe, select.POLLIN)
    while written.poll(max(0.0, until - time.monotonic()) * 1000):
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None

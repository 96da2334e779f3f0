"""Something done in a process of its own, within a deadline: a driver that hangs takes that, not the self
test. It is a new one, since a child of fork has the locks of this one's other threads, and not the
threads."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from koordra.errors import NodeError

T = TypeVar("T")
_KILLED_WITHIN: Final = 1.0


def aside(act: Callable[[], T], *, deadline: float) -> T:
    """What `act` returns; both are pickled on their way. Raises NodeError where it raises anything, dies, or
    does not end within `deadline` seconds."""
    asked = pickle.dumps(act)
    child, reading = _started()
    said = None
    try:
        if child.stdin is not None:
            with suppress(BrokenPipeError), child.stdin as file:
                file.write(asked)
        said = _heard(reading, until=time.monotonic() + deadline)
    finally:
        os.close(reading)
        child.kill()
        # One that hangs in the kernel does not even die: it is left to itself.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_WITHIN)
    if said is None:
        raise NodeError(f"no answer within {deadline:.0f} s: the driver hangs")
    if not said:
        raise NodeError("the driver's library ended the process that asked it")
    found, error = pickle.loads(said)
    if error:
        raise NodeError(error)
    return found  # type: ignore[no-any-return]


def _started() -> tuple[subprocess.Popen[bytes], int]:
    """The process, and where its answer comes: a library of the driver's may print. Root may stand in a
    folder where others write: nothing is imported from there (-P)."""
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as error:
        os.close(reading)
        raise NodeError(f"no process can be started: {error}") from error
    finally:
        os.close(writing)
    return child, reading


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


def _tell(asked: bytes, pipe: int) -> None:
    """In the process itself."""
    try:
        said = pickle.dumps((pickle.loads(asked)(), ""))
    except Exception as error:  # noqa: BLE001  (who asked says it)
        said = pickle.dumps((None, f"{type(error).__name__}: {error}"))
    with os.fdopen(pipe, "wb") as file:
        file.write(said)


if __name__ == "__main__":
    _tell(sys.stdin.buffer.read(), int(sys.argv[1]))
    os._exit(0)  # a thread of the driver's may be left

"""One owner of each socket name: two instances of the plugin may overlap during an update, and one that was
killed leaves its sockets.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from koordra.errors import CheckpointError
from koordra.logs import get_logger
from koordra.node_state.file_lock import try_lock, wait_for_lock

log = get_logger(__name__)

_RETRY_S: Final = 0.1


@contextmanager
def sole_instance(path: Path, stop: threading.Event) -> Iterator[bool]:
    """Own a socket name for the time of the block; False when `stop` came before its other owner ended.

    Two instances that bind the same sockets would take them from each other repeatedly. Instances with names
    of their own (`--pod-uid`) do not share a lock. The owner removes the file when it ends; one that was
    killed leaves it, which marks its sockets as `abandoned`. Raises CheckpointError when the file cannot be
    opened.
    """
    descriptor: int | None = None
    try:
        while descriptor is None:
            descriptor = _open_instance(path)
            if not _alone(descriptor, path, stop):
                break
            if not _is_at(descriptor, path):
                # Its last owner removed the file while we waited: our lock is on a deleted file.
                os.close(descriptor)
                descriptor = None
                continue
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return
        yield False
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Whether the lock file exists without an owner. It is then locked for the time of the block, so that no
    new owner comes meanwhile, and removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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


def _open_instance(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be opened: {error.strerror}; make the directory writable"
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _alone(descriptor: int, path: Path, stop: threading.Event) -> bool:
    def busy() -> None:
        log.warning(
            "sockets_owned_by_another_instance", lock=str(path), remedy="give each a --pod-uid, or end one"
        )

    return wait_for_lock(descriptor, stop, retry=_RETRY_S, busy=busy)

"""Waiting for changes of one directory, by inotify: what fsnotify is to the real kubelet."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path
from typing import Final

from koordra.errors import NodeError

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_CLOEXEC: Final = 0o2000000
_NONBLOCK: Final = 0o4000


class DirectoryWatch:
    """Names that appear in or vanish from `path` wake `wait`; what there is has to be listed by the
    caller."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = int(libc.inotify_init1(_CLOEXEC | _NONBLOCK))
        watch = libc.inotify_add_watch(
            self._descriptor, os.fsencode(path), _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO
        )
        if self._descriptor < 0 or watch < 0:
            raise NodeError(f"{path}: cannot be watched: {os.strerror(ctypes.get_errno())}")
        self._changes = select.poll()  # select.select takes no descriptor above 1,023
        self._changes.register(self._descriptor, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """True when something has changed since the last call, at the latest after `timeout` seconds."""
        if not self._changes.poll(timeout * 1000):
            return False
        os.read(self._descriptor, 65536)
        return True

    def close(self) -> None:
        os.close(self._descriptor)

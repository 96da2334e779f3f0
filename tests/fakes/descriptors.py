"""How many files this process has open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

_SELECT_TAKES: Final = 1024


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) - 1


@contextmanager
def more_than_select_takes() -> Iterator[None]:
    """The next file that is opened has a number above 1,023, as in a process with many connections."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        if resource.RLIM_INFINITY != limits[0] < 2 * _SELECT_TAKES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * _SELECT_TAKES, limits[1]))
            held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while held.enter_context(Path(os.devnull).open()).fileno() < _SELECT_TAKES:
            pass
        yield

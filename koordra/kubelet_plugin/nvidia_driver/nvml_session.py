"""NVML of the driver that the node has now: loaded for a session, let go after it.

An initialised NVML holds /dev/nvidiactl and the cards' nodes open, so that the kernel module cannot be
unloaded; a loaded one stays of the version that it was loaded with, while the module may have been replaced
(NVML then answers 18, "driver/library version mismatch"). So nothing is kept between two sessions: the first
of several that overlap looks for the library, loads and initialises it, the last shuts it down and unloads
it, as NVIDIA's go-nvml does (dlopen at Init, dlclose at Shutdown). Sessions are short, but for that of the
listener for Xids, which lets go for every reading of the machine (discovery/events/xid_events.py).

While the driver is to be free (release.py) the library is let go: sessions that are open end soon, since who
holds one looks (`is_let_go`), and no other begins. So it is for as long as one card's MIG mode is switched
(`alone`): whoever else has the driver open may keep it from that.

The library may hang while it is initialised or shut down, over a card that has failed. Who asks for a session
then is refused after a while, and whoever only wants to know or to let go is not held up at all.

nvidia-ml-py has one library for the whole process, and so has this module, the only one that imports it.
"""

from __future__ import annotations

import ctypes
import threading
from _ctypes import dlclose
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pynvml


class NvmlUnavailable(Exception):
    """The library cannot be used at all. Stays within the kubelet plugin."""


class NvmlLetGo(NvmlUnavailable):
    """It may not be used now."""


_changed: Final = threading.Condition()
_sessions = 0
"""How many are open in this process; changed under the condition's lock, as is `_under_way`."""
_under_way = ""
"""What is called to open or close the library, without the lock; nobody else opens or closes it meanwhile."""
OPENS_WITHIN: Final = 30.0
"""Seconds that others wait for that. Without persistence mode an initialisation takes seconds a card."""


class NvmlLibrary:
    """`find` says where libnvidia-ml.so.1 is now, None where there is none; without `find` the loader looks
    for it by its name."""

    def __init__(self, find: Callable[[], Path | None] | None = None) -> None:
        self._find = find
        self._let_go = self._alone = False

    @property
    def is_let_go(self) -> bool:
        return self._let_go or self._alone

    def require(self) -> None:
        """For whoever makes many calls in one session. Raises NvmlLetGo."""
        if self._let_go:
            raise NvmlLetGo("NVML is let go, since the driver is to be free")
        if self._alone:
            raise NvmlLetGo("NVML is let go, while the MIG mode of a card is switched")

    def let_go(self, *, within: float) -> bool:
        """Have all sessions end; False where one is still open after so many seconds."""
        with _changed:
            self._let_go = True
            _changed.notify_all()
            return _changed.wait_for(_is_closed, within)

    def take_up(self) -> None:
        """Sessions may begin again."""
        with _changed:
            self._let_go = False
            _changed.notify_all()

    def wait_until_taken_up(self, *, within: float) -> bool:
        with _changed:
            return _changed.wait_for(lambda: not self.is_let_go, within)

    @contextmanager
    def alone(self, *, within: float) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
        """Sessions of the caller's alone: others of this process end, and none begins. Raises NvmlLetGo, and
        NvmlUnavailable where one does not end."""
        with _changed:
            self.require()
            self._alone = True
            _changed.notify_all()
        try:
            with _changed:
                if not _changed.wait_for(_is_closed, within):
                    raise NvmlUnavailable(f"a call of NVML has not returned for {within:g} s")
            yield lambda: self._session(lambda: None)
        finally:
            with _changed:
                self._alone = False
                _changed.notify_all()

    def session(self) -> AbstractContextManager[Any]:
        """The library, initialised; NvmlUnavailable where that cannot be."""
        return self._session(self.require)

    @contextmanager
    def _session(self, require: Callable[[], None]) -> Iterator[Any]:
        self._begin(require)
        try:
            yield pynvml
        finally:
            _end()

    def _begin(self, require: Callable[[], None]) -> None:
        global _sessions, _under_way
        with _changed:
            if not _changed.wait_for(lambda: not _under_way, OPENS_WITHIN):
                raise NvmlUnavailable(f"{_under_way} has not returned for {OPENS_WITHIN:g} s")
            require()
            if _sessions:
                _sessions += 1
                return
            _under_way = "nvmlInit"
        opened = 0
        try:
            self._open()
            opened = 1
        finally:
            with _changed:
                _sessions, _under_way = opened, ""
                _changed.notify_all()

    def _open(self) -> None:
        if self._find is not None:
            path = self._find()
            if path is None:
                raise NvmlUnavailable("the driver's libnvidia-ml.so.1 is not found")
            try:
                pynvml.nvmlLib = ctypes.CDLL(str(path))
            except OSError as error:
                raise NvmlUnavailable(f"{path} cannot be loaded: {error}") from error
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            why = str(error)  # the library says it, so it is asked before it goes
            _unload()
            raise NvmlUnavailable(why) from error


BY_NAME: Final = NvmlLibrary()
"""The one that the loader finds: on a machine whose own driver it is."""


def _is_closed() -> bool:
    return not _sessions and not _under_way


def _end() -> None:
    global _sessions, _under_way
    with _changed:
        _sessions -= 1
        if _sessions:
            return
        _under_way = "nvmlShutdown"
    try:
        _close()
    finally:
        with _changed:
            _under_way = ""
            _changed.notify_all()


def _close() -> None:
    with suppress(pynvml.NVMLError):  # another driver's may be the next one, so it goes in any case
        pynvml.nvmlShutdown()
    _unload()


def _unload() -> None:
    """Unload the library, with nvidia-ml-py's addresses of its functions."""
    library, pynvml.nvmlLib = pynvml.nvmlLib, None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  they would dangle
    if library is not None:
        dlclose(library._handle)  # noqa: SLF001  ctypes has no other name for it

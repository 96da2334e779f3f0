"""Xids from the NVML event set, in a thread of its own, since NVML blocks while it waits.

An open NVML keeps the list of GPUs it saw first, and keeps the kernel module from being reloaded. So the
session is closed for every reading of the machine (``paused``) and opened again after it; an Xid in that
second NVML does not report, and the kernel's log has it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from koordra.kubelet_plugin.discovery.events import Event, HardwareChanged, XidReported
from koordra.kubelet_plugin.discovery.nvml_query import bus_id_of
from koordra.kubelet_plugin.nvidia_driver.nvml_session import BY_NAME, NvmlLetGo, NvmlLibrary, NvmlUnavailable
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

_TRY_AGAIN = 30.0
_RELEASE_WITHIN = 3.0


class XidEvents:
    """An event source. The thread begins with ``start`` and ends within a second of ``close``.

    NVML is asked to wait for ``wait_ms`` at a time, which bounds how long a pause has to wait for the thread.
    """

    def __init__(
        self, library: NvmlLibrary = BY_NAME, *, try_again: float = _TRY_AGAIN, wait_ms: int = 500
    ) -> None:
        self._library = library
        self._events: deque[Event] = deque()
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._try_again = try_again
        self._wait_ms = wait_ms
        self._closed = threading.Event()
        self._resumed = threading.Event()
        self._resumed.set()
        self._read = threading.Event()
        """Set by every reading: it shows a driver that came."""
        self._session = threading.Lock()
        """Held while NVML is open."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = spawn(self._run, name="xid-events", until=self._closed)

    def fileno(self) -> int:
        return self._ready

    def take(self) -> Sequence[Event]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        for each in (self._closed, self._resumed, self._read):
            each.set()
        if self._thread is not None:
            self._thread.join(_RELEASE_WITHIN)
            if self._thread.is_alive():
                # NVML hangs on a broken card. The descriptor stays open for the thread that may still write
                # to it.
                log.warning("xid_events_stuck")
                return
        os.close(self._ready)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the NVML session closed; waits a bounded time for it to close."""
        self._resumed.clear()
        closed = self._session.acquire(timeout=_RELEASE_WITHIN)
        if not closed:
            log.warning("xid_events_stuck")
        try:
            yield
        finally:
            self._resumed.set()
            self._read.set()
            if closed:
                self._session.release()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._resumed.wait()
            if self._library.is_let_go:
                if self._library.wait_until_taken_up(within=self._wait_ms / 1000):
                    self._emit(HardwareChanged("NVML may be used again"))
                continue
            self._read.clear()
            with self._session:
                until = None if self._closed.is_set() else self._listen()
            if until is not None:
                until.wait(self._try_again)

    def _listen(self) -> threading.Event | None:
        """Wait for events until a pause or `close`; if the library failed before, what ends the rest that
        follows."""
        try:
            with self._library.session() as nvml:
                return None if self._wait(nvml) else self._closed
        except NvmlLetGo:
            return None
        except NvmlUnavailable as error:
            log.debug("xid_events_unavailable", error=str(error))
            return self._read

    def _wait(self, nvml: Any) -> bool:
        try:
            events = nvml.nvmlEventSetCreate()
            try:
                cards = _register(nvml, events)
                while cards and self._may_listen():
                    event = _next(nvml, events, cards, self._wait_ms)
                    if event is not None:
                        self._emit(event)
            finally:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)
        except (nvml.NVMLError, ValueError, TypeError, AttributeError) as error:
            log.warning("xid_events_failed", error=str(error))
            # A lost card, an unloaded driver or a garbled answer ends the wait: read the machine, and retry
            # later.
            self._emit(HardwareChanged(f"NVML: {error}"))
            return False
        return bool(cards)

    def _may_listen(self) -> bool:
        return not self._closed.is_set() and self._resumed.is_set() and not self._library.is_let_go

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._ready, 1)


def _register(nvml: Any, events: Any) -> dict[int | None, str]:
    """Handle -> bus id of the cards that report Xids; one that cannot is left out, others still report."""
    cards: dict[int | None, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = bus_id_of(nvml.nvmlDeviceGetPciInfo(handle))
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            log.debug("xid_events_not_registered", index=index, error=str(error))
            continue
        if bus_id:
            cards[_address(handle)] = bus_id
    return cards


def _next(nvml: Any, events: Any, cards: dict[int | None, str], wait_ms: int) -> Event | None:
    try:
        data = nvml.nvmlEventSetWait_v2(events, wait_ms)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_TIMEOUT:
            return None
        raise
    bus_id = cards.get(_address(data.device))
    if bus_id is None:
        return HardwareChanged("an Xid of an unknown card")
    return XidReported(bus_id, int(data.eventData))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value

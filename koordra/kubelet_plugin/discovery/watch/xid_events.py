"""Xids from the NVML event set, in a thread of its own, since NVML blocks while it waits.

An open NVML keeps the list of GPUs it saw first, and keeps the kernel module from being reloaded. So the
session is closed for every reading of the machine (``paused``) and opened again after it; an Xid in that
second is missed, but the reading finds its traces (a lost card, the driver's recovery action).
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

from koordra.kubelet_plugin.discovery.nvml.library import NvmlUnavailable, session
from koordra.kubelet_plugin.discovery.nvml.query import normal_bus_id, text
from koordra.kubelet_plugin.discovery.watch.events import Event, HardwareChanged, XidReported
from koordra.logs import get_logger
from koordra.process import spawn

log = get_logger(__name__)

_TRY_AGAIN = 30.0
_RELEASE_WITHIN = 3.0


class XidEvents:
    """An event source. The thread begins with ``start`` and ends within a second of ``close``.

    NVML is asked to wait for ``wait_ms`` at a time, which bounds how long a pause has to wait for the thread.
    """

    def __init__(self, *, try_again: float = _TRY_AGAIN, wait_ms: int = 500) -> None:
        self._events: deque[Event] = deque()
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._try_again = try_again
        self._wait_ms = wait_ms
        self._closed = threading.Event()
        self._wake = threading.Condition()
        self._pauses = 0
        self._open = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = spawn(self._run, name="xid-events")

    def fileno(self) -> int:
        return self._readable

    def take(self) -> Sequence[Event]:
        with contextlib.suppress(BlockingIOError):
            os.read(self._readable, 4096)
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def close(self) -> None:
        self._closed.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_RELEASE_WITHIN)
            if self._thread.is_alive():
                # NVML hangs on a broken card. The pipe stays open for the thread that may still write to it.
                log.warning("xid_events_stuck")
                return
        os.close(self._readable)
        os.close(self._writable)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the NVML session closed; waits a bounded time for it to close."""
        with self._wake:
            self._pauses += 1
            if not self._wake.wait_for(lambda: not self._open, timeout=_RELEASE_WITHIN):
                log.warning("xid_events_stuck")
        try:
            yield
        finally:
            with self._wake:
                self._pauses -= 1
                self._wake.notify_all()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._wake:
                self._wake.wait_for(lambda: self._closed.is_set() or not self._pauses)
                self._open = not self._closed.is_set()
            healthy = self._open and self._listen()
            with self._wake:
                self._open = False
                self._wake.notify_all()
                if not healthy:
                    self._wake.wait_for(self._closed.is_set, timeout=self._try_again)

    def _listen(self) -> bool:
        """Wait for events until a pause or `close`; False if the library failed before."""
        try:
            with session() as nvml:
                return self._wait(nvml)
        except NvmlUnavailable as error:
            log.debug("xid_events_unavailable", error=str(error))
            return False

    def _wait(self, nvml: Any) -> bool:
        try:
            events = nvml.nvmlEventSetCreate()
            try:
                cards = _register(nvml, events)
                while cards and not self._closed.is_set() and not self._pauses:
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

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writable, b"!")


def _register(nvml: Any, events: Any) -> dict[int | None, str]:
    """Handle -> bus id of the cards that report Xids; one that cannot is left out, the others still
    report."""
    cards: dict[int | None, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = normal_bus_id(text(nvml.nvmlDeviceGetPciInfo(handle).busId) or "")
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

"""Events of a machine and their sources: uevents of devices, changes of network links, and Xids of NVML.

An event only says that the machine may have changed: the watcher then reads it, and the reading counts.

The kernel's are plain netlink sockets. A uevent is ``action@/devices/...`` and then ``KEY=value`` strings,
all ended by NUL (lib/kobject_uevent.c); the kernel sends it to multicast group 1, udev repeats it on group 2.
Only messages of the kernel (port id 0) count. A virtual machine host announces thousands of network pairs and
block devices; irrelevant events are dropped here, at a few microseconds each. Messages that come too fast are
lost (ENOBUFS). That is an event too: anything may have changed.

Xids come from the NVML event set, in a thread of its own, since NVML blocks while it waits. An open NVML
keeps the list of GPUs it saw first, and keeps the kernel module from being reloaded. So the session is closed
for every reading of the machine (``paused``) and opened again after it; an Xid in that second is missed, but
the reading finds its traces (a lost card, the driver's recovery action).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from koordra.kubelet_plugin.discovery.nvml_query import bus_id_of
from koordra.kubelet_plugin.nvidia_driver.nvml_session import BY_NAME, NvmlLibrary, NvmlUnavailable
from koordra.logs import get_logger
from koordra.process import spawn

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HardwareChanged:
    """Devices, drivers or functions came or went: read the machine again."""

    what: str


@dataclass(frozen=True, slots=True)
class DriverLoaded:
    """NVIDIA's driver was loaded, and has forgotten the errors of its cards."""


@dataclass(frozen=True, slots=True)
class PortsMayHaveChanged:
    """A network link changed somewhere: probe the ports, which is cheap."""


@dataclass(frozen=True, slots=True)
class XidReported:
    """The driver reported an error of a GPU; ``number`` is NVIDIA's, 79 is "fallen off the bus".
    ``from_log``: in the kernel's log rather than to NVML."""

    bus_id: str
    number: int
    from_log: bool = False


Event = HardwareChanged | DriverLoaded | PortsMayHaveChanged | XidReported


class EventSource(Protocol):
    """A source of events that select can wait for."""

    def fileno(self) -> int:
        """Readable when there are events."""
        ...

    def take(self) -> Sequence[Event]:
        """The events since the last call; never waits, never raises."""
        ...

    def close(self) -> None: ...


_NETLINK_ROUTE, _NETLINK_KOBJECT_UEVENT = 0, 15
_KERNEL_GROUP, _LINK_GROUP = 1, 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port id
_LARGEST = 64 * 1024
_BUFFER = 1 << 20
_AT_ONCE = 1024

_ACTIONS = frozenset(b"add remove bind unbind move change online offline".split())
_SUBSYSTEMS = {b"pci", b"infiniband", b"infiniband_verbs", b"infiniband_mad", b"auxiliary", b"nvidia"}
"""Devices that discovery reads. Network interfaces count only where they sit on a PCI function."""


class _NetlinkSource:
    """A netlink socket of one protocol and group; ``read`` turns a message into an event or nothing."""

    def __init__(self, family: int, group: int, read: Callable[[bytes], Event | None], lost: Event) -> None:
        self._read, self._lost = read, lost
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        try:
            with contextlib.suppress(OSError):
                # Beyond the system's limit where that is allowed; a smaller buffer only loses sooner.
                self._socket.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), _BUFFER)
            self._socket.setblocking(False)
            self._socket.bind((0, group))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> Sequence[Event]:
        found: list[Event] = []
        for _ in range(_AT_ONCE):
            try:
                message, (port, _) = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    # Closed, it is not selected any more; probes continue.
                    log.warning("event_source_failed", source=type(self).__name__, error=str(error))
                    self._socket.close()
                    break
                found.append(self._lost)
                continue
            event = self._read(message) if port == 0 else None
            if event is not None and event not in found:
                found.append(event)
        return found

    def close(self) -> None:
        self._socket.close()


class Uevents(_NetlinkSource):
    """Devices that come, go, are renamed, or get another driver. Raises OSError where the kernel gives no
    socket."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_KOBJECT_UEVENT, _KERNEL_GROUP, uevent, HardwareChanged("events were lost"))


class LinkChanges(_NetlinkSource):
    """Network links that go up or down in this network namespace. Raises OSError as Uevents does."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_ROUTE, _LINK_GROUP, link_change, PortsMayHaveChanged())


def uevent(message: bytes) -> Event | None:
    """The event in one kernel message; None for what is of no interest, and for what is no uevent."""
    head, *pairs = message.split(b"\0")
    action, at, path = head.partition(b"@")
    if not at or action not in _ACTIONS:
        return None
    subsystem = next((pair[10:] for pair in pairs if pair.startswith(b"SUBSYSTEM=")), b"")
    if subsystem not in _SUBSYSTEMS and not (subsystem == b"net" and b"/pci" in path):
        return None
    return HardwareChanged(f"{subsystem.decode('ascii', 'replace')} {action.decode('ascii')}")


def link_change(message: bytes) -> Event | None:
    """Whether a routing message says that a link changed."""
    if len(message) < _HEADER.size:
        return None
    return PortsMayHaveChanged() if _HEADER.unpack_from(message)[1] in {_RTM_NEWLINK, _RTM_DELLINK} else None


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
        self._session = threading.Lock()
        """Held while NVML is open."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = spawn(self._run, name="xid-events")

    def fileno(self) -> int:
        return self._ready

    def take(self) -> Sequence[Event]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        self._closed.set()
        self._resumed.set()
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
            if closed:
                self._session.release()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._resumed.wait()
            if self._library.is_let_go:
                if self._library.wait_until_taken_up(within=self._wait_ms / 1000):
                    self._emit(HardwareChanged("NVML may be used again"))
                continue
            with self._session:
                healthy = self._closed.is_set() or self._listen()
            if not healthy:
                self._closed.wait(self._try_again)

    def _listen(self) -> bool:
        """Wait for events until a pause or `close`; False if the library failed before."""
        try:
            with self._library.session() as nvml:
                return self._wait(nvml)
        except NvmlUnavailable as error:
            log.debug("xid_events_unavailable", error=str(error))
            return False

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

"""The kernel's own events, by plain netlink sockets.

A uevent is ``action@/devices/...`` and then ``KEY=value`` strings, all ended by NUL (lib/kobject_uevent.c);
the kernel sends it to multicast group 1, udev repeats it on group 2. Only messages of the kernel (port id 0)
count. A virtual machine host announces thousands of network pairs and block devices; irrelevant events are
dropped here, at a few microseconds each. Messages that come too fast are lost (ENOBUFS). That is an event
too: anything may have changed.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Sequence

from koordra.kubelet_plugin.discovery.events import Event, HardwareChanged, PortsMayHaveChanged
from koordra.logs import get_logger

log = get_logger(__name__)

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

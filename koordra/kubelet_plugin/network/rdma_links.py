"""RDMA links over NETLINK_RDMA: whether they belong to network namespaces, and moving one.

The kernel has two modes (`rdma system`): **shared**, the default, in which every namespace sees all RDMA
devices and the device node alone decides; and **exclusive**, in which a device is in one namespace and has to
be moved after its network interface, and back before it. pyroute2 does not implement the protocol
(include/uapi/rdma/rdma_netlink.h), of which little is needed:

    nlmsghdr, type (5 << 10) | command     then attributes, each: length u16, type u16, value, padded to 4

A kernel without RDMA has no such socket: nothing to move, which is `exclusive() == False`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from sys import byteorder
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.network.netlink_links import inside, opened_namespace

_NETLINK_RDMA: Final = 20
_NLDEV: Final = 5
_GET, _SET, _SYS_GET = 1, 2, 6
_DEV_INDEX, _DEV_NAME, _NETNS_MODE, _NETNS_FD = 1, 2, 66, 68
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")

Attributes = dict[int, bytes]
Exchange = Callable[[bytes], list[bytes]]
"""One request to the kernel -> the messages of its answer."""


def kernel_exchange(request: bytes) -> list[bytes]:
    """Ask the kernel, in the calling thread's network namespace. Raises OSError."""
    with contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA)) as link:
        link.settimeout(5)
        link.bind((0, 0))
        link.send(request)
        answers: list[bytes] = []
        dump = bool(_HEADER.unpack_from(request)[2] & _DUMP == _DUMP)
        while True:
            for kind, payload in _messages(link.recv(1 << 16)):
                if kind == _ERROR:
                    code = struct.unpack_from("=i", payload)[0]
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return answers
                if kind == _DONE:
                    return answers
                answers.append(payload)
            if answers and not dump:
                return answers


class NetlinkRdma:
    """RDMA devices by name. `enter` runs a task inside a pod's namespace."""

    def __init__(
        self,
        exchange: Exchange = kernel_exchange,
        *,
        enter: Callable[[str, Callable[[], None]], None] = inside,
    ) -> None:
        self._exchange = exchange
        self._enter = enter

    def exclusive(self) -> bool:
        """Whether a device belongs to one namespace. Raises NodeError."""
        try:
            answers = self._exchange(_message(_SYS_GET, b"", flags=_REQUEST))
        except OSError:
            return False
        return any(attributes(answer).get(_NETNS_MODE, b"\x01")[0] == 0 for answer in answers)

    def move_into(self, ib_device: str, *, netns: str) -> None:
        """From the host into the pod; its network interface has to be there already."""
        with opened_namespace(netns) as descriptor:
            self._set_namespace(ib_device, descriptor)

    def move_back(self, ib_device: str, *, netns: str) -> None:
        """From the pod to the host, before its network interface. The socket is opened inside the pod: only
        there the device can be named."""
        with opened_namespace("/proc/self/ns/net") as home:
            self._enter(netns, lambda: self._set_namespace(ib_device, home))

    def present(self, ib_device: str) -> bool:
        return self._index(ib_device) is not None

    def _set_namespace(self, ib_device: str, descriptor: int) -> None:
        index = self._index(ib_device)
        if index is None:
            raise NodeError(f"there is no RDMA device {ib_device} here")
        body = attribute(_DEV_INDEX, struct.pack("=I", index))
        body += attribute(_NETNS_FD, struct.pack("=I", descriptor))
        try:
            self._exchange(_message(_SET, body, flags=_REQUEST | _ACK))
        except OSError as error:
            raise NodeError(f"RDMA device {ib_device} cannot be moved: {error.strerror}") from error

    def _index(self, ib_device: str) -> int | None:
        try:
            answers = self._exchange(_message(_GET, b"", flags=_REQUEST | _DUMP))
        except OSError as error:
            raise NodeError(f"RDMA devices cannot be listed: {error.strerror}") from error
        for found in map(attributes, answers):
            if found.get(_DEV_NAME, b"").rstrip(b"\0").decode() == ib_device:
                return int.from_bytes(found[_DEV_INDEX], byteorder)
        return None


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def attributes(payload: bytes) -> Attributes:
    found: Attributes = {}
    at = 0
    while at + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = payload[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _message(command: int, body: bytes, *, flags: int) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), (_NLDEV << 10) | command, flags, 1, 0) + body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3

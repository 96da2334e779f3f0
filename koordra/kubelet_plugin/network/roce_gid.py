"""A RoCE NIC's routable address in the pod, looked for before the pod's first container starts.

The addresses (GIDs) of a RoCE port follow from those of network interfaces: the kernel adds an entry to the
port's table for each address of each interface on the NIC, within milliseconds and by itself

    /sys/class/infiniband/<device>/ports/<port>/gids/<n>               ::ffff:10.10.0.5, written out
    /sys/class/infiniband/<device>/ports/<port>/gid_attrs/types/<n>    "IB/RoCE v1" or "RoCE v2"

The address may be one that a router gives (SLAAC), a second or two after the interface is up, which is longer
than a runtime waits: so the interface stays in the pod meanwhile, and each container that is tried looks
again. One that is link-local alone is none.

Two pods may have interfaces of one name on one NIC, so an entry is recognised by the address, which is one
pod's. Without an entry of type RoCE v2 that is no link-local one a program connects and fails at its first
queue pair ("Failed to modify QP to RTR"), or falls back to TCP without a word.

Where RDMA devices belong to network namespaces, the table is in the sysfs of the pod's. A process sees that
of the namespace in which it mounted sysfs, so it is mounted anew, in a thread with a mount namespace of its
own.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeVar

from koordra.errors import NodeError
from koordra.kubelet_plugin.network.netlink_links import inside

ROCE_V2: Final = "RoCE v2"
ATTEMPTS: Final = 40
PAUSE: Final = 0.02
"""Seconds; all attempts together are below the runtime's patience with its plugins, 2 s."""

_CLONE_NEWNS: Final = 0x00020000
_MS_RDONLY, _MS_REC, _MS_PRIVATE = 0x1, 0x4000, 0x40000
_T = TypeVar("_T")


def routable_gids(addresses: Collection[str]) -> frozenset[str]:
    """The GIDs of the addresses (with or without prefix length), as sysfs writes them."""
    found = set()
    for text in addresses:
        address = ipaddress.ip_interface(text).ip
        if address.is_link_local or address.is_loopback:
            continue
        whole = address if address.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}")
        found.add(whole.exploded)
    return frozenset(found)


def has_gid(sys: Path, ib_device: str, port: int, *, wanted: Collection[str]) -> bool | None:
    """Whether the port has one of the GIDs as a RoCE v2 address; None where the device is not to be seen."""
    folder = sys / "class/infiniband" / ib_device / f"ports/{port}"
    try:
        entries = [entry for entry in os.listdir(folder / "gids") if entry.isdecimal()]  # noqa: PTH208
    except OSError:
        return None
    return any(
        _line(folder / "gids" / entry).lower() in wanted
        and _line(folder / "gid_attrs/types" / entry) == ROCE_V2
        for entry in entries
    )


def _line(path: Path) -> str:
    """Empty for an entry that holds nothing, which the kernel answers with EINVAL."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def require_gid(
    look: Callable[[Collection[str]], bool | None],
    *,
    device: str,
    interface: str,
    addresses: Callable[[], Collection[str]],
    sleep: Callable[[float], None] = time.sleep,
) -> Collection[str]:
    """Return the interface's addresses once the device has the GID of a routable one. Raises NodeError where
    it has none; `look` reads the table for the wanted ones, None where the device is not to be seen.
    `addresses` is asked each time: a router may give one (SLAAC)."""
    there: Collection[str] = ()
    for attempt in range(ATTEMPTS):
        there = addresses()
        wanted = routable_gids(there)
        found = look(wanted) if wanted else False
        if found:
            return there
        if found is None:
            raise NodeError(f"NoRoutableGID: {device} is not in /sys/class/infiniband; who has the NIC?")
        if attempt + 1 < ATTEMPTS:
            sleep(PAUSE)
    if not routable_gids(there):
        raise NodeError(
            f"NoRoutableGID: {device} would carry nothing: {interface or 'its interface'} has no routable address in the "
            "pod, from which RDMA over Ethernet takes its own; name a pool of addresses in the NIC's class "
            "(RdmaConfig.network.pool), or addresses there, or have a router of the network give one"
        )
    raise NodeError(
        f"NoRoutableGID: {device} has no RoCE v2 address (GID) for {', '.join(sorted(there))}, which "
        f"{interface or 'an interface'} has in the pod; is the interface on this NIC, and its driver in RoCE v2 mode?"
    )


def in_pods_sysfs(netns: str, task: Callable[[Path], _T]) -> _T:
    """Run the task with the sysfs of the pod's network namespace at /sys. Raises what the task raises, or
    NodeError."""

    def run() -> _T:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = (
            libc.unshare(_CLONE_NEWNS)
            or libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
            or libc.mount(b"sysfs", b"/sys", b"sysfs", ctypes.c_ulong(_MS_RDONLY), None)
        )
        if failed:
            raise OSError(ctypes.get_errno(), f"sysfs: {os.strerror(ctypes.get_errno())}")
        return task(Path("/sys"))

    return inside(netns, run)

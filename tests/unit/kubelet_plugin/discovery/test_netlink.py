"""What the kernel announces, as bytes, and what of it matters."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.discovery.events import HardwareChanged, PortsMayHaveChanged
from koordra.kubelet_plugin.discovery.events.netlink import LinkChanges, Uevents, link_change, uevent


def message(action: str, path: str, subsystem: str) -> bytes:
    pairs = (
        f"{action}@{path}",
        f"ACTION={action}",
        f"DEVPATH={path}",
        f"SUBSYSTEM={subsystem}",
        "SEQNUM=4711",
    )
    return b"".join(pair.encode() + b"\0" for pair in pairs)


PCI = "/devices/pci0000:07/0000:07:01.0/0000:0f:00.0"


@pytest.mark.parametrize(
    ("action", "path", "subsystem"),
    [
        ("add", PCI, "pci"),
        ("remove", PCI, "pci"),
        ("bind", PCI, "pci"),
        ("unbind", PCI, "pci"),
        ("add", f"{PCI}/infiniband/mlx5_0", "infiniband"),
        ("add", "/devices/virtual/infiniband_verbs/uverbs0", "infiniband_verbs"),
        ("move", f"{PCI}/net/eth0", "net"),
        ("add", f"{PCI}/mlx5_core.sf.2", "auxiliary"),
    ],
)
def test_devices_that_discovery_reads_matter(action: str, path: str, subsystem: str) -> None:
    assert uevent(message(action, path, subsystem)) == HardwareChanged(f"{subsystem} {action}")


@pytest.mark.parametrize(
    ("action", "path", "subsystem"),
    [
        ("add", "/devices/virtual/net/veth0", "net"),
        ("add", "/devices/virtual/block/dm-1", "block"),
        ("change", "/devices/virtual/thermal/thermal_zone0", "thermal"),
        ("frobnicate", PCI, "pci"),
    ],
)
def test_others_do_not(action: str, path: str, subsystem: str) -> None:
    assert uevent(message(action, path, subsystem)) is None


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert isinstance(uevent(data), HardwareChanged | None)
    assert isinstance(link_change(data), PortsMayHaveChanged | None)


def test_what_udev_repeats_is_not_the_kernels() -> None:
    assert uevent(b"libudev\0\xfe\xed\xca\xfe") is None


@pytest.mark.parametrize(("kind", "expected"), [(16, True), (17, True), (20, False), (24, False)])
def test_link_messages(kind: int, expected: bool) -> None:
    assert (link_change(struct.pack("=IHHII", 16, kind, 0, 1, 0)) is not None) is expected


@pytest.mark.parametrize("kind", [Uevents, LinkChanges])
def test_the_kernel_gives_the_socket_and_it_does_not_block(kind: Callable[[], Uevents]) -> None:
    try:
        source = kind()
    except OSError as error:
        pytest.skip(f"netlink is not to be had here: {error}")
    try:
        assert source.fileno() >= 0
        assert not os.get_blocking(source.fileno())
        source.take()
    finally:
        source.close()


def test_a_message_from_another_process_is_not_believed() -> None:
    """A process may send to our port, but not with the kernel's port id."""
    try:
        source = Uevents()
    except OSError as error:
        pytest.skip(f"netlink is not to be had here: {error}")
    sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
    try:
        source.take()
        port = source._socket.getsockname()[0]
        try:
            sender.sendto(message("add", PCI, "pci"), (port, 0))
        except OSError as error:
            pytest.skip(f"this process may not send uevents: {error}")
        assert source.take() == []
    finally:
        sender.close()
        source.close()

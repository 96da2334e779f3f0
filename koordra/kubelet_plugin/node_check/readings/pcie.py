"""PCIe of the GPUs and RDMA NICs of a node: links below their maximum, access control of the switches above
them, and their IOMMU groups.

Access Control Services (PCI Express base specification 7.7.11) are an extended capability of a switch's
downstream port. With P2P Request Redirect or Completion Redirect a transfer between two devices below one
switch goes up to the root complex and back, and mostly not at all. The configuration space beyond its first
64 bytes is readable for root only.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.topology.location import BUS_ID

_PCI: Final = "sys/bus/pci/devices"
_NVIDIA, _DISPLAY, _NETWORK = 0x10DE, 0x03, 0x02
_SPEED: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", re.ASCII)
_EXTENDED, _WHOLE = 0x100, 4096
_ACS: Final = 0x000D
_PCIE: Final = 0x10
_DOWNSTREAM: Final = 6
_REDIRECTS: Final = 0x04 | 0x08
"""P2P Request Redirect, P2P Completion Redirect."""


@dataclass(frozen=True, slots=True)
class Link:
    """Widths in lanes, speeds in GT/s; None where the kernel does not say."""

    bus_id: str
    is_gpu: bool
    width: int | None
    most_width: int | None
    speed: float | None
    most_speed: float | None


@dataclass(frozen=True, slots=True)
class Pcie:
    """`redirecting`: downstream ports of switches with two or more GPUs and NICs that redirect transfers
    between them; `unreadable`: those whose access control could not be read; `iommu`: the types of the
    devices' IOMMU groups, empty where there are none; `iommu_arguments`: of the kernel's command line."""

    links: tuple[Link, ...] = ()
    switch_ports: tuple[str, ...] = ()
    redirecting: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    iommu: tuple[str, ...] = ()
    iommu_arguments: tuple[str, ...] = ()


def read_pcie(root: HostFiles) -> Pcie:
    devices = {name: kind for name in root.names(_PCI) if (kind := _kind(root, name)) is not None}
    paths = {name: _above(root, name) for name in devices}
    below = Counter(bridge for path in paths.values() for bridge in path)
    configs = {bridge: root.data(f"{_PCI}/{bridge}/config", most=_WHOLE) or b"" for bridge in sorted(below)}
    ports = {
        bridge: config
        for bridge, config in configs.items()
        if _port_type(config) == _DOWNSTREAM and any(_shared(path, bridge, below) for path in paths.values())
    }
    controls = {bridge: _acs_control(config) for bridge, config in ports.items()}
    return Pcie(
        links=tuple(_link(root, name, is_gpu=is_gpu) for name, is_gpu in devices.items()),
        switch_ports=tuple(ports),
        redirecting=tuple(name for name, control in controls.items() if (control or 0) & _REDIRECTS),
        unreadable=tuple(name for name, control in controls.items() if control is None),
        iommu=tuple(sorted(filter(None, {_iommu(root, name) for name in devices}))),
        iommu_arguments=tuple(
            word for word in root.text("proc/cmdline").split() if "iommu" in word or "acs" in word
        ),
    )


def _kind(root: HostFiles, bus_id: str) -> bool | None:
    """True for an NVIDIA GPU, False for a physical RDMA NIC, None for anything else."""
    if not BUS_ID.fullmatch(bus_id):
        return None
    at = f"{_PCI}/{bus_id}"
    code = (root.integer(f"{at}/class") or 0) >> 16
    if code == _DISPLAY and root.integer(f"{at}/vendor") == _NVIDIA:
        return True
    if code == _NETWORK and root.names(f"{at}/infiniband") and not root.link(f"{at}/physfn"):
        return False
    return None


def _above(root: HostFiles, bus_id: str) -> list[str]:
    return [part for part in root.link(f"{_PCI}/{bus_id}")[:-1] if BUS_ID.fullmatch(part)]


def _shared(path: list[str], port: str, below: Counter[str]) -> bool:
    """Whether the device's switch, the bridge above that port, has further devices of ours below it."""
    at = path.index(port) if port in path else 0
    return at > 0 and below[path[at - 1]] > 1


def _link(root: HostFiles, bus_id: str, *, is_gpu: bool) -> Link:
    at = f"{_PCI}/{bus_id}"
    return Link(
        bus_id,
        is_gpu,
        width=root.integer(f"{at}/current_link_width"),
        most_width=root.integer(f"{at}/max_link_width"),
        speed=_speed(root.line(f"{at}/current_link_speed")),
        most_speed=_speed(root.line(f"{at}/max_link_speed")),
    )


def _speed(text: str) -> float | None:
    found = _SPEED.match(text)
    return float(found[1]) if found else None


def _iommu(root: HostFiles, bus_id: str) -> str:
    """The type of its group's domain: identity, DMA, DMA-FQ."""
    group = root.link(f"{_PCI}/{bus_id}/iommu_group")[-1:]
    return root.line(f"sys/kernel/iommu_groups/{group[0]}/type") if group and group[0].isdecimal() else ""


def _port_type(config: bytes) -> int | None:
    pointer, visited = (config[0x34] & 0xFC if len(config) > 0x40 else 0), 0
    while 0x40 <= pointer < len(config) - 3 and visited < 48:
        if config[pointer] == _PCIE:
            return config[pointer + 2] >> 4 & 0xF
        pointer, visited = config[pointer + 1] & 0xFC, visited + 1
    return None


def _acs_control(config: bytes) -> int | None:
    """The ACS control register; 0 for a port without the capability, None where it cannot be read."""
    if len(config) < _WHOLE:
        return None
    pointer, visited = _EXTENDED, 0
    while _EXTENDED <= pointer <= _WHOLE - 8 and visited < 960:
        header = int.from_bytes(config[pointer : pointer + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[pointer + 6 : pointer + 8], "little")
        pointer, visited = header >> 20 & 0xFFC, visited + 1
    return 0

"""The device nodes of a node's GPUs, and what the driver was told about them."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.topology.location import BUS_ID, DeviceNode

_PROC: Final = "proc/driver/nvidia"
_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]{1,4})$", re.ASCII | re.MULTILINE)
_MAJOR: Final = re.compile(r"^\s*([0-9]{1,7}) (\S+)$", re.ASCII | re.MULTILINE)
_PARAM: Final = re.compile(r"^(\w+): (-?[0-9]{1,10})$", re.ASCII | re.MULTILINE)
_NODE: Final = re.compile(r"nvidia(?:[0-9]{1,4}|ctl|-uvm|-uvm-tools|-modeset)", re.ASCII)
NVSWITCH_CLASS: Final = 0x0680
IMEX_DRIVER: Final = "nvidia-caps-imex-channels"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """`mode` are its permissions, with its `gid`."""

    node: DeviceNode
    mode: int
    gid: int


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """`minors`: PCI address -> minor number, of the driver's cards; `majors`: driver -> major number, of
    /proc/devices; `nodes` by their name in `folder`; `params` of /proc/driver/nvidia/params;
    `linked_numbers`: the `MAJOR:MINOR` of /dev/char."""

    minors: Mapping[str, int | None] = field(default_factory=dict)
    majors: Mapping[str, int] = field(default_factory=dict)
    folder: str = "/dev"
    nodes: Mapping[str, GpuNode] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    linked_numbers: frozenset[str] = frozenset()
    imex_channels: tuple[str, ...] = ()
    nvswitches: tuple[str, ...] = ()


def read_gpu_devices(root: HostFiles, dev: str) -> GpuDevices:
    """`dev`: the folder of the driver's device nodes, in the host's names."""
    folder = dev.strip("/")
    return GpuDevices(
        minors={name: _minor(root, name) for name in filter(BUS_ID.fullmatch, root.names(f"{_PROC}/gpus"))},
        majors={name: int(number) for number, name in _MAJOR.findall(_character_part(root))},
        folder=f"/{folder}",
        nodes={
            name: node
            for name in filter(_NODE.fullmatch, root.names(folder))
            if (node := _node(root, f"{folder}/{name}"))
        },
        params={name: int(value) for name, value in _PARAM.findall(root.text(f"{_PROC}/params"))},
        linked_numbers=frozenset(root.names("dev/char")),
        imex_channels=tuple(root.names("dev/nvidia-caps-imex-channels")),
        nvswitches=tuple(
            name
            for name in filter(BUS_ID.fullmatch, root.names("sys/bus/pci/devices"))
            if (root.integer(f"sys/bus/pci/devices/{name}/class") or 0) >> 8 == NVSWITCH_CLASS
            and root.integer(f"sys/bus/pci/devices/{name}/vendor") == 0x10DE
        ),
    )


def _minor(root: HostFiles, bus_id: str) -> int | None:
    found = _MINOR.search(root.text(f"{_PROC}/gpus/{bus_id}/information"))
    return int(found[1]) if found else None


def _character_part(root: HostFiles) -> str:
    """The same major number may be a block device's, too."""
    return root.text("proc/devices").partition("Block devices:")[0]


def _node(root: HostFiles, path: str) -> GpuNode | None:
    node, status = root.device_node(f"/{path}"), root.status(path)
    return GpuNode(node, stat.S_IMODE(status.st_mode), status.st_gid) if node and status else None

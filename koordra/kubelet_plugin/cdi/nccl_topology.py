"""The NCCL topology file of a claim's devices. Pure.

NCCL detects the topology from sysfs; where sysfs is incomplete (virtual machines that hide switches and NUMA
nodes) it needs `NCCL_TOPO_FILE`. koordra knows the topology, from sysfs or from the operator's overlay, so
every container with more than one GPU, or a GPU and a NIC, gets a file of exactly its devices:

    <system version="1"> <cpu numaid=..> <pci busid=switch class=0x060400> <pci busid=device class=..> ...

NCCL completes what the file leaves out (link speeds, CPU models) and trusts what it contains. NVLinks are
left to NCCL, which queries NVML. The format is that of NCCL's own dump (NCCL_TOPO_DUMP_FILE) and of cloud
providers' files.
"""

from __future__ import annotations

import platform
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Final

from koordra.topology.machine import Device as MachineDevice
from koordra.topology.machine import Gpu, Machine, NumaNode, bus_order

IN_CONTAINER: Final = "/run/koordra.io/nccl"
VARIABLE: Final = "NCCL_TOPO_FILE"

_SWITCH: Final = "0x060400"
_GPU: Final = "0x030200"
_ETHERNET: Final = "0x020000"
_INFINIBAND: Final = "0x020700"


def topology_file(devices: Sequence[MachineDevice], machine: Machine) -> bytes | None:
    """The file for these devices; None for a single device, or if the place of one is unknown."""
    if len(devices) < 2 or not any(isinstance(device, Gpu) for device in devices):
        return None
    if any(device.location.numa is None for device in devices) and len(machine.numa_nodes) > 1:
        return None
    system = ET.Element("system", version="1")
    cpus: dict[int, ET.Element] = {}
    for device in sorted(devices, key=lambda device: bus_order(device.location.bus_id)):
        numa = device.location.numa or 0
        if numa not in cpus:
            cpus[numa] = ET.SubElement(system, "cpu", _cpu(numa, machine.numa(numa)))
        at = cpus[numa]
        for switch in device.location.switches:
            at = _child(at, switch, _SWITCH)
        _child(at, device.location.bus_id, _class(device))
    ET.indent(system)
    return ET.tostring(system) + b"\n"


def _cpu(numa: int, node: NumaNode | None) -> dict[str, str]:
    found = {"numaid": str(numa)}
    if node is not None and node.cpus:
        found["affinity"] = cpu_mask(node.cpus)
    arch = platform.machine()
    return {**found, "arch": {"aarch64": "arm64"}.get(arch, arch)}


def _child(parent: ET.Element, bus_id: str, kind: str) -> ET.Element:
    bus_id = bus_id.lower()
    for child in parent:
        if child.get("busid") == bus_id:
            return child
    return ET.SubElement(parent, "pci", {"busid": bus_id, "class": kind})


def _class(device: MachineDevice) -> str:
    if isinstance(device, Gpu):
        return _GPU
    return _INFINIBAND if device.port and device.port.link_layer == "InfiniBand" else _ETHERNET


def cpu_mask(cpus: str) -> str:
    """The kernel's list form (`0-3,8`) as its mask form: words of eight hex digits, highest first."""
    mask = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            mask |= 1 << cpu
    words: list[str] = []
    while mask or not words:
        words.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(words))

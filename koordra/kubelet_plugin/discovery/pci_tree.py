"""The PCI tree, NUMA nodes and sockets, from sysfs.

The tree is encoded in the links: ``/sys/bus/pci/devices/0000:0f:00.0`` points to
``../../../devices/pci0000:07/0000:07:01.0/0000:08:00.0/.../0000:0f:00.0``, host bridge first, then every
bridge, then the device. Only the text of the link is used, so a link that loops or dangles does no harm.

A PCIe switch is an upstream port with downstream ports below it. A bridge's kind is in the PCIe capability of
its configuration space (device/port type: 4 root port, 5 upstream, 6 downstream), of which only the first 64
bytes are readable without privileges. A bridge with a complete capability list that lacks this one is a
conventional one, of an emulator. If the capabilities cannot be read, the kind is inferred from the place:
below a host bridge is a root port, below that an upstream port, then downstream and upstream alternate, since
every link has two ends. Such a switch is marked as inferred.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.topology.cpu_lists import cpu_numbers
from koordra.topology.location import BUS_ID, ROOT_ID, Location, bus_order
from koordra.topology.machine import Bridge, BridgeKind, NumaNode

PCI_DEVICES = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_CPULIST = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*", re.ASCII)
_NODE_NAME = re.compile(r"node([0-9]{1,5})", re.ASCII)
_NOT_SET = -1

_PCIE_CAPABILITY = 0x10
_HAS_CAPABILITIES = 0x10  # of the status register
_PORT_TYPES = {4: BridgeKind.ROOT_PORT, 5: BridgeKind.UPSTREAM, 6: BridgeKind.DOWNSTREAM}


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function. ``directory`` is its place below the root; vendor and device are four hexadecimal
    digits; what sysfs lacks is None."""

    bus_id: str
    path: tuple[str, ...]
    directory: str
    class_code: int | None
    vendor: str | None
    device: str | None

    def is_a(self, *classes: int) -> bool:
        """Whether it is of one of these base classes (0x02: network controllers) or classes (0x0302: 3D
        controllers)."""
        code = self.class_code
        return code is not None and any(code >> (16 if kind <= 0xFF else 8) == kind for kind in classes)


class PciTree(MachineRoot):
    """A machine with its PCI functions by bus id, in bus order, as far as their places are certain, and its
    NUMA nodes. ``bridges`` are those above the functions that have been located."""

    def __init__(self, directory: Path, dev: Sequence[Path] = ()) -> None:
        super().__init__(directory, dev)
        found = filter(None, map(self._function, filter(BUS_ID.fullmatch, self.names(PCI_DEVICES))))
        self.functions = {one.bus_id: one for one in sorted(found, key=lambda one: bus_order(one.bus_id))}
        self.numa_nodes = _numa_nodes(self)
        self.bridges: dict[str, Bridge] = {}

    def _function(self, bus_id: str) -> PciFunction | None:
        steps = _steps(self.link(f"{PCI_DEVICES}/{bus_id}"), bus_id)
        if steps is None:
            self.problem(
                f"PCI device {bus_id}",
                "path",
                f"/{PCI_DEVICES}/{bus_id} does not link to a place below /sys/devices",
                "check that sysfs is mounted completely; the device is left out",
            )
            return None
        prefix, path = steps
        directory = "/".join(("sys/devices", *prefix, *path))
        vendor, device = (self.integer(f"{directory}/{name}") for name in ("vendor", "device"))
        return PciFunction(
            bus_id,
            path,
            directory,
            class_code=self.integer(f"{directory}/class"),
            vendor=None if vendor is None else f"{vendor:04x}",
            device=None if device is None else f"{device:04x}",
        )

    def location(self, function: PciFunction) -> Location:
        """Where the function sits.

        numa_node is -1 if the firmware does not set it; on a machine with a single NUMA node that node is
        inferred. A number that is no known node's counts as unknown, since the list of nodes may be
        incomplete.
        """
        number, inferred = self.integer(f"{function.directory}/numa_node"), set()
        if number == _NOT_SET and len(self.numa_nodes) == 1:
            number = self.numa_nodes[0].id
            inferred.add("numaNode")
        numa = next((node for node in self.numa_nodes if node.id == number), None)
        if numa is None:
            self.problem(
                f"PCI device {function.bus_id}",
                "numaNode",
                f"its NUMA node is not known, of the {len(self.numa_nodes)} that the machine shows",
                "enable NUMA (ACPI SRAT) in the firmware or the VM; the device counts as near to none",
            )
        above = self._above(function)
        if len(above) > 1 and any(bridge.inferred for bridge in above):
            inferred.add("pcieSwitch")
        return Location(
            function.bus_id,
            function.path,
            switches=tuple(bridge.bus_id for bridge in above if bridge.kind is BridgeKind.UPSTREAM),
            numa=numa.id if numa else None,
            socket=numa.socket if numa else None,
            inferred=frozenset(inferred),
        )

    def _above(self, function: PciFunction) -> list[Bridge]:
        """The bridges above a function, topmost first."""
        prefix, found = function.directory.removesuffix("/".join(function.path)), []
        for index, bus_id in enumerate(function.path[:-1]):
            if bus_id not in self.bridges and BUS_ID.fullmatch(bus_id):
                path = function.path[: index + 1]
                kind = _kind_by_capability(self.data(f"{prefix}{'/'.join(path)}/config"))
                self.bridges[bus_id] = Bridge(
                    bus_id, path, kind or _kind_by_place(path), inferred=kind is None
                )
            if bus_id in self.bridges:
                found.append(self.bridges[bus_id])
        return found


def _steps(link: list[str], bus_id: str) -> tuple[list[str], tuple[str, ...]] | None:
    """The path from /sys/devices to the host bridge (empty except in some VMs), and from there to the
    device."""
    parts = link[link.index("devices") + 1 :] if "devices" in link else []
    start = next((index for index, part in enumerate(parts) if ROOT_ID.fullmatch(part)), None)
    if start is None or parts[-1] != bus_id or {"", ".", ".."} & set(parts):
        return None
    path = tuple(parts[start:])
    known = all(BUS_ID.fullmatch(part) or ROOT_ID.fullmatch(part) for part in path)
    return (parts[:start], path) if known and len(set(path)) == len(path) else None


def _kind_by_capability(config: bytes | None) -> BridgeKind | None:
    """Device/port type from the PCIe capability; None where it cannot be read (PCI Express base spec
    7.5.3.2)."""
    if config is None or len(config) <= 0x40 or config[:2] == b"\xff\xff":
        return None
    if not config[0x06] & _HAS_CAPABILITIES:
        return BridgeKind.OTHER
    pointer, visited = config[0x34] & 0xFC, 0
    while 0x40 <= pointer < len(config) - 3 and visited < 48:
        if config[pointer] == _PCIE_CAPABILITY:
            return _PORT_TYPES.get((config[pointer + 2] >> 4) & 0xF, BridgeKind.OTHER)
        pointer, visited = config[pointer + 1] & 0xFC, visited + 1
    return BridgeKind.OTHER if pointer == 0 else None


def _kind_by_place(path: tuple[str, ...]) -> BridgeKind:
    host_bridge = max((index for index, part in enumerate(path[:-1]) if ROOT_ID.fullmatch(part)), default=-1)
    below_host_bridge = len(path) - 2 - host_bridge
    if below_host_bridge == 0:
        return BridgeKind.ROOT_PORT
    return BridgeKind.UPSTREAM if below_host_bridge % 2 else BridgeKind.DOWNSTREAM


def _numa_nodes(root: MachineRoot) -> tuple[NumaNode, ...]:
    """NUMA nodes with their CPUs, SLIT row and socket, by number."""
    nodes = []
    for name in root.names(_NODES):
        matched = _NODE_NAME.fullmatch(name)
        if not matched:
            continue
        report, remedy = (
            partial(root.problem, f"NUMA {name}"),
            f"check /{_NODES}/{name}; the value is not used",
        )
        cpus = root.line(f"{_NODES}/{name}/cpulist")
        if cpus and not _CPULIST.fullmatch(cpus):
            report("cpulist", f"{cpus!r} is no CPU list", remedy)
            cpus = ""
        sockets = {
            root.integer(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in cpu_numbers(cpus)
        }
        if len(sockets) > 1:
            report("socket", "its CPUs do not name one physical package", remedy)
        socket = sockets.pop() if len(sockets) == 1 else None
        distances = root.line(f"{_NODES}/{name}/distance").split()
        nodes.append(
            NumaNode(
                id=int(matched[1]),
                cpus=cpus,
                distances=tuple(map(int, distances)) if all(map(str.isdecimal, distances)) else (),
                socket=socket if socket is not None and socket >= 0 else None,
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.id))

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.topology.machine import BUS_ID, ROOT_ID, Bridge, BridgeKind, Location, NumaNode, bus_order

PCI_DEVICES = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_CPULIST = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*", re.ASCII)
_NODE_NAME = re.compile(r"node([0-9]{1,5})", re.ASCII)
_MOST_CPUS = 1 << 16
_NOT_TOLD = -1

_PCIE_CAPABILITY = 0x10
_HAS_CAPABILITIES = 0x10  # of the status register
_PORT_TYPES = {4: BridgeKind.ROOT_PORT, 5: BridgeKind.UPSTREAM, 6: BridgeKind.DOWNSTREAM}


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function. ``directory`` is its place below the root; numbers are None if sysfs lacks them."""

    bus_id: str
    path: tuple[str, ...]
    directory: str
    class_code: int | None
    vendor: int | None
    device: int | None

    def is_a(self, *classes: int) -> bool:
        """Whether it is of one of these base classes (0x02: network controllers) or classes (0x0302: 3D controllers)."""
        code = self.class_code
        return code is not None and any(code >> (16 if kind <= 0xFF else 8) == kind for kind in classes)


def pci_functions(root: MachineRoot) -> list[PciFunction]:
    """Every PCI function whose place in the tree is certain, in bus order."""
    functions = []
    for bus_id in filter(BUS_ID.fullmatch, root.names(PCI_DEVICES)):
        steps = _steps(root.link(f"{PCI_DEVICES}/{bus_id}"), bus_id)
        if steps is None:
            root.problem(
                f"PCI device {bus_id}",
                "path",
                f"/{PCI_DEVICES}/{bus_id} does not link to a place below /sys/devices",
                "check that sysfs is mounted completely; the device is left out",
            )
            continue
        prefix, path = steps
        directory = "/".join(("sys/devices", *prefix, *path))
        functions.append(
            PciFunction(
                bus_id=bus_id,
                path=path,
                directory=directory,
                class_code=root.integer(f"{directory}/class"),
                vendor=root.integer(f"{directory}/vendor"),
                device=root.integer(f"{directory}/device"),
            )
        )
    return sorted(functions, key=lambda function: bus_order(function.bus_id))


def _steps(link: str | None, bus_id: str) -> tuple[list[str], tuple[str, ...]] | None:
    """The path from /sys/devices to the host bridge (empty except in some VMs), and from there to the
    device."""
    parts = (link or "").partition("devices/")[2].split("/")
    start = next((index for index, part in enumerate(parts) if ROOT_ID.fullmatch(part)), None)
    if start is None or parts[-1] != bus_id or {"", ".", ".."} & set(parts):
        return None
    path = tuple(parts[start:])
    known = all(BUS_ID.fullmatch(part) or ROOT_ID.fullmatch(part) for part in path)
    return (parts[:start], path) if known and len(set(path)) == len(path) else None


def bridges(root: MachineRoot, functions: Iterable[PciFunction]) -> dict[str, Bridge]:
    """The bridges that lie above any of these functions, by bus id."""
    found: dict[str, Bridge] = {}
    for function in functions:
        prefix = function.directory.removesuffix("/".join(function.path))
        for index, bus_id in enumerate(function.path[:-1]):
            if bus_id in found or not BUS_ID.fullmatch(bus_id):
                continue
            path = function.path[: index + 1]
            kind = _kind_by_capability(root.data(f"{prefix}{'/'.join(path)}/config"))
            found[bus_id] = Bridge(
                bus_id=bus_id, path=path, kind=kind or _kind_by_place(path), inferred=kind is None
            )
    return dict(sorted(found.items(), key=lambda item: bus_order(item[0])))


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


def locate(
    root: MachineRoot,
    function: PciFunction,
    *,
    bridges: Mapping[str, Bridge],
    numa_nodes: tuple[NumaNode, ...],
) -> tuple[Location, frozenset[str]]:
    """The location of a function, and the fields of it that were inferred rather than read.

    numa_node is -1 if the firmware does not set it; on a machine with a single NUMA node that node is
    inferred. A number that is no known node's counts as unknown, since the list of nodes may be incomplete.
    """
    number, inferred = root.integer(f"{function.directory}/numa_node"), set()
    if number == _NOT_TOLD and len(numa_nodes) == 1:
        number = numa_nodes[0].id
        inferred.add("numaNode")
    numa = next((node for node in numa_nodes if node.id == number), None)
    above = [bridges[part] for part in function.path[:-1] if part in bridges]
    switches = tuple(bridge.bus_id for bridge in above if bridge.kind is BridgeKind.UPSTREAM)
    if len(above) > 1 and any(bridge.inferred for bridge in above):
        inferred.add("pcieSwitch")
    location = Location(
        bus_id=function.bus_id,
        path=function.path,
        switches=switches,
        numa=numa.id if numa else None,
        socket=numa.socket if numa else None,
    )
    return location, frozenset(inferred)


def numa_nodes(root: MachineRoot) -> tuple[NumaNode, ...]:
    """NUMA nodes with their CPUs, SLIT row and socket, by number."""
    nodes = []
    for name in root.names(_NODES):
        matched = _NODE_NAME.fullmatch(name)
        if not matched:
            continue
        cpus = root.line(f"{_NODES}/{name}/cpulist") or ""
        if cpus and not _CPULIST.fullmatch(cpus):
            _numa_problem(root, name, "cpulist", f"{cpus!r} is no CPU list")
            cpus = ""
        sockets = {
            root.integer(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in cpu_numbers(cpus)
        }
        if len(sockets) > 1:
            _numa_problem(root, name, "socket", "its CPUs do not name one physical package")
        socket = sockets.pop() if len(sockets) == 1 else None
        distances = (root.line(f"{_NODES}/{name}/distance") or "").split()
        nodes.append(
            NumaNode(
                id=int(matched[1]),
                cpus=cpus,
                distances=tuple(map(int, distances)) if all(map(str.isdecimal, distances)) else (),
                socket=socket if socket is not None and socket >= 0 else None,
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.id))


def cpu_numbers(cpus: str) -> list[int]:
    """``"0-2,8"`` -> [0, 1, 2, 8]; nothing for a range that is backwards or absurdly long."""
    numbers: list[int] = []
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= _MOST_CPUS:
            return []
        numbers.extend(range(low, high + 1))
    return numbers


def _numa_problem(root: MachineRoot, node: str, field: str, problem: str) -> None:
    root.problem(f"NUMA {node}", field, problem, f"check /{_NODES}/{node}; the value is not used")

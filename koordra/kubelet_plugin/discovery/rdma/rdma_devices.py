"""RDMA devices of any vendor, from /sys/class/infiniband and its neighbours.

A NIC is a PCI function with an InfiniBand device of its own (RoCE, InfiniBand, iWARP and EFA alike). Software
devices (rxe, siw), which sit on no PCI function, are ignored; sub-functions, which sit on an auxiliary device
of one, are in ``subfunctions``. A virtual function is recognised by its ``physfn`` link; its number is that
of the ``virtfnN`` link by which the physical function points back.

The verbs node of ``mlx5_0`` is the ``uverbsN`` whose ``ibdev`` says ``mlx5_0``; N is a matter of probing
order and is never derived from the name. The node under /dev must carry the numbers that sysfs gives for it:
a stale node under the right name would give a tenant another tenant's device.

A NIC is identified by its node GUID. Drivers without one (EFA) leave it zero; then the interface identifier
of the port's first GID, which derives from the card's MAC address, is used. For a virtual function zero means
that it is not set up yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from koordra.kubelet_plugin.discovery.rdma.interfaces import netdev
from koordra.kubelet_plugin.discovery.result import Problem
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot, device_node, kernel_numbers
from koordra.kubelet_plugin.discovery.sysfs.pci_tree import PciFunction
from koordra.topology.machine import BUS_ID, DeviceNode, Location, Nic, RdmaPort

_CLASS = "sys/class/infiniband"
_VERBS = "sys/class/infiniband_verbs"
_MAD = "sys/class/infiniband_mad"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_GUID = re.compile(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", re.ASCII)
_RATE = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)? Gb/sec(?: .*)?", re.ASCII)
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}", re.ASCII)
_NO_GUID = "0000:0000:0000:0000"
_NETWORK_CONTROLLER = 0x02
_VIRTFN = re.compile(r"virtfn[0-9]{1,5}", re.ASCII)
_VERBS_NODE = re.compile(r"uverbs[0-9]{1,6}", re.ASCII)
_MAD_NODE = re.compile(r"(?:umad|issm)[0-9]{1,6}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CharacterDevices:
    """Which class devices belong to which InfiniBand device: name -> sysfs directories."""

    verbs: Mapping[str, tuple[str, ...]]
    management: Mapping[str, tuple[str, ...]]


def verbs_and_mad(root: MachineRoot) -> CharacterDevices:
    """Which verbs and MAD devices there are, by InfiniBand device."""
    return CharacterDevices(
        verbs=_by_ib_device(root, _VERBS, _VERBS_NODE), management=_by_ib_device(root, _MAD, _MAD_NODE)
    )


def rdma_names(root: MachineRoot) -> dict[str, str]:
    """InfiniBand device -> bus id of the PCI function it sits on directly."""
    found = {}
    for name in root.names(_CLASS):
        parts = (root.link(f"{_CLASS}/{name}") or "").split("/")
        on_function = len(parts) >= 3 and parts[-2:] == ["infiniband", name] and BUS_ID.fullmatch(parts[-3])
        if _NAME.fullmatch(name) and on_function:
            found[name] = parts[-3]
    return found


def rdma_nics(
    root: MachineRoot,
    *,
    functions: Mapping[str, PciFunction],
    locations: Mapping[str, tuple[Location, frozenset[str]]],
    nodes: CharacterDevices,
) -> tuple[list[Nic], list[Problem]]:
    """All NICs and virtual functions with their ports and nodes, in no particular order."""
    names = rdma_names(root)
    numbers = {
        function.bus_id: children
        for function in functions.values()
        if function.class_code is not None and function.class_code >> 16 == _NETWORK_CONTROLLER
        if (children := _virtual_functions(root, function.directory))
    }
    problems = _astray(root, functions.values(), nodes)
    sharing = {bus_id for bus_id in names.values() if list(names.values()).count(bus_id) > 1}
    nics: list[Nic] = []
    for name, bus_id in names.items():
        if bus_id not in functions or bus_id not in locations:
            problems.append(
                Problem(
                    f"RDMA device {name}",
                    "path",
                    f"it claims to sit on {bus_id}, which is not in the PCI tree",
                    "check that sysfs is mounted completely; the device is left out",
                )
            )
            continue
        function = functions[bus_id]
        parent = _physical_function(root, function)
        nic, found = _nic(
            root,
            name,
            function=function,
            location=locations[bus_id],
            nodes=nodes,
            parent=parent,
            vf_index=numbers.get(parent or "", {}).get(bus_id),
        )
        owner = next((above for above, children in numbers.items() if bus_id in children), None)
        if parent is None and owner is not None:
            what = f"{owner} lists it as a virtual function, and it has no physfn link"
            found.append(_problem(name, "parent", what, "check sysfs; it is not offered"))
            nic = replace(nic, disputed=(*nic.disputed, "parent"))
        if bus_id in sharing:
            found.append(
                _problem(
                    name,
                    "pciBusID",
                    f"several RDMA devices sit on {bus_id}",
                    "they are left out, not told apart",
                )
            )
            nic = replace(nic, disputed=(*nic.disputed, "pciBusID"))
        nics.append(nic)
        problems.extend(found)
    return nics, problems


def _astray(root: MachineRoot, functions: Iterable[PciFunction], nodes: CharacterDevices) -> list[Problem]:
    """Problems of RDMA devices whose sysfs entry is missing or dangling."""
    listed = root.names(_CLASS)
    lost = [
        name
        for name in listed
        if (root.link(f"{_CLASS}/{name}") or "").split("/")[-2:] != ["infiniband", name]
    ]
    below = {
        name
        for function in functions
        if function.base_class is not None and function.base_class >> 8 == _NETWORK_CONTROLLER
        for name in root.names(f"{function.directory}/infiniband")
    }
    lost += sorted((below | nodes.verbs.keys()) - set(listed))
    remedy = "check that sysfs is mounted completely; the device is left out"
    return [
        _problem(name, "path", f"/{_CLASS}/{name} does not link to a device", remedy)
        for name in lost
        if _NAME.fullmatch(name)
    ]


def _nic(
    root: MachineRoot,
    name: str,
    *,
    function: PciFunction,
    location: tuple[Location, frozenset[str]],
    nodes: CharacterDevices,
    parent: str | None,
    vf_index: int | None,
) -> tuple[Nic, list[Problem]]:
    problems: list[Problem] = []
    base = f"{function.directory}/infiniband/{name}"
    if parent is not None and vf_index is None:
        what = f"its physical function {parent} has no virtfn link to it"
        problems.append(_problem(name, "parent", what, "check sysfs; the virtual function is not offered"))
    guid = (root.line(f"{base}/node_guid") or "").lower()
    ports, port_problems = _ports(root, name, base)
    if guid == _NO_GUID and parent is None:
        guid = _interface_id(ports)
    if not _GUID.fullmatch(guid) or guid == _NO_GUID:
        remedy = (
            "check the NIC's firmware" if parent is None else "set it: ip link set PF vf N node_guid GUID"
        )
        problems.append(
            _problem(name, "uuid", "node_guid is missing or no GUID", f"{remedy}; it is not offered")
        )
        guid = ""
    verbs, verbs_problems = _verbs_node(root, name, nodes.verbs.get(name, ()))
    where, inferred = location
    nic = Nic(
        location=where,
        ib_device=name,
        vendor=_hex(function.vendor),
        device_id=_hex(function.device),
        guid=guid or None,
        netdev=netdev(root, base, function.directory),
        ports=ports,
        verbs=verbs,
        management_nodes=_management_nodes(root, nodes.management.get(name, ())),
        sriov_total=_count(root, f"{function.directory}/sriov_totalvfs"),
        sriov_active=_count(root, f"{function.directory}/sriov_numvfs"),
        parent=parent,
        inferred=inferred,
        vf_index=vf_index,
    )
    return nic, problems + port_problems + verbs_problems


def _interface_id(ports: tuple[RdmaPort, ...]) -> str:
    """The lower half of the first port's first GID, written as a GUID; empty where there is none."""
    gid = ports[0].gid if ports else None
    return ":".join(gid.split(":")[4:]) if gid else ""


def _ports(root: MachineRoot, name: str, base: str) -> tuple[tuple[RdmaPort, ...], list[Problem]]:
    ports, problems = [], []
    numbers = [entry for entry in root.names(f"{base}/ports") if entry.isdecimal() and len(entry) <= 3]
    for number in sorted(numbers, key=int):
        directory = f"{base}/ports/{number}"
        # "4: ACTIVE"; the words are the kernel's, the numbers the InfiniBand specification's.
        state = (root.line(f"{directory}/state") or "").partition(":")[0]
        active = {"4": True}.get(state, False) if state.isdecimal() else None
        rate = _RATE.fullmatch(root.line(f"{directory}/rate") or "")
        layer = root.line(f"{directory}/link_layer")
        gid = (root.line(f"{directory}/gids/0") or "").lower()
        ports.append(
            RdmaPort(
                number=int(number),
                link_layer=layer if layer and _NAME.fullmatch(layer) else None,
                active=active,
                rate_gbps=int(rate[1]) if rate and active else None,
                gid=gid if _GID.fullmatch(gid) else None,
            )
        )
        if active is None:
            problems.append(
                _problem(name, f"port {number} state", "the state cannot be read", "check the driver")
            )
    if not ports:
        problems.append(_problem(name, "ports", "it shows no port", "check the driver; it is not offered"))
    return tuple(ports), problems


def _verbs_node(
    root: MachineRoot, name: str, directories: tuple[str, ...]
) -> tuple[DeviceNode | None, list[Problem]]:
    """The one verbs node whose numbers agree between sysfs and /dev."""
    if len(directories) != 1:
        what = "no uverbs device names it" if not directories else "several uverbs devices name it"
        return None, [_problem(name, "uverbs", what, "load ib_uverbs, or check it; the NIC is not offered")]
    path = f"/dev/infiniband/{directories[0].rpartition('/')[2]}"
    numbers, node = kernel_numbers(root, f"{directories[0]}/dev"), device_node(root, path)
    if node is None:
        return None, [
            _problem(name, "uverbs", f"{path} does not exist", "check udev; the NIC is not offered")
        ]
    if numbers != (node.major, node.minor):
        said = "nothing" if numbers is None else f"{numbers[0]}:{numbers[1]}"
        problem = f"{path} is {node.major}:{node.minor}, the kernel says {said}"
        return None, [_problem(name, "uverbs", problem, "remove the stale node; the NIC is not offered")]
    return node, []


def _management_nodes(root: MachineRoot, directories: tuple[str, ...]) -> tuple[DeviceNode, ...]:
    found = (
        device_node(root, f"/dev/infiniband/{directory.rpartition('/')[2]}") for directory in directories
    )
    return tuple(node for node in found if node)


def rdma_control_nodes(root: MachineRoot) -> tuple[DeviceNode, ...]:
    """/dev/infiniband/rdma_cm, which every holder of a NIC needs to set up connections."""
    node = device_node(root, "/dev/infiniband/rdma_cm")
    return (node,) if node else ()


def _by_ib_device(root: MachineRoot, directory: str, names: re.Pattern[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in root.names(directory):
        owner = root.line(f"{directory}/{entry}/ibdev") if names.fullmatch(entry) else None
        if owner:
            found[owner] = (*found.get(owner, ()), f"{directory}/{entry}")
    return found


def _physical_function(root: MachineRoot, function: PciFunction) -> str | None:
    target = (root.link(f"{function.directory}/physfn") or "").rpartition("/")[2]
    return target if BUS_ID.fullmatch(target) else None


def _virtual_functions(root: MachineRoot, directory: str) -> dict[str, int]:
    """Bus id -> number of the virtual functions that a physical one lists; none that it lists twice."""
    numbers: dict[str, int] = {}
    twice = set()
    for entry in root.names(directory):
        target = (
            (root.link(f"{directory}/{entry}") or "").rpartition("/")[2] if _VIRTFN.fullmatch(entry) else ""
        )
        if target:
            twice |= {target} & numbers.keys()
            numbers[target] = int(entry.removeprefix("virtfn"))
    return {bus_id: number for bus_id, number in numbers.items() if bus_id not in twice}


def _count(root: MachineRoot, path: str) -> int:
    found = root.integer(path)
    return found if found is not None and 0 <= found <= 0xFFFF else 0


def _hex(number: int | None) -> str | None:
    return None if number is None else f"{number:04x}"


def _problem(name: str, field: str, problem: str, remedy: str) -> Problem:
    return Problem(f"RDMA device {name}", field, problem, remedy)

"""RDMA devices of any vendor, from /sys/class/infiniband and its neighbours.

A NIC is a PCI function with an InfiniBand device of its own (RoCE, InfiniBand, iWARP and EFA alike). Software
devices (rxe, siw), which sit on no PCI function, are ignored. A virtual function is recognised by its ``physfn`` link; its number is that
of the ``virtfnN`` link by which the physical function points back.

The verbs node of ``mlx5_0`` is the ``uverbsN`` whose ``ibdev`` says ``mlx5_0``; N is a matter of probing
order and is never derived from the name. The node under /dev must carry the numbers that sysfs gives for it:
a stale node under the right name would give a tenant another tenant's device.

A NIC is identified by its node GUID. Drivers without one (EFA) leave it zero; then the interface identifier
of the port's first GID, which derives from the card's MAC address, is used. For a virtual function zero means
that it is not set up yet.

Sub-functions are devices on the auxiliary bus that have no PCI function of their own. ``/sys/bus/auxiliary/devices/mlx5_core.sf.2``
links to ``.../0000:0c:00.0/mlx5_core.sf.2``: the function that it is part of is the one above it. A sub-function may have a
network interface and an InfiniBand device with nodes of its own, through which its holder reaches the NIC, so it is part of what
is guarded. It is not offered.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.pci_tree import PciFunction
from koordra.topology.machine import BUS_ID, DeviceNode, Location, Nic, RdmaPort, bus_order
from koordra.topology.partitions import SubFunction

_CLASS = "sys/class/infiniband"
AUXILIARY = "sys/bus/auxiliary/devices"
RDMA_CONTROL = ("/dev/infiniband/rdma_cm",)
"""Which every holder of a NIC needs to set up connections."""

_VERBS = "sys/class/infiniband_verbs"
_MANAGEMENT = "sys/class/infiniband_mad"
_VERBS_NODE = re.compile(r"uverbs[0-9]{1,6}", re.ASCII)
_MANAGEMENT_NODE = re.compile(r"(?:umad|issm)[0-9]{1,6}", re.ASCII)
_NETDEV = re.compile(r"[^/\s:]{1,15}", re.ASCII)
_SUB_FUNCTION = re.compile(r"[a-z0-9_]{1,32}\.sf\.[0-9]{1,9}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_GUID = re.compile(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", re.ASCII)
_RATE = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)? Gb/sec(?: .*)?", re.ASCII)
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}", re.ASCII)
_NO_GUID = "0000:0000:0000:0000"
_NETWORK_CONTROLLER = 0x02
_VIRTFN = re.compile(r"virtfn[0-9]{1,5}", re.ASCII)

ClassDevices = Mapping[str, list[str]]
"""InfiniBand device -> the names of its character devices, under which their nodes lie in /dev/infiniband."""


def verbs_and_management(root: MachineRoot) -> tuple[ClassDevices, ClassDevices]:
    return _owned(root, _VERBS, _VERBS_NODE), _owned(root, _MANAGEMENT, _MANAGEMENT_NODE)


def _owned(root: MachineRoot, directory: str, names: re.Pattern[str]) -> ClassDevices:
    found = defaultdict(list)
    for entry in filter(names.fullmatch, root.names(directory)):
        owner = root.line(f"{directory}/{entry}/ibdev")
        if owner:
            found[owner].append(entry)
    return dict(found)


def rdma_names(root: MachineRoot) -> dict[str, str]:
    """InfiniBand device -> bus id of the PCI function it sits on directly."""
    found = {}
    for name in filter(_NAME.fullmatch, root.names(_CLASS)):
        parts = (root.link(f"{_CLASS}/{name}") or "").split("/")
        if len(parts) >= 3 and parts[-2:] == ["infiniband", name] and BUS_ID.fullmatch(parts[-3]):
            found[name] = parts[-3]
    return found


def rdma_nics(
    root: MachineRoot,
    *,
    functions: Mapping[str, PciFunction],
    locations: Mapping[str, tuple[Location, frozenset[str]]],
    verbs: ClassDevices,
    management: ClassDevices,
) -> list[Nic]:
    """All NICs and virtual functions with their ports and nodes, by place and name."""
    network = [function for function in functions.values() if function.is_a(_NETWORK_CONTROLLER)]
    numbers = {function.bus_id: _virtual_functions(root, function.directory) for function in network}
    _report_lost(root, network, verbs)
    names = rdma_names(root)
    counts = Counter(names.values())
    nics: list[Nic] = []
    for name, bus_id in names.items():
        if bus_id not in functions or bus_id not in locations:
            what = f"it claims to sit on {bus_id}, which is not in the PCI tree"
            _problem(
                root, name, "path", what, "check that sysfs is mounted completely; the device is left out"
            )
            continue
        function = functions[bus_id]
        target = (root.link(f"{function.directory}/physfn") or "").rpartition("/")[2]
        parent = target if BUS_ID.fullmatch(target) else None
        nic = _nic(
            root,
            name,
            function=function,
            location=locations[bus_id],
            verbs=verbs.get(name, []),
            parent=parent,
            vf_index=numbers.get(parent or "", {}).get(bus_id),
        )
        nic = replace(nic, management_nodes=_nodes(root, management.get(name, ())))
        owner = next((above for above, children in numbers.items() if bus_id in children), None)
        if parent is None and owner is not None:
            what = f"{owner} lists it as a virtual function, and it has no physfn link"
            _problem(root, name, "parent", what, "check sysfs; it is not offered")
            nic = replace(nic, disputed=(*nic.disputed, "parent"))
        if counts[bus_id] > 1:
            what = f"several RDMA devices sit on {bus_id}"
            _problem(root, name, "pciBusID", what, "they are left out, not told apart")
            nic = replace(nic, disputed=(*nic.disputed, "pciBusID"))
        nics.append(nic)
    return sorted(nics, key=lambda nic: (bus_order(nic.location.bus_id), nic.ib_device))


def _report_lost(root: MachineRoot, network: Iterable[PciFunction], verbs: ClassDevices) -> None:
    listed = root.names(_CLASS)
    known = {name: (root.link(f"{_CLASS}/{name}") or "").split("/")[-2:] for name in listed}
    below = {name for function in network for name in root.names(f"{function.directory}/infiniband")}
    lost = [name for name in listed if known[name] != ["infiniband", name]]
    for name in filter(_NAME.fullmatch, [*lost, *sorted((below | verbs.keys()) - set(listed))]):
        _problem(
            root,
            name,
            "path",
            f"/{_CLASS}/{name} does not link to a device",
            "check that sysfs is mounted completely; the device is left out",
        )


def _nic(
    root: MachineRoot,
    name: str,
    *,
    function: PciFunction,
    location: tuple[Location, frozenset[str]],
    verbs: list[str],
    parent: str | None,
    vf_index: int | None,
) -> Nic:
    base = f"{function.directory}/infiniband/{name}"
    if parent is not None and vf_index is None:
        _problem(
            root,
            name,
            "parent",
            f"its physical function {parent} has no virtfn link to it",
            "check sysfs; the virtual function is not offered",
        )
    guid, ports = (root.line(f"{base}/node_guid") or "").lower(), _ports(root, name, base)
    if guid == _NO_GUID and parent is None:
        guid = ":".join((ports[0].gid or "").split(":")[4:]) if ports else ""
    if not _GUID.fullmatch(guid) or guid == _NO_GUID:
        remedy = (
            "check the NIC's firmware" if parent is None else "set it: ip link set PF vf N node_guid GUID"
        )
        _problem(root, name, "uuid", "node_guid is missing or no GUID", f"{remedy}; it is not offered")
        guid = ""
    where, inferred = location
    return Nic(
        location=where,
        ib_device=name,
        vendor=_hex(function.vendor),
        device_id=_hex(function.device),
        guid=guid or None,
        netdev=netdev(root, base, function.directory),
        ports=ports,
        verbs=_verbs_node(root, name, verbs),
        sriov_total=_count(root, f"{function.directory}/sriov_totalvfs"),
        sriov_active=_count(root, f"{function.directory}/sriov_numvfs"),
        parent=parent,
        inferred=inferred,
        vf_index=vf_index,
    )


def _ports(root: MachineRoot, name: str, base: str) -> tuple[RdmaPort, ...]:
    ports = []
    for number in sorted(
        [entry for entry in root.names(f"{base}/ports") if entry.isdecimal() and len(entry) <= 3], key=int
    ):
        directory = f"{base}/ports/{number}"
        # "4: ACTIVE"; the words are the kernel's, the numbers the InfiniBand specification's.
        state = (root.line(f"{directory}/state") or "").partition(":")[0]
        active = state == "4" if state.isdecimal() else None
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
            _problem(root, name, f"port {number} state", "the state cannot be read", "check the driver")
    if not ports:
        _problem(root, name, "ports", "it shows no port", "check the driver; it is not offered")
    return tuple(ports)


def _verbs_node(root: MachineRoot, name: str, entries: list[str]) -> DeviceNode | None:
    """The one verbs node whose numbers agree between sysfs and /dev."""
    if len(entries) != 1:
        _problem(
            root,
            name,
            "uverbs",
            "no uverbs device names it" if not entries else "several uverbs devices name it",
            "load ib_uverbs, or check it; the NIC is not offered",
        )
        return None
    path = f"/dev/infiniband/{entries[0]}"
    numbers, node = root.kernel_numbers(f"{_VERBS}/{entries[0]}/dev"), root.device_node(path)
    if node is None:
        _problem(root, name, "uverbs", f"{path} does not exist", "check udev; the NIC is not offered")
    elif numbers != (node.major, node.minor):
        said = "nothing" if numbers is None else f"{numbers[0]}:{numbers[1]}"
        _problem(
            root,
            name,
            "uverbs",
            f"{path} is {node.major}:{node.minor}, the kernel says {said}",
            "remove the stale node; the NIC is not offered",
        )
        return None
    return node


def _nodes(root: MachineRoot, entries: Iterable[str]) -> tuple[DeviceNode, ...]:
    return root.device_nodes(f"/dev/infiniband/{entry}" for entry in entries)


def _virtual_functions(root: MachineRoot, directory: str) -> dict[str, int]:
    """Bus id -> number of the virtual functions that a physical one lists; none that it lists twice."""
    links = [
        ((root.link(f"{directory}/{entry}") or "").rpartition("/")[2], int(entry.removeprefix("virtfn")))
        for entry in filter(_VIRTFN.fullmatch, root.names(directory))
    ]
    times = Counter(target for target, _ in links)
    return {target: number for target, number in links if target and times[target] == 1}


def _count(root: MachineRoot, path: str) -> int:
    found = root.integer(path)
    return found if found is not None and 0 <= found <= 0xFFFF else 0


def _hex(number: int | None) -> str | None:
    return None if number is None else f"{number:04x}"


def _problem(root: MachineRoot, name: str, field: str, problem: str, remedy: str) -> None:
    root.problem(f"RDMA device {name}", field, problem, remedy)


# Network interfaces.


def _interfaces(root: MachineRoot, directory: str) -> list[str]:
    return [name for name in root.names(f"{directory}/net") if _NETDEV.fullmatch(name)]


def netdev(root: MachineRoot, base: str, directory: str) -> str | None:
    """The network interface of the first port; None if it is ambiguous.

    RoCE names it beside the port's first GID. Otherwise it is the function's only interface, not counting
    those that are not its own or not of its first port: a NIC in switchdev mode shows representors of its
    VFs, which carry a physical port name like pf0vf3; IPoIB the interfaces of further partitions, which name
    a parent; a function with two ports has a second one, numbered in dev_port.
    """
    named = root.line(f"{base}/ports/1/gid_attrs/ndevs/0")
    if named and _NETDEV.fullmatch(named):
        return named
    candidates = _interfaces(root, directory)
    if len(candidates) > 1:
        labels = {name: root.line(f"{directory}/net/{name}/phys_port_name") or "" for name in candidates}
        candidates = [
            name
            for name, label in labels.items()
            if re.fullmatch(r"(?:p\d+)?", label) and root.line(f"{directory}/net/{name}/parent") is None
        ]
    if len(candidates) > 1:
        ports = {name: root.integer(f"{directory}/net/{name}/dev_port") for name in candidates}
        candidates = [name for name, port in ports.items() if port == 0 and None not in ports.values()]
    return candidates[0] if len(candidates) == 1 else None


# Sub-functions.


def sub_function_parents(root: MachineRoot) -> dict[str, str]:
    """Sub-function -> bus id of the PCI function it is part of."""
    found = {}
    for name in filter(_SUB_FUNCTION.fullmatch, root.names(AUXILIARY)):
        parts = (root.link(f"{AUXILIARY}/{name}") or "").split("/")
        if len(parts) >= 2 and parts[-1] == name and BUS_ID.fullmatch(parts[-2]):
            found[name] = parts[-2]
    return found


def sub_functions(
    root: MachineRoot,
    *,
    locations: Mapping[str, tuple[Location, frozenset[str]]],
    verbs: ClassDevices,
    management: ClassDevices,
) -> tuple[SubFunction, ...]:
    """Those whose PCI function is known, by place and number."""
    found = []
    for name, bus_id in sub_function_parents(root).items():
        if bus_id in locations:
            directory = f"sys/devices/{(root.link(f'{AUXILIARY}/{name}') or '').partition('devices/')[2]}"
            devices, interfaces = root.names(f"{directory}/infiniband"), _interfaces(root, directory)
            own = (
                entry for device in devices for entry in (*verbs.get(device, ()), *management.get(device, ()))
            )
            number = root.integer(f"{directory}/sfnum")
            found.append(
                SubFunction(
                    name=name,
                    location=locations[bus_id][0],
                    number=number if number is not None and number >= 0 else None,
                    ib_device=devices[0] if len(devices) == 1 else None,
                    netdev=interfaces[0] if len(interfaces) == 1 else None,
                    nodes=_nodes(root, own),
                )
            )
    return tuple(sorted(found, key=lambda each: (each.location.bus_id, each.number or 0, each.name)))

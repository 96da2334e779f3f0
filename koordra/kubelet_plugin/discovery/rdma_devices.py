"""RDMA devices of any vendor, from /sys/class/infiniband and its neighbours.

A NIC is a PCI function with an InfiniBand device of its own (RoCE, InfiniBand, iWARP and EFA alike). Software
devices (rxe, siw), which sit on no PCI function, are ignored. A virtual function is recognised by its
``physfn`` link; its number is that of the ``virtfnN`` link by which the physical function points back.

The verbs node of ``mlx5_0`` is the ``uverbsN`` whose ``ibdev`` says ``mlx5_0``; N is a matter of probing
order and is never derived from the name. The node under /dev must carry the numbers that sysfs gives for it:
a stale node under the right name would give a tenant another tenant's device.

A NIC is identified by its node GUID. Drivers without one (EFA) leave it zero; then the interface identifier
of the port's first GID, which derives from the card's MAC address, is used. For a virtual function zero means
that it is not set up yet.

Sub-functions are devices on the auxiliary bus that have no PCI function of their own.
``/sys/bus/auxiliary/devices/mlx5_core.sf.2`` links to ``.../0000:0c:00.0/mlx5_core.sf.2``: the function that
it is part of is the one above it. A sub-function may have a network interface and an InfiniBand device with
nodes of its own, through which its holder reaches the NIC, so it is part of what is guarded. It is not
offered.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from koordra.kubelet_plugin.discovery.host_network import (
    OWN_PORT,
    default_route_interfaces,
    host_needs,
    upper_interface,
)
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.pci_tree import PciFunction, PciTree
from koordra.topology.location import BUS_ID, DeviceNode
from koordra.topology.machine import Nic, RdmaPort, in_bus_order
from koordra.topology.partitions import SubFunction

RDMA_CLASS = "sys/class/infiniband"
AUXILIARY = "sys/bus/auxiliary/devices"
RDMA_CONTROL = ("/dev/infiniband/rdma_cm",)
"""Which every holder of a NIC needs to set up connections."""

_VERBS = "sys/class/infiniband_verbs"
_CHARACTER_DEVICES = {
    _VERBS: re.compile(r"uverbs[0-9]{1,6}", re.ASCII),
    "sys/class/infiniband_mad": re.compile(r"(?:umad|issm)[0-9]{1,6}", re.ASCII),
}
_NETDEV = re.compile(r"[^/\s:]{1,15}", re.ASCII)
_SUB_FUNCTION = re.compile(r"[a-z0-9_]{1,32}\.sf\.[0-9]{1,9}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_GUID = re.compile(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", re.ASCII)
_RATE = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)? Gb/sec(?: .*)?", re.ASCII)
_PKEY = re.compile(r"0x[0-9a-f]{4}", re.ASCII)
_MOST_PKEYS = 128
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}", re.ASCII)
_NO_GUID = "0000:0000:0000:0000"
_NETWORK_CONTROLLER = 0x02
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)

CharacterDevices = Mapping[str, list[str]]
"""InfiniBand device -> the names of its character devices (uverbs0, issm0, umad0), whose nodes lie in
/dev/infiniband."""
Report = Callable[[str, str, str], None]
"""Reports a problem of one RDMA device: field, problem and remedy."""


def character_devices(root: MachineRoot) -> CharacterDevices:
    found = defaultdict(list)
    for directory, names in _CHARACTER_DEVICES.items():
        for entry in filter(names.fullmatch, root.names(directory)):
            if owner := root.line(f"{directory}/{entry}/ibdev"):
                found[owner].append(entry)
    return found


def rdma_nics(tree: PciTree, owned: CharacterDevices) -> list[Nic]:
    """All NICs and virtual functions with their ports and nodes, by place and name."""
    controllers = [one for one in tree.functions.values() if one.is_a(_NETWORK_CONTROLLER)]
    numbers = _virtual_functions(tree, controllers)
    sites = _sites(tree)
    expected = {name for one in controllers for name in tree.names(f"{one.directory}/infiniband")}
    for name in filter(_NAME.fullmatch, expected.union(tree.names(RDMA_CLASS), owned).difference(sites)):
        tree.problem(
            f"RDMA device {name}",
            "path",
            f"/{RDMA_CLASS}/{name} does not link to a device",
            "check that sysfs is mounted completely; the device is left out",
        )
    counts, default_routes = Counter(sites.values()), default_route_interfaces(tree)
    nics: list[Nic] = []
    for name, bus_id in sites.items():
        report = partial(tree.problem, f"RDMA device {name}")
        function = tree.functions.get(bus_id)
        if function is not None:
            nodes = owned.get(name, [])
            nic = _nic(
                tree,
                name,
                function=function,
                owned=nodes,
                numbers=numbers,
                default_routes=default_routes,
                report=report,
            )
            if counts[bus_id] > 1:
                what = f"several RDMA devices sit on {bus_id}"
                report("pciBusID", what, "they are left out, not told apart")
                nic = replace(nic, disputed=(*nic.disputed, "pciBusID"))
            nics.append(nic)
        elif BUS_ID.fullmatch(bus_id):
            what = f"it claims to sit on {bus_id}, which is not in the PCI tree"
            report("path", what, "check that sysfs is mounted completely; the device is left out")
    return sorted(nics, key=in_bus_order)


def _sites(root: MachineRoot) -> dict[str, str]:
    """InfiniBand device -> what it sits on directly: the bus id of a PCI function, or else a device of
    software."""
    links = {
        name: root.link(f"{RDMA_CLASS}/{name}") for name in filter(_NAME.fullmatch, root.names(RDMA_CLASS))
    }
    return {
        name: link[-3] for name, link in links.items() if len(link) > 2 and link[-2:] == ["infiniband", name]
    }


def _virtual_functions(root: MachineRoot, controllers: Iterable[PciFunction]) -> dict[tuple[str, str], int]:
    """Physical and virtual function -> the latter's number, as the physical one lists it; none that it lists
    twice."""
    links = [
        ((above.bus_id, target), int(number[1]))
        for above in controllers
        for number in filter(None, map(_VIRTFN.fullmatch, root.names(above.directory)))
        for target in root.link(f"{above.directory}/{number[0]}")[-1:]
    ]
    times = Counter(pair for pair, _ in links)
    return {pair: number for pair, number in links if times[pair] == 1}


def _nic(
    root: PciTree,
    name: str,
    *,
    function: PciFunction,
    owned: list[str],
    numbers: Mapping[tuple[str, str], int],
    default_routes: Collection[str],
    report: Report,
) -> Nic:
    base = f"{function.directory}/infiniband/{name}"
    disputed: tuple[str, ...] = ()
    parent = next(filter(BUS_ID.fullmatch, root.link(f"{function.directory}/physfn")[-1:]), None)
    listed_by = [above for above, below in numbers if below == function.bus_id]
    if parent is not None and parent not in listed_by:
        what = f"its physical function {parent} has no virtfn link to it"
        report("parent", what, "check sysfs; the virtual function is not offered")
    if parent is None and listed_by:
        what = f"{listed_by[0]} lists it as a virtual function, and it has no physfn link"
        report("parent", what, "check sysfs; it is not offered")
        disputed = ("parent",)
    guid, ports = root.line(f"{base}/node_guid").lower(), _ports(root, base, report)
    if guid == _NO_GUID and parent is None:
        guid = ":".join((ports[0].gid or "").split(":")[4:]) if ports else ""
    if not _GUID.fullmatch(guid) or guid == _NO_GUID:
        remedy = (
            "check the NIC's firmware" if parent is None else "set it: ip link set PF vf N node_guid GUID"
        )
        report("uuid", "node_guid is missing or no GUID", f"{remedy}; it is not offered")
        guid = ""
    verbs = [entry for entry in owned if entry.startswith("uverbs")]
    netdev = _netdev(root, base, function.directory)
    interfaces = _interfaces(root, function.directory)
    own = netdev if netdev in interfaces else next(iter(interfaces), None)
    return Nic(
        location=root.location(function),
        ib_device=name,
        vendor=function.vendor,
        device_id=function.device,
        guid=guid or None,
        netdev=netdev,
        ports=ports,
        verbs=_verbs_node(root, verbs, report),
        management_nodes=_nodes(root, [entry for entry in owned if entry not in verbs]),
        sriov_total=_count(root, f"{function.directory}/sriov_totalvfs"),
        sriov_active=_count(root, f"{function.directory}/sriov_numvfs"),
        parent=parent,
        disputed=disputed,
        vf_index=numbers.get((parent or "", function.bus_id)),
        downs=link_downs(root, base, f"{function.directory}/net/{netdev}" if netdev else ""),
        upper=upper_interface(root, function.directory, own) if own else None,
        needed=netdev is not None and host_needs(root, netdev, default_routes),
    )


def link_downs(root: MachineRoot, base: str, interface: str) -> int | None:
    """How often the device's link went down since its driver was loaded; None where nothing counts it here.
    InfiniBand ports count; on Ethernet the interface does, which may be in a pod."""
    ports = [f"{base}/ports/{entry}" for entry in root.names(f"{base}/ports") if entry.isdecimal()]
    infiniband = [port for port in ports if root.line(f"{port}/link_layer") == "InfiniBand"]
    if not infiniband:
        return root.integer(f"{interface}/carrier_down_count") if interface else None
    counts = [root.integer(f"{port}/counters/link_downed") for port in infiniband]
    return None if None in counts else sum(count for count in counts if count)


def _ports(root: MachineRoot, base: str, report: Report) -> tuple[RdmaPort, ...]:
    ports = []
    for number in sorted(
        [entry for entry in root.names(f"{base}/ports") if entry.isdecimal() and len(entry) <= 3], key=int
    ):
        directory = f"{base}/ports/{number}"
        # "4: ACTIVE"; the words are the kernel's, the numbers the InfiniBand specification's.
        state = root.line(f"{directory}/state").partition(":")[0]
        active = state == "4" if state.isdecimal() else None
        rate = _RATE.fullmatch(root.line(f"{directory}/rate"))
        layer = root.line(f"{directory}/link_layer")
        gid = root.line(f"{directory}/gids/0").lower()
        ports.append(
            RdmaPort(
                number=int(number),
                link_layer=layer if _NAME.fullmatch(layer) else None,
                active=active,
                rate_gbps=int(rate[1]) if rate and active else None,
                gid=gid if _GID.fullmatch(gid) else None,
                pkeys=_pkeys(root, directory) if layer == "InfiniBand" else (),
            )
        )
        if active is None:
            report(f"port {number} state", "the state cannot be read", "check the driver")
    if not ports:
        report("ports", "it shows no port", "check the driver; it is not offered")
    return tuple(ports)


def _pkeys(root: MachineRoot, directory: str) -> tuple[int, ...]:
    """The table of 128 places is filled from the front by the subnet manager; one more file is read than it
    has keys."""
    found: list[int] = []
    while len(found) < _MOST_PKEYS:
        key = _PKEY.fullmatch(root.line(f"{directory}/pkeys/{len(found)}"))
        if key is None or not int(key[0], 16):
            break
        found.append(int(key[0], 16))
    return tuple(found)


def _verbs_node(root: MachineRoot, entries: list[str], report: Report) -> DeviceNode | None:
    """The one verbs node whose numbers agree between sysfs and /dev."""
    if len(entries) != 1:
        what = "several uverbs devices name it" if entries else "no uverbs device names it"
        report("uverbs", what, "load ib_uverbs, or check it; the NIC is not offered")
        return None
    path = f"/dev/infiniband/{entries[0]}"
    numbers, node = root.kernel_numbers(f"{_VERBS}/{entries[0]}/dev"), root.device_node(path)
    if node is None:
        report("uverbs", f"{path} does not exist", "check udev; the NIC is not offered")
    elif numbers != (node.major, node.minor):
        says = "nothing" if numbers is None else f"{numbers[0]}:{numbers[1]}"
        what = f"{path} is {node.major}:{node.minor}, the kernel says {says}"
        report("uverbs", what, "remove the stale node; the NIC is not offered")
        return None
    return node


def _nodes(root: MachineRoot, entries: Iterable[str]) -> tuple[DeviceNode, ...]:
    return root.device_nodes(f"/dev/infiniband/{entry}" for entry in entries)


def _count(root: MachineRoot, path: str) -> int:
    found = root.integer(path)
    return found if found is not None and 0 <= found <= 0xFFFF else 0


def _interfaces(root: MachineRoot, directory: str) -> list[str]:
    return [name for name in root.names(f"{directory}/net") if _NETDEV.fullmatch(name)]


def _netdev(root: MachineRoot, base: str, directory: str) -> str | None:
    """The network interface of the first port; None if it is ambiguous.

    RoCE names it beside the port's first GID. Otherwise it is the function's only interface, not counting
    those that are not its own or not of its first port: a NIC in switchdev mode shows representors of its
    VFs, which carry a physical port name like pf0vf3; IPoIB the interfaces of further partitions, which name
    a parent; a function with two ports has a second one, numbered in dev_port.
    """
    named = root.line(f"{base}/ports/1/gid_attrs/ndevs/0")
    if _NETDEV.fullmatch(named):
        return named
    candidates = _interfaces(root, directory)
    if len(candidates) > 1:
        labels = {name: root.line(f"{directory}/net/{name}/phys_port_name") for name in candidates}
        candidates = [
            name
            for name, label in labels.items()
            if OWN_PORT.fullmatch(label) and not root.line(f"{directory}/net/{name}/parent")
        ]
    if len(candidates) > 1:
        ports = {name: root.integer(f"{directory}/net/{name}/dev_port") for name in candidates}
        candidates = [name for name, port in ports.items() if port == 0 and None not in ports.values()]
    return candidates[0] if len(candidates) == 1 else None


def sub_functions(tree: PciTree, owned: CharacterDevices) -> tuple[SubFunction, ...]:
    """Those whose PCI function is known, by place and number."""
    found = []
    for name in filter(_SUB_FUNCTION.fullmatch, tree.names(AUXILIARY)):
        link = tree.link(f"{AUXILIARY}/{name}")
        function = tree.functions.get(link[-2]) if len(link) > 1 else None
        if function is None or link[-1] != name:
            continue
        directory = f"{function.directory}/{name}"
        devices, interfaces = tree.names(f"{directory}/infiniband"), _interfaces(tree, directory)
        number = tree.integer(f"{directory}/sfnum")
        found.append(
            SubFunction(
                name=name,
                location=tree.location(function),
                number=number if number is not None and number >= 0 else None,
                ib_device=devices[0] if len(devices) == 1 else None,
                netdev=interfaces[0] if len(interfaces) == 1 else None,
                nodes=_nodes(tree, (entry for device in devices for entry in owned.get(device, ()))),
            )
        )
    return tuple(sorted(found, key=lambda each: (each.location.bus_id, each.number or 0, each.name)))

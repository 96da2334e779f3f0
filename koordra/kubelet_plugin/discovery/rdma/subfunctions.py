"""Sub-functions of NICs: devices on the auxiliary bus that have no PCI function of their own.

``/sys/bus/auxiliary/devices/mlx5_core.sf.2`` links to ``.../0000:0c:00.0/mlx5_core.sf.2``: the function that
it is part of is the one above it. It may have a network interface and an InfiniBand device with nodes of its
own, through which its holder reaches the NIC, so it is part of what is guarded. It is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from koordra.kubelet_plugin.discovery.rdma.interfaces import interfaces
from koordra.kubelet_plugin.discovery.rdma.rdma_devices import CharacterDevices
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot, device_node
from koordra.topology.machine import BUS_ID, Location
from koordra.topology.partitions import SubFunction

AUXILIARY = "sys/bus/auxiliary/devices"
_NAME = re.compile(r"[a-z0-9_]{1,32}\.sf\.[0-9]{1,9}", re.ASCII)


def parents(root: MachineRoot) -> dict[str, str]:
    """Sub-function -> bus id of the PCI function it is part of."""
    found = {}
    for name in root.names(AUXILIARY):
        parts = (root.link(f"{AUXILIARY}/{name}") or "").split("/") if _NAME.fullmatch(name) else []
        if len(parts) >= 2 and parts[-1] == name and BUS_ID.fullmatch(parts[-2]):
            found[name] = parts[-2]
    return found


def sub_functions(
    root: MachineRoot, *, locations: Mapping[str, tuple[Location, frozenset[str]]], nodes: CharacterDevices
) -> tuple[SubFunction, ...]:
    """Those whose PCI function is known, by place and number."""
    found = []
    for name, bus_id in parents(root).items():
        if bus_id in locations:
            place = (root.link(f"{AUXILIARY}/{name}") or "").partition("devices/")[2]
            found.append(_sub_function(root, name, f"sys/devices/{place}", locations[bus_id][0], nodes))
    return tuple(sorted(found, key=lambda each: (each.location.bus_id, each.number or 0, each.name)))


def _sub_function(
    root: MachineRoot, name: str, directory: str, location: Location, nodes: CharacterDevices
) -> SubFunction:
    devices = root.names(f"{directory}/infiniband")
    names = interfaces(root, directory)
    own = [
        entry
        for device in devices
        for entry in (*nodes.verbs.get(device, ()), *nodes.management.get(device, ()))
    ]
    found = (device_node(root, f"/dev/infiniband/{entry.rpartition('/')[2]}") for entry in own)
    number = root.integer(f"{directory}/sfnum")
    return SubFunction(
        name=name,
        location=location,
        number=number if number is not None and number >= 0 else None,
        ib_device=devices[0] if len(devices) == 1 else None,
        netdev=names[0] if len(names) == 1 else None,
        nodes=tuple(node for node in found if node),
    )

"""The machine behind ResourceSlices: what a laptop can know of a node.

The slices carry what allocation needs (place, identity, size), so the pictures made from them show the same
levels as on the node itself. What they do not carry stays unknown: CPU lists, SLIT distances, downstream
ports, cards that are not offered. A path is then host bridge, upstream ports of switches, device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from koordra.api import names
from koordra.api.devices import Device, ResourceSlice
from koordra.topology.fabrics import links_between_published
from koordra.topology.levels import attribute
from koordra.topology.location import Location
from koordra.topology.machine import (
    Gpu,
    Machine,
    Nic,
    NumaNode,
    NvLink,
    RdmaPort,
    in_bus_order,
    with_switches,
)
from koordra.topology.partitions import FabricInfo, MigInstance, MigProfile, PublishedFabrics


@dataclass(frozen=True, slots=True)
class _Published:
    """A published device; ``device[name]`` is the plain value of an attribute, None where it is not
    published."""

    device: Device
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return attribute(self.values, name)

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(taint.value for taint in self.device.taints if taint.key == names.UNHEALTHY_TAINT)


def machine_of_slices(
    slices: Iterable[Mapping[str, Any]],
) -> tuple[Machine, dict[str, dict[str, Decimal]]]:
    """The machine of one node's slices, and its published devices with their capacities (without domain).

    Of each pool only the newest generation counts, and cards in the MIG mode that they are in. Raises
    InvalidManifest for a malformed slice.
    """
    read = [one for one in map(ResourceSlice.from_dict, slices) if one.driver == names.DRIVER]
    newest = {one.pool: one.generation for one in sorted(read, key=lambda one: one.generation)}
    devices = [
        _Published(device, {name: value.value for name, value in device.attributes.items()})
        for one in read
        if one.generation == newest[one.pool]
        for device in one.devices
        if not any(taint.is_other_mode for taint in device.taints)
    ]
    of_type: defaultdict[str, list[_Published]] = defaultdict(list)
    for device in devices:
        of_type[str(device[names.ATTR_TYPE])].append(device)
    gpus = [_gpu(device, devices) for device in of_type[names.TYPE_GPU]]
    bus_ids = {device.device.name: str(device[names.STANDARD_PCI_BUS_ID]) for device in devices}
    nics = [_nic(device) for device in of_type[names.TYPE_NIC]]
    vfs = [
        _nic(vf, parent=bus_ids.get(vf[names.ATTR_PARENT], bus_ids[vf.device.name]))
        for vf in of_type[names.TYPE_VF]
    ]
    machine = Machine(
        numa_nodes=_numa_nodes(devices),
        gpus=tuple(sorted(gpus + _partitioned(of_type[names.TYPE_MIG]), key=in_bus_order)),
        nics=tuple(sorted(nics, key=in_bus_order)),
        vfs=tuple(sorted(vfs, key=in_bus_order)),
        driver_version=next((device[names.ATTR_DRIVER_VERSION_TEXT] for device in devices), None),
        published_fabrics=PublishedFabrics(
            nvlink_domains=_by_bus_id(devices, names.ATTR_NVLINK_DOMAIN),
            rails=_by_bus_id(devices, names.ATTR_RAIL),
        ),
    )
    return with_switches(machine), {
        one.device.name: {
            name.rpartition("/")[2]: capacity.value for name, capacity in one.device.capacity.items()
        }
        for one in devices
    }


def _by_bus_id(devices: Iterable[_Published], name: str) -> tuple[tuple[str, Any], ...]:
    """Bus id and value of an attribute, of those that have it."""
    return tuple(
        (str(device[names.STANDARD_PCI_BUS_ID]), device[name])
        for device in devices
        if device[name] is not None
    )


def _location(device: _Published) -> Location:
    switch, path = device[names.ATTR_PCIE_SWITCH], device[names.ATTR_PCIE_PATH]
    switches = tuple(str(path or switch or "").split("/")) if path or switch else ()
    if switch and switches[0] != switch:
        # Of a chain that was too long to publish, the upper end is missing.
        switches = (str(switch), *switches)
    bus_id = str(device[names.STANDARD_PCI_BUS_ID] or "0000:00:00.0")
    return Location(
        bus_id,
        path=(str(device[names.STANDARD_PCIE_ROOT] or "pci0000:00"), *switches, bus_id),
        switches=switches,
        numa=device[names.ATTR_NUMA_NODE],
        socket=device[names.ATTR_SOCKET],
        inferred=frozenset(filter(None, str(device[names.ATTR_INFERRED] or "").split(","))),
    )


def _gpu(device: _Published, devices: Sequence[_Published]) -> Gpu:
    memory = device.device.capacity.get(names.CAPACITY_MEMORY)
    return Gpu(
        **_card(device),
        uuid=device[names.ATTR_UUID],
        minor=device[names.ATTR_MINOR],
        memory_bytes=int(memory.value) if memory else None,
        nvlinks=_nvlinks(device, devices),
        fabric=FabricInfo.named(str(device[names.ATTR_CLIQUE] or "")),
        faults=device.faults,
    )


def _card(device: _Published) -> dict[str, Any]:
    """What a card and its MIG instances publish alike."""
    return {
        "location": _location(device),
        "product_name": device[names.ATTR_PRODUCT_NAME],
        "architecture": device[names.ATTR_ARCHITECTURE],
        "compute_capability": device[names.ATTR_CUDA_COMPUTE_CAPABILITY],
    }


def _nvlinks(device: _Published, devices: Sequence[_Published]) -> tuple[NvLink, ...]:
    """Links to each peer where these are published. Otherwise every GPU of the domain is a peer: as behind a
    switch where the domain is the only one of the node, directly where there are several (bridged pairs)."""
    domain = device[names.ATTR_NVLINK_DOMAIN]
    if domain is None:
        return ()
    if not device[names.ATTR_NVLINK_PEERS] and {other[names.ATTR_NVLINK_DOMAIN] for other in devices} <= {
        domain,
        None,
    }:
        return (NvLink(str(domain), device[names.ATTR_NVLINKS] or 1, to_switch=True),)
    widths = {
        other[names.STANDARD_PCI_BUS_ID]: links_between_published(device.values, other.values)
        for other in devices
        if other is not device
    }
    return tuple(NvLink(str(peer), links, to_switch=False) for peer, links in widths.items() if links)


def _partitioned(parts: Iterable[_Published]) -> list[Gpu]:
    """Cards that are seen through their MIG instances only; each instance has a profile that is no more than
    its name."""
    cards: defaultdict[str, list[_Published]] = defaultdict(list)
    for part in parts:
        cards[str(part[names.STANDARD_PCI_BUS_ID])].append(part)
    for instances in cards.values():  # published by their size; on the card they lie as NVML lists them
        instances.sort(key=lambda part: part[names.ATTR_PLACEMENT_START] or 0)
    return [
        Gpu(
            **_card(instances[0]),
            mig_enabled=True,
            faults=tuple(dict.fromkeys(fault for part in instances for fault in part.faults)),
            mig_profiles=tuple(
                MigProfile(number, str(part[names.ATTR_PROFILE]), 0, 0, most=0, placements=())
                for number, part in enumerate(instances)
            ),
            mig_instances=tuple(
                MigInstance(
                    gpu_instance=number,
                    compute_instance=0,
                    profile_id=number,
                    start=part[names.ATTR_PLACEMENT_START] or 0,
                    size=1,
                    uuid=part[names.ATTR_UUID],
                )
                for number, part in enumerate(instances)
            ),
        )
        for instances in cards.values()
    ]


def _nic(device: _Published, *, parent: str | None = None) -> Nic:
    rate, number = device[names.ATTR_RATE_GBPS], device.device.name.rpartition("-vf-")[2]
    return Nic(
        location=_location(device),
        ib_device=str(device[names.ATTR_IB_DEVICE] or "?"),
        guid=device[names.ATTR_UUID],
        netdev=device[names.ATTR_NETDEV],
        ports=(RdmaPort(1, device[names.ATTR_LINK_LAYER], active=rate is not None, rate_gbps=rate),),
        parent=parent,
        vf_index=int(number) if number.isdecimal() else None,
    )


def _numa_nodes(devices: Sequence[_Published]) -> tuple[NumaNode, ...]:
    sockets = {device[names.ATTR_NUMA_NODE]: device[names.ATTR_SOCKET] for device in reversed(devices)}
    return tuple(
        NumaNode(number, cpus="", socket=sockets[number]) for number in sorted(sockets.keys() - {None})
    )

"""The machine behind ResourceSlices: what a laptop can know of a node.

The slices carry what allocation needs (place, identity, size), so the pictures made from them show the same levels as on
the node itself. What they do not carry stays unknown: CPU lists, SLIT distances, downstream ports, cards that are not
offered. A path is then host bridge, upstream ports of switches, device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api import names
from koordra.api.devices import Device as PublishedDevice
from koordra.api.devices import ResourceSlice
from koordra.topology.fabrics import links_between_published
from koordra.topology.levels import attribute
from koordra.topology.machine import (
    Gpu,
    Location,
    Machine,
    Nic,
    NumaNode,
    NvLink,
    PublishedFabrics,
    RdmaPort,
    bus_order,
    with_switches,
)
from koordra.topology.partitions import MigInstance, MigProfile

Attributes = Mapping[str, Any]


def machine_of_slices(slices: Iterable[Mapping[str, Any]]) -> tuple[Machine, frozenset[str]]:
    """The machine of one node's slices, and the names of its published devices.

    Of each pool only the newest generation counts. Raises InvalidManifest for a malformed slice.
    """
    read = [one for one in map(ResourceSlice.from_dict, slices) if one.driver == names.DRIVER]
    newest: defaultdict[str, int] = defaultdict(int)
    for one in read:
        newest[one.pool] = max(newest[one.pool], one.generation)
    devices = [device for one in read if one.generation == newest[one.pool] for device in one.devices]
    values = {
        device.name: {name: value.value for name, value in device.attributes.items()} for device in devices
    }
    of_type: defaultdict[str, list[PublishedDevice]] = defaultdict(list)
    for device in devices:
        of_type[str(attribute(values[device.name], names.ATTR_TYPE))].append(device)
    gpus = [_gpu(device, values[device.name], values) for device in of_type[names.TYPE_GPU]]
    gpus += _partitioned(of_type[names.TYPE_MIG], values)
    gpus.sort(key=lambda gpu: bus_order(gpu.location.bus_id))
    nics = [_nic(values[device.name]) for device in of_type[names.TYPE_NIC]]
    nics += [_vf(device.name, values) for device in of_type[names.TYPE_VF]]
    nics.sort(key=lambda nic: bus_order(nic.location.bus_id))
    machine = Machine(
        numa_nodes=_numa_nodes(values.values()),
        bridges=with_switches((), [*gpus, *nics]),
        gpus=tuple(gpus),
        nics=tuple(nic for nic in nics if nic.parent is None),
        vfs=tuple(nic for nic in nics if nic.parent is not None),
        driver_version=attribute(next(iter(values.values()), {}), names.ATTR_DRIVER_VERSION_TEXT),
        published_fabrics=PublishedFabrics(
            nvlink_domains=_by_bus_id(values.values(), names.ATTR_NVLINK_DOMAIN),
            rails=_by_bus_id(values.values(), names.ATTR_RAIL),
        ),
    )
    return machine, frozenset(values)


def _by_bus_id(devices: Iterable[Attributes], name: str) -> tuple[tuple[str, Any], ...]:
    """Bus id and value of an attribute, of those that have it."""
    return tuple(
        (str(values.get(names.STANDARD_PCI_BUS_ID)), value)
        for values in devices
        if (value := attribute(values, name)) is not None
    )


def _location(values: Attributes) -> Location:
    switch, path = attribute(values, names.ATTR_PCIE_SWITCH), attribute(values, names.ATTR_PCIE_PATH)
    switches = tuple(str(path).split("/")) if path else (str(switch),) if switch else ()
    if switch and switches[0] != switch:
        # Of a chain that was too long to publish, the upper end is missing.
        switches = (str(switch), *switches)
    bus_id = str(values.get(names.STANDARD_PCI_BUS_ID, "0000:00:00.0"))
    return Location(
        bus_id=bus_id,
        path=(str(values.get(names.STANDARD_PCIE_ROOT, "pci0000:00")), *switches, bus_id),
        switches=switches,
        numa=attribute(values, names.ATTR_NUMA_NODE),
        socket=attribute(values, names.ATTR_SOCKET),
    )


def _inferred(values: Attributes) -> frozenset[str]:
    return frozenset(filter(None, str(attribute(values, names.ATTR_INFERRED) or "").split(",")))


def _gpu(device: PublishedDevice, values: Attributes, others: Mapping[str, Attributes]) -> Gpu:
    memory = device.capacity.get(names.CAPACITY_MEMORY)
    card = _card(values)
    if attribute(values, names.ATTR_NVLINKS) is None and attribute(values, names.ATTR_NVLINK_DOMAIN):
        card["inferred"] |= {"nvlinks"}
    return Gpu(
        **card,
        uuid=attribute(values, names.ATTR_UUID),
        minor=attribute(values, names.ATTR_MINOR),
        memory_bytes=int(memory.value) if memory else None,
        nvlinks=_nvlinks(values, others),
        faults=_faults(device),
    )


def _faults(device: PublishedDevice) -> tuple[str, ...]:
    return tuple(taint.value for taint in device.taints if taint.key == names.UNHEALTHY_TAINT)


def _card(values: Attributes) -> dict[str, Any]:
    """What a card and its MIG instances publish alike."""
    return {
        "location": _location(values),
        "product_name": attribute(values, names.ATTR_PRODUCT_NAME),
        "architecture": attribute(values, names.ATTR_ARCHITECTURE),
        "compute_capability": attribute(values, names.ATTR_CUDA_COMPUTE_CAPABILITY),
        "inferred": _inferred(values),
    }


def _nvlinks(values: Attributes, others: Mapping[str, Attributes]) -> tuple[NvLink, ...]:
    """Links to each peer where these are published. Otherwise every GPU of the domain is a peer: as behind a switch
    where the domain is the only one of the node, directly where there are several (bridged pairs)."""
    domain, width = attribute(values, names.ATTR_NVLINK_DOMAIN), attribute(values, names.ATTR_NVLINKS) or 1
    if domain is None:
        return ()
    domains = {attribute(other, names.ATTR_NVLINK_DOMAIN) for other in others.values()} - {None}
    if not attribute(values, names.ATTR_NVLINK_PEERS) and domains == {domain}:
        return (NvLink(peer=str(domain), links=width, to_switch=True),)
    widths = {
        other.get(names.STANDARD_PCI_BUS_ID): links_between_published(values, other)
        for other in others.values()
        if attribute(other, names.ATTR_NVLINK_DOMAIN) is not None
    }
    return tuple(
        NvLink(peer=str(bus_id), links=links, to_switch=False)
        for bus_id, links in widths.items()
        if links and bus_id != values.get(names.STANDARD_PCI_BUS_ID)
    )


def _partitioned(parts: Iterable[PublishedDevice], values: Mapping[str, Attributes]) -> list[Gpu]:
    """Cards that are seen through their MIG instances only."""
    cards: defaultdict[str, list[PublishedDevice]] = defaultdict(list)
    for part in parts:
        cards[str(values[part.name].get(names.STANDARD_PCI_BUS_ID))].append(part)
    found = []
    for devices in cards.values():
        instances = [values[part.name] for part in devices]
        profiles = sorted({str(attribute(part, names.ATTR_PROFILE)) for part in instances})
        found.append(
            Gpu(
                **_card(instances[0]),
                mig_enabled=True,
                faults=tuple(dict.fromkeys(fault for part in devices for fault in _faults(part))),
                mig_profiles=tuple(
                    MigProfile(number, name, memory_bytes=0, compute_slices=0, most=0, placements=())
                    for number, name in enumerate(profiles)
                ),
                mig_instances=tuple(
                    MigInstance(
                        gpu_instance=number,
                        compute_instance=0,
                        profile_id=profiles.index(str(attribute(part, names.ATTR_PROFILE))),
                        start=attribute(part, names.ATTR_PLACEMENT_START) or 0,
                        size=1,
                        uuid=attribute(part, names.ATTR_UUID),
                    )
                    for number, part in enumerate(instances)
                ),
            )
        )
    return found


def _nic(values: Attributes, *, parent: str | None = None, vf_index: int | None = None) -> Nic:
    rate = attribute(values, names.ATTR_RATE_GBPS)
    layer = attribute(values, names.ATTR_LINK_LAYER)
    return Nic(
        location=_location(values),
        ib_device=str(attribute(values, names.ATTR_IB_DEVICE) or "?"),
        guid=attribute(values, names.ATTR_UUID),
        netdev=attribute(values, names.ATTR_NETDEV),
        ports=(RdmaPort(1, layer, active=rate is not None, rate_gbps=rate),),
        parent=parent,
        inferred=_inferred(values),
        vf_index=vf_index,
    )


def _vf(name: str, values: Mapping[str, Attributes]) -> Nic:
    here = values[name]
    above = values.get(str(attribute(here, names.ATTR_PARENT)), here)
    number = name.rpartition("-vf-")[2]
    return _nic(
        here,
        parent=str(above.get(names.STANDARD_PCI_BUS_ID, here.get(names.STANDARD_PCI_BUS_ID))),
        vf_index=int(number) if number.isdecimal() else None,
    )


def _numa_nodes(devices: Iterable[Attributes]) -> tuple[NumaNode, ...]:
    sockets: dict[int, int | None] = {}
    for values in devices:
        number = attribute(values, names.ATTR_NUMA_NODE)
        if number is not None:
            sockets.setdefault(number, attribute(values, names.ATTR_SOCKET))
    return tuple(NumaNode(id=number, cpus="", socket=sockets[number]) for number in sorted(sockets))

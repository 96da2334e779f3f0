"""A machine as ResourceSlices.

Pure and deterministic: a slice is written only when something changed. One pool per node, named after it;
GPUs first (or their MIG instances), then NICs, each PF before its virtual functions, in bus order. The order
is part of the contract: stock allocators take the first fit. Counter sets come last, in slices of their own.

GPUs and NICs may be allocated several times (``allowMultipleAllocations``), since their capacity is shared:

=========  ==========================  =============================================
gpu        memory                      all of it by default, steps of 1Mi
gpu        cores                       percent of compute, default 0: none reserved (accounting only)
gpu        slots                       how many shares the card takes, one each
nic        share                       percent of the NIC, all of it by default
nic        bandwidth                   bits per second, default 0: not reserved; left out while the link is
                                       down
=========  ==========================  =============================================

MIG instances and virtual functions are published only if the operator enables them (``devices`` has their
rules); without them nothing consumes counters.

Only what carries meaning is published, and only what is certain: a device that is not ``publishable`` is left
out here but stays guarded (``prepare.device_guard``). Limits of the API (resource.k8s.io/v1): 64 devices a
slice as soon as one has a taint or consumes counters, 8 counter sets a slice, 32 attributes and capacities a
device, 64 bytes a string.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace

from koordra.api import names
from koordra.api.kinds import RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.kubelet_plugin.publish.cni_resources import cni_attributes
from koordra.kubelet_plugin.publish.devices import (
    FUNCTIONS,
    MIB,
    NO_ABSENT_DEVICES,
    AbsentDevices,
    Counters,
    DeviceEntry,
    Mode,
    Version,
    absent_device,
    capacity,
    document,
    function_counts,
    gpu_counters,
    mig_devices,
    version,
    written,
)
from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY, Offering
from koordra.quantity import canonical
from koordra.topology.fabrics import clique, nvlink_domains, published_links, rails
from koordra.topology.machine import Gpu, Machine, Nic
from koordra.topology.product_names import cuda_semver, gpu_model, nic_model

DEVICES_PER_SLICE = 64
COUNTER_SETS_PER_SLICE = 8
_LONGEST_NAME = 253


def build_slices(
    machine: Machine,
    *,
    node_name: str,
    node_uid: str | None,
    mode: Mode,
    generation: int,
    offering: Offering = WITHOUT_POLICY,
    absent: AbsentDevices = NO_ABSENT_DEVICES,
    own: Collection[str] | None = None,
) -> list[Object]:
    """The node's ResourceSlices at this generation; one empty slice if there is nothing to offer.

    ``absent``: devices that claims hold and that cannot be offered; they are shown, with a taint. ``own``:
    identities of the MIG instances that koordra made.
    ``mode`` "joint" keeps kube-scheduler's allocator away (taint and ``allocator`` attribute), "native"
    leaves the devices to it. With ``node_uid`` the Node owns the slices, so that they go when it goes.
    """
    devices = build_devices(machine, mode=mode, offering=offering, own=own)
    offered = {device["name"]: device for device in devices}
    for name, faults in absent.items():
        shown = absent_device(name, faults, mode=mode, drain=offering.drain)
        if name in offered:  # the place of an instance that is gone
            offered[name]["taints"] = shown["taints"]
        else:
            devices.append(shown)
    sets = [{"name": name, "counters": written(counters)} for name, counters in _counters(machine, offering)]
    bodies: list[Object] = [{"devices": part} for part in _parts(devices, DEVICES_PER_SLICE) or [[]]]
    bodies += [{"sharedCounters": part} for part in _parts(sets, COUNTER_SETS_PER_SLICE)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
    owners = {"ownerReferences": [owner]} if node_uid else {}
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": _slice_name(index, node_name), **owners},
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node_name,
                "pool": {"name": node_name, "generation": generation, "resourceSliceCount": len(bodies)},
                **body,
            },
        }
        for index, body in enumerate(bodies)
    ]


def _parts(items: list[Object], size: int) -> list[list[Object]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def build_devices(
    machine: Machine,
    *,
    mode: Mode,
    offering: Offering = WITHOUT_POLICY,
    own: Collection[str] | None = None,
) -> list[Object]:
    """The devices alone, in the order in which they are published."""
    offered = (
        *_gpus(machine, mode, offering, own),
        *_nics(machine, offering),
        *_channels(machine, mode, offering),
    )
    return [document(device, mode=mode, drain=offering.drain) for device in offered]


def _channels(machine: Machine, mode: Mode, offering: Offering) -> Iterator[DeviceEntry]:
    """A node's IMEX channels are one device, that members of one gang share. kube-scheduler knows no gangs'
    domains, so they are offered in joint mode alone."""
    fabric = clique(machine)
    if offering.imex and machine.imex is not None and fabric and mode == names.MODE_JOINT:
        attributes = {names.ATTR_TYPE: names.TYPE_IMEX, names.ATTR_CLIQUE: fabric}
        yield DeviceEntry(
            names.IMEX_DEVICE, None, attributes=attributes, consumes=(names.IMEX_DEVICE, {}), shared=True
        )


def _counters(machine: Machine, offering: Offering) -> Iterator[tuple[str, Counters]]:
    """The counter sets: name, and what there is of each counter."""
    if offering.mig:
        for gpu in machine.gpus:
            if gpu.certain and (totals := gpu_counters(gpu)):
                yield gpu.name, totals
    if offering.vfs:
        counts = function_counts(machine)
        for nic in machine.nics:
            if nic.location.bus_id in counts:
                yield nic.name, {FUNCTIONS: counts[nic.location.bus_id]}


def _slice_name(index: int, node_name: str) -> str:
    """Listed by name, slices come in the order of their devices. A node name that is too long ends in its
    digest."""
    name = f"{index:05x}-{names.DRIVER}-{node_name}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - len(digest) - 1].rstrip('.-')}-{digest}"


def _gpus(
    machine: Machine, mode: Mode, offering: Offering, own: Collection[str] | None
) -> Iterator[DeviceEntry]:
    """Each card as it is, whole or in instances; where koordra switches it, then also as it can be, with a
    taint. Only koordra's controller has cards switched."""
    links = published_links(machine.gpus)
    for gpu in machine.gpus:
        offered = offering.of_card(gpu)
        other = replace(gpu, mig_enabled=not gpu.mig_enabled, mig_instances=(), mig_halves=())
        switched = offered.switched and gpu.certain and mode == names.MODE_JOINT
        for one in (gpu, other) if switched else (gpu,):
            if one.publishable and offered.whole:
                yield _whole(machine, one, offering, links.get(gpu.location.bus_id, {}), is_now=one is gpu)
            if one.mig_enabled and offered.instances:
                yield from _instances(machine, one, offering, own, is_now=one is gpu)


def _whole(machine: Machine, gpu: Gpu, offering: Offering, links: Object, *, is_now: bool) -> DeviceEntry:
    # A default must be a multiple of the step, so a remainder below 1Mi is not offered.
    memory = canonical((gpu.memory_bytes or 0) // MIB * MIB)
    shares = offering.of_card(gpu).shares
    by_mps = "mps" in (shares.allowed or ())
    return DeviceEntry(
        gpu.name,
        gpu,
        attributes={
            **_gpu_attributes(machine, gpu),
            names.ATTR_TYPE: names.TYPE_GPU,
            names.ATTR_UUID: gpu.uuid,
            names.ATTR_MINOR: gpu.minor,
            names.ATTR_DRIVER_VERSION_TEXT: machine.driver_version,
            names.ATTR_NVLINK_DOMAIN: nvlink_domains(machine).get(gpu.location.bus_id),
            names.ATTR_CLIQUE: clique(machine) if gpu.fabric else None,
            **links,
            **shares.attributes(),
            names.ATTR_MPS_SHARED: True if by_mps and offering.mps_shared else None,
            names.ATTR_MPS_PROTOCOL: offering.mps_protocol if by_mps else None,
        },
        capacity={
            names.CAPACITY_MEMORY: capacity(memory, default=memory, least="1Mi", step="1Mi"),
            names.CAPACITY_CORES: capacity("100", default="0", least="0", step="1"),
            names.CAPACITY_SLOTS: capacity(str(offering.slots_per_gpu), default="1", least="1", step="1"),
        },
        shared=True,
        consumes=(gpu.name, gpu_counters(gpu) if offering.mig else {}),
        is_now=is_now,
    )


def _instances(
    machine: Machine, gpu: Gpu, offering: Offering, own: Collection[str] | None, *, is_now: bool
) -> Iterator[DeviceEntry]:
    on_demand = offering.mig_on_demand
    for part in mig_devices(gpu, on_demand=on_demand, own=own if on_demand else None):
        yield DeviceEntry(
            part.name,
            gpu,
            attributes={
                **_gpu_attributes(machine, gpu),
                names.ATTR_TYPE: names.TYPE_MIG,
                # One that is made on demand has another one each time.
                names.ATTR_UUID: part.instance.uuid if part.instance and not on_demand else None,
                names.ATTR_PARENT: gpu.name,
                names.ATTR_PROFILE: part.profile.name,
                names.ATTR_PLACEMENT_START: part.start,
            },
            capacity=part.capacity,
            consumes=(gpu.name, part.counters),
            is_now=is_now,
        )


def _gpu_attributes(machine: Machine, gpu: Gpu) -> Object:
    cuda = machine.cuda_version
    return {
        names.ATTR_MODEL: gpu_model(gpu.product_name) if gpu.product_name else None,
        names.ATTR_PRODUCT_NAME: gpu.product_name,
        names.ATTR_ARCHITECTURE: gpu.architecture,
        names.ATTR_DRIVER_VERSION: version(machine.driver_version),
        names.ATTR_CUDA_DRIVER_VERSION: Version(cuda_semver(cuda)) if cuda else None,
        names.ATTR_CUDA_COMPUTE_CAPABILITY: version(gpu.compute_capability),
        **gpu.location.attributes(),
    }


def _nics(machine: Machine, offering: Offering) -> Iterator[DeviceEntry]:
    """Each PF that is certain, and with ``vfs`` its virtual functions, by their number."""
    vfs = offering.vfs
    rail_numbers = rails(machine)
    counts = function_counts(machine) if vfs else {}
    children: dict[str | None, list[Nic]] = {}
    for vf in sorted(machine.vfs, key=lambda vf: vf.vf_index or 0) if vfs else ():
        if vf.publishable and vf.vf_index is not None:
            children.setdefault(vf.parent, []).append(vf)
    for nic in machine.nics:
        bus_id = nic.location.bus_id
        rail = rail_numbers.get(bus_id)
        offered = {names.CAPACITY_SHARE: capacity("100", default="100", least="1", step="1")}
        if nic.port and nic.port.rate_gbps:
            rate = f"{nic.port.rate_gbps}G"
            offered[names.CAPACITY_BANDWIDTH] = capacity(rate, default="0", least="0", step="1M")
        if nic.publishable:
            yield DeviceEntry(
                nic.name,
                nic,
                attributes={
                    **_nic_attributes(nic, rail=rail, offering=offering),
                    names.ATTR_TYPE: names.TYPE_NIC,
                },
                capacity=offered,
                shared=True,
                consumes=(nic.name, {FUNCTIONS: counts[bus_id]} if bus_id in counts else {}),
            )
        for vf in children.get(bus_id, ()):
            yield DeviceEntry(
                vf.name,
                vf,
                attributes={
                    **_nic_attributes(vf, rail=rail, offering=offering),
                    names.ATTR_MODEL: nic_model(nic.vendor, nic.device_id),
                    names.ATTR_TYPE: names.TYPE_VF,
                    names.ATTR_PARENT: nic.name,
                },
                consumes=(nic.name, {FUNCTIONS: 1}),
            )


def _nic_attributes(nic: Nic, *, rail: int | None, offering: Offering) -> Object:
    port = nic.port
    return {
        names.ATTR_UUID: nic.guid,
        names.ATTR_MODEL: nic_model(nic.vendor, nic.device_id),
        names.ATTR_IB_DEVICE: nic.ib_device,
        names.ATTR_NETDEV: nic.netdev,
        names.ATTR_LINK_LAYER: port.link_layer if port else None,
        names.ATTR_RATE_GBPS: port.rate_gbps if port else None,
        names.ATTR_RAIL: rail,
        **cni_attributes(nic, rail=rail, resources=offering.cni),
        **nic.location.attributes(),
    }

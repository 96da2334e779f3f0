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
nic        bandwidth                   bits per second, default 0: not reserved; left out while the link is down
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from koordra.api import names
from koordra.api.kinds import RESOURCE_SLICES
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.kubelet_plugin.publish.devices import (
    FUNCTIONS,
    MigDevice,
    Mode,
    Version,
    capacity,
    consumption,
    counter_sets,
    document,
    function_counts,
    gpu_counters,
    location_attributes,
    mig_devices,
    unhealthy,
    version,
    virtual_functions,
)
from koordra.quantity import canonical
from koordra.topology.fabrics import nvlink_domains, published_links, rails
from koordra.topology.machine import Gpu, Machine, Nic, inferred_attribute
from koordra.topology.product_names import cuda_semver, gpu_model, nic_model

DEVICES_PER_SLICE = 64
COUNTER_SETS_PER_SLICE = 8
_LONGEST_NAME = 253
_MIB = 1 << 20


def build_slices(
    machine: Machine,
    *,
    node_name: str,
    node_uid: str | None,
    mode: Mode,
    slots_per_gpu: int = 16,
    generation: int,
    mig: bool = False,
    mig_placements: bool = False,
    vfs: bool = False,
    isolation: IsolationPolicy | None = None,
) -> list[dict[str, Any]]:
    """The node's ResourceSlices at this generation; one empty slice if there is nothing to offer.

    ``mode`` "joint" keeps kube-scheduler's allocator away (taint and ``allocator`` attribute), "native"
    leaves the devices to it. With ``node_uid`` the Node owns the slices, so that they go when it goes.
    ``mig`` publishes the instances of cards in MIG mode, ``mig_placements`` also those that could still be
    made (for a node that makes them when they are prepared), ``vfs`` the virtual functions of NICs.
    ``isolation`` is the policy of GPU shares (None: not published).
    """
    devices = build_devices(
        machine,
        mode=mode,
        slots_per_gpu=slots_per_gpu,
        mig=mig,
        mig_placements=mig_placements,
        vfs=vfs,
        isolation=isolation,
    )
    sets = counter_sets(_counter_sets(machine, mig=mig, vfs=vfs))
    bodies: list[dict[str, Any]] = [{"devices": part} for part in _parts(devices, DEVICES_PER_SLICE) or [[]]]
    bodies += [{"sharedCounters": part} for part in _parts(sets, COUNTER_SETS_PER_SLICE)]
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": _metadata(index, node_name=node_name, node_uid=node_uid),
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node_name,
                "pool": {"name": node_name, "generation": generation, "resourceSliceCount": len(bodies)},
                **body,
            },
        }
        for index, body in enumerate(bodies)
    ]


def _parts(items: list[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def next_generation(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> int:
    """The generation that ``new`` must be published with to follow ``old``, the pool's slices as they are.

    The generation of ``old`` if its content is the same (it is then complete, and nothing is written);
    otherwise one more than the highest, 1 for the first.
    """
    generations = set(map(generation_of, old))
    if len(generations) == 1 and _content(old) == _content(new):
        return generations.pop()
    return max(generations, default=0) + 1


def generation_of(one: Mapping[str, Any]) -> int:
    return int(((one.get("spec") or {}).get("pool") or {}).get("generation") or 0)


def _content(slices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of slices without their generation, by name, and without the time that the API server adds
    to taints."""
    return {
        one["metadata"]["name"]: (
            {"devices": [], **one["spec"], "pool": {**one["spec"]["pool"], "generation": 0}},
            [owner.get("uid") for owner in one["metadata"].get("ownerReferences", ())],
        )
        for one in with_devices(slices, _undated)
    }


def _undated(device: dict[str, Any]) -> dict[str, Any]:
    return {**device, "taints": [{**taint, "timeAdded": None} for taint in (device.get("taints") or ())]}


def with_devices(
    slices: Sequence[Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {**one, "spec": {**one["spec"], "devices": [change(device) for device in one["spec"]["devices"]]}}
        if one["spec"].get("devices")
        else one
        for one in slices
    ]


def build_devices(
    machine: Machine,
    *,
    mode: Mode,
    slots_per_gpu: int = 16,
    mig: bool = False,
    mig_placements: bool = False,
    vfs: bool = False,
    isolation: IsolationPolicy | None = None,
) -> list[dict[str, Any]]:
    """The devices alone, in the order in which they are published."""
    domains, links = nvlink_domains(machine), published_links(machine.gpus)
    rail_numbers = rails(machine)
    counts = function_counts(machine) if vfs else {}
    published: list[dict[str, Any]] = []
    for gpu in machine.gpus:
        if gpu.publishable:
            bus_id = gpu.location.bus_id
            published.append(
                _gpu(
                    machine,
                    gpu,
                    mode=mode,
                    more={
                        names.ATTR_NVLINK_DOMAIN: domains.get(bus_id),
                        **links.get(bus_id, {}),
                        **(isolation.attributes() if isolation else {}),
                    },
                    slots=slots_per_gpu,
                    counted=mig,
                )
            )
        elif mig:
            published += [
                _mig(machine, part, mode=mode) for part in mig_devices(gpu, placements=mig_placements)
            ]
    children: dict[str, list[Nic]] = {}
    for vf, parent in virtual_functions(machine) if vfs else ():
        children.setdefault(parent.location.bus_id, []).append(vf)
    for nic in machine.nics:
        rail, count = rail_numbers.get(nic.location.bus_id), counts.get(nic.location.bus_id, 0)
        if nic.publishable:
            published.append(_nic(nic, mode=mode, rail=rail, functions=count))
        published += [_vf(vf, nic, mode=mode, rail=rail) for vf in children.get(nic.location.bus_id, ())]
    return published


def _counter_sets(machine: Machine, *, mig: bool, vfs: bool) -> Iterator[tuple[str, Mapping[str, int]]]:
    if mig:
        yield from ((gpu.name, gpu_counters(gpu)) for gpu in machine.gpus if gpu.certain)
    if vfs:
        counts = function_counts(machine)
        for nic in machine.nics:
            if nic.location.bus_id in counts:
                yield nic.name, {FUNCTIONS: counts[nic.location.bus_id]}


def _metadata(index: int, *, node_name: str, node_uid: str | None) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
    return {"name": _slice_name(index, node_name), **({"ownerReferences": [owner]} if node_uid else {})}


def _slice_name(index: int, node_name: str) -> str:
    """Listed by name, slices come in the order of their devices. A node name that is too long ends in its
    digest."""
    name = f"{index:05x}-{names.DRIVER}-{node_name}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - len(digest) - 1].rstrip('.-')}-{digest}"


def _gpu(
    machine: Machine, gpu: Gpu, *, mode: Mode, more: Mapping[str, Any], slots: int, counted: bool
) -> dict[str, Any]:
    # A default must be a multiple of the step, so a remainder below 1Mi is not offered.
    memory = canonical((gpu.memory_bytes or 0) // _MIB * _MIB)
    counters = gpu_counters(gpu) if counted else {}
    return document(
        gpu.name,
        mode=mode,
        attributes={
            **_gpu_attributes(machine, gpu),
            names.ATTR_TYPE: names.TYPE_GPU,
            names.ATTR_UUID: gpu.uuid,
            names.ATTR_MINOR: gpu.minor,
            names.ATTR_DRIVER_VERSION_TEXT: machine.driver_version,
            **more,
        },
        capacity={
            names.CAPACITY_MEMORY: capacity(memory, default=memory, least="1Mi", step="1Mi"),
            names.CAPACITY_CORES: capacity("100", default="0", least="0", step="1"),
            names.CAPACITY_SLOTS: capacity(str(slots), default="1", least="1", step="1"),
        },
        shared=True,
        reason=unhealthy(gpu),
        consumes=consumption(gpu.name, counters) if counters else None,
    )


def _gpu_attributes(machine: Machine, gpu: Gpu) -> dict[str, Any]:
    cuda = machine.cuda_version
    return {
        names.ATTR_MODEL: gpu_model(gpu.product_name) if gpu.product_name else None,
        names.ATTR_PRODUCT_NAME: gpu.product_name,
        names.ATTR_ARCHITECTURE: gpu.architecture,
        names.ATTR_DRIVER_VERSION: version(machine.driver_version),
        names.ATTR_CUDA_DRIVER_VERSION: Version(cuda_semver(cuda)) if cuda else None,
        names.ATTR_CUDA_COMPUTE_CAPABILITY: version(gpu.compute_capability),
        names.ATTR_INFERRED: inferred_attribute(gpu),
        **location_attributes(gpu.location),
    }


def _mig(machine: Machine, part: MigDevice, *, mode: Mode) -> dict[str, Any]:
    return document(
        part.name,
        mode=mode,
        attributes={
            **_gpu_attributes(machine, part.gpu),
            names.ATTR_TYPE: names.TYPE_MIG,
            names.ATTR_UUID: part.instance.uuid if part.instance else None,
            names.ATTR_PARENT: part.gpu.name,
            names.ATTR_PROFILE: part.profile.name,
            names.ATTR_PLACEMENT_START: part.start,
        },
        capacity=part.capacity,
        shared=False,
        reason=unhealthy(part.gpu),
        consumes=consumption(part.gpu.name, part.counters),
    )


def _nic(nic: Nic, *, mode: Mode, rail: int | None, functions: int) -> dict[str, Any]:
    offered = {names.CAPACITY_SHARE: capacity("100", default="100", least="1", step="1")}
    if nic.port and nic.port.rate_gbps:
        offered[names.CAPACITY_BANDWIDTH] = capacity(
            f"{nic.port.rate_gbps}G", default="0", least="0", step="1M"
        )
    return document(
        nic.name,
        mode=mode,
        attributes={**_nic_attributes(nic, rail=rail), names.ATTR_TYPE: names.TYPE_NIC},
        capacity=offered,
        shared=True,
        reason=unhealthy(nic),
        consumes=consumption(nic.name, {FUNCTIONS: functions}) if functions else None,
    )


def _vf(vf: Nic, parent: Nic, *, mode: Mode, rail: int | None) -> dict[str, Any]:
    return document(
        vf.name,
        mode=mode,
        attributes={
            **_nic_attributes(vf, rail=rail),
            names.ATTR_MODEL: nic_model(parent.vendor, parent.device_id),
            names.ATTR_TYPE: names.TYPE_VF,
            names.ATTR_PARENT: parent.name,
        },
        capacity={},
        shared=False,
        reason=unhealthy(vf),
        consumes=consumption(parent.name, {FUNCTIONS: 1}),
    )


def _nic_attributes(nic: Nic, *, rail: int | None) -> dict[str, Any]:
    port = nic.port
    return {
        names.ATTR_UUID: nic.guid,
        names.ATTR_MODEL: nic_model(nic.vendor, nic.device_id),
        names.ATTR_IB_DEVICE: nic.ib_device,
        names.ATTR_NETDEV: nic.netdev,
        names.ATTR_LINK_LAYER: port.link_layer if port else None,
        names.ATTR_RATE_GBPS: port.rate_gbps if port else None,
        names.ATTR_RAIL: rail,
        names.ATTR_INFERRED: inferred_attribute(nic),
        **location_attributes(nic.location),
    }

"""The device nodes of a machine that the NRI hook guards, as ``guarded.json`` holds them.

{"schema", "node", "devices": [{"name", "type": gpu|nic, "nodes": [{"path", "type", "major", "minor"}]}],
 "control": [node, ...]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koordra.api import names
from koordra.kubelet_plugin import partitions
from koordra.topology.machine import Device, DeviceNode, Gpu, Machine

GUARDED_SCHEMA = "koordra.io/guarded/v1"


def guarded(machine: Machine, *, node_name: str) -> dict[str, Any]:
    """Every device node that belongs to a GPU or NIC, offered or not, as ``guarded.json`` holds it.

    A device's first node is what a holder is given; the others (DRM, umad, issm) are given to nobody. A MIG instance
    has its two capability nodes; what partitions cards, and sub-functions of NICs, are entries that nobody holds.
    ``control`` nodes are open to any holder of a GPU or NIC.
    """
    entries = [
        _entry(device.name, names.TYPE_GPU if isinstance(device, Gpu) else names.TYPE_NIC, _nodes(device))
        for device in machine.devices()
    ]
    entries += [
        _entry(_instance_name(gpu, index), names.TYPE_GPU, instance.nodes)
        for gpu in machine.gpus
        for index, instance in enumerate(gpu.mig_instances)
        if instance.nodes
    ]
    if machine.gpu_management:
        entries.append(_entry("gpu-management", names.TYPE_GPU, machine.gpu_management))
    entries += [
        _entry(
            f"{names.pci_device_name(names.TYPE_NIC, part.location.bus_id)}-{part.name}",
            names.TYPE_NIC,
            part.nodes,
        )
        for part in machine.sub_functions
        if part.nodes
    ]
    return {
        "schema": GUARDED_SCHEMA,
        "node": node_name,
        "devices": entries,
        "control": [node.to_dict() for node in (*machine.gpu_control, *machine.rdma_control)],
    }


def _instance_name(gpu: Gpu, index: int) -> str:
    """The published name of an instance, or one of its own where its profile is not known."""
    instance = gpu.mig_instances[index]
    device = next((each for each in partitions.mig_devices(gpu) if each.instance == instance), None)
    return device.name if device else f"{gpu.name}-mig-instance-{instance.gpu_instance}"


def _entry(name: str, kind: str, nodes: Sequence[DeviceNode]) -> dict[str, Any]:
    return {"name": name, "type": kind, "nodes": [node.to_dict() for node in nodes]}


def _nodes(device: Device) -> list[DeviceNode]:
    if isinstance(device, Gpu):
        return [node for node in (device.node, *device.graphics_nodes) if node]
    return [node for node in (device.verbs, *device.management_nodes) if node]

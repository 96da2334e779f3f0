"""guarded.json, kept as the machine is: the device nodes that the NRI hook keeps from containers without a claim.

It is written before a new device is published, and only when it says something new, so that a full disk does not keep a
fault from being published.

A device that went away stays guarded: nobody removes /dev/nvidia3 when card 3 falls off the bus or the driver is reloaded, and
what a container may open is decided once, when it starts. One that starts while the card is away must not have it when it
is back. An old node is forgotten when another device has its numbers, and with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from koordra.api import names
from koordra.errors import CheckpointError
from koordra.kubelet_plugin import prepared
from koordra.kubelet_plugin.publish import partitions
from koordra.node_state.disk import Disk
from koordra.topology.machine import Device, DeviceNode, Gpu, Machine

Document = Mapping[str, Any]


class GuardedFile:
    """The file at `path`. Safe to call from several threads."""

    def __init__(self, path: Path, *, node: str, disk: Disk) -> None:
        self._path = path
        self._node = node
        self._disk = disk
        self._lock = threading.Lock()
        self._written: Document | None = None

    def hold(self, machine: Machine) -> None:
        """Guard what the machine has. Raises CheckpointError, after which the call is to be repeated."""
        with self._lock:
            document: Document = guarded(machine, node_name=self._node)
            if self._written is not None:
                document = with_absent(document, self._written)
            if document != self._written:
                self._write(document)

    def ensure(self) -> None:
        """Write it again if somebody took it away. Raises CheckpointError."""
        with self._lock:
            if self._written is not None and not self._path.exists():
                self._write(self._written)

    def _write(self, document: Document) -> None:
        try:
            self._disk.replace(self._path, prepared.encode_guarded(document), mode=prepared.MODE)
        except OSError as error:
            raise CheckpointError(
                f"{self._path} cannot be written: {error.strerror}; check the state directory"
            ) from error
        self._written = document


def with_absent(now: Document, before: Document) -> Document:
    """`now`, and the device nodes of `before` whose numbers no device or control node has any more."""
    present = {_number(node) for entry in now["devices"] for node in entry["nodes"]}
    present |= {_number(node) for node in now["control"]}
    entries = {entry["name"]: entry for entry in now["devices"]}
    for name, kind, node in _device_nodes(before):
        if _number(node) not in present:
            entry = entries.get(name, {"name": name, "type": kind, "nodes": []})
            entries[name] = {**entry, "nodes": [*entry["nodes"], node]}
    return {**now, "devices": list(entries.values())}


def _device_nodes(document: Document) -> Iterator[tuple[str, str, Document]]:
    return ((entry["name"], entry["type"], node) for entry in document["devices"] for node in entry["nodes"])


def _number(node: Document) -> tuple[str, int, int]:
    return node["type"], node["major"], node["minor"]


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

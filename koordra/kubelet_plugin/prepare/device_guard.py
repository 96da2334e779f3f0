"""Keeps guarded.json as the machine is: the device nodes that the NRI hook denies to containers without a
claim.

It is written before a new device is published, and only when its content changes, so that a full disk does
not keep a fault from being published.

A device that went away stays guarded: /dev/nvidia3 remains when card 3 falls off the bus or the driver is
reloaded, and a container's device rules are fixed when it starts. A container that starts while the card is
away must not be able to open it later. An old node is dropped when another device has its numbers, and when
the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from koordra.api import names
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.publish import partitions
from koordra.node_state import layout, prepared_claim
from koordra.node_state.disk import Disk
from koordra.node_state.prepared_claim import DeviceGuard, GuardedDevice
from koordra.topology.machine import Device, DeviceNode, Gpu, Machine


class DeviceGuardFile:
    """The file at `path`. Safe to call from several threads."""

    def __init__(self, path: Path, *, node: str, disk: Disk) -> None:
        self._path = path
        self._node = node
        self._disk = disk
        self._lock = threading.Lock()
        self._written: DeviceGuard | None = None

    def update(self, machine: Machine) -> None:
        """Write the guard of this machine if it changed. Raises CheckpointError; the call is to be
        repeated."""
        with self._lock:
            guard = guard_of(machine, node_name=self._node)
            if self._written is not None:
                guard = with_absent(guard, self._written)
            if guard != self._written:
                self._write(guard)

    def ensure(self) -> None:
        """Rewrite the file if it is missing. Raises CheckpointError."""
        with self._lock:
            if self._written is not None and not self._path.exists():
                self._write(self._written)

    def _write(self, guard: DeviceGuard) -> None:
        try:
            self._disk.replace(self._path, prepared_claim.encode_guard(guard), mode=layout.MODE)
        except OSError as error:
            raise CheckpointError(
                f"{self._path} cannot be written: {error.strerror}; check the state directory"
            ) from error
        self._written = guard


def with_absent(now: DeviceGuard, before: DeviceGuard) -> DeviceGuard:
    """`now`, and the device nodes of `before` whose numbers no device or control node has any more."""
    present = {node.number for node in now.nodes}
    devices = {device.name: device for device in now.devices}
    for device in before.devices:
        absent = tuple(node for node in device.nodes if node.number not in present)
        if absent:
            known = devices.get(device.name, GuardedDevice(device.name, device.type, ()))
            devices[device.name] = replace(known, nodes=(*known.nodes, *absent))
    return replace(now, devices=tuple(devices.values()))


def guard_of(machine: Machine, *, node_name: str) -> DeviceGuard:
    """Every device node that belongs to a GPU or NIC, offered or not.

    A device's first node is what a holder is given; the others (DRM, umad, issm) are given to nobody. A MIG
    instance has its two capability nodes; what partitions cards, and sub-functions of NICs, are entries that
    nobody holds.
    """
    devices = [
        GuardedDevice(
            device.name, names.TYPE_GPU if isinstance(device, Gpu) else names.TYPE_NIC, _nodes(device)
        )
        for device in machine.devices()
    ]
    devices += [
        GuardedDevice(_instance_name(gpu, index), names.TYPE_GPU, instance.nodes)
        for gpu in machine.gpus
        for index, instance in enumerate(gpu.mig_instances)
        if instance.nodes
    ]
    if machine.gpu_management:
        devices.append(GuardedDevice("gpu-management", names.TYPE_GPU, machine.gpu_management))
    devices += [
        GuardedDevice(
            f"{names.pci_device_name(names.TYPE_NIC, part.location.bus_id)}-{part.name}",
            names.TYPE_NIC,
            part.nodes,
        )
        for part in machine.sub_functions
        if part.nodes
    ]
    return DeviceGuard(
        node=node_name, devices=tuple(devices), control=(*machine.gpu_control, *machine.rdma_control)
    )


def _instance_name(gpu: Gpu, index: int) -> str:
    """The published name of an instance, or one of its own where its profile is not known."""
    instance = gpu.mig_instances[index]
    device = next((each for each in partitions.mig_devices(gpu) if each.instance == instance), None)
    return device.name if device else f"{gpu.name}-mig-instance-{instance.gpu_instance}"


def _nodes(device: Device) -> tuple[DeviceNode, ...]:
    nodes: Sequence[DeviceNode | None]
    if isinstance(device, Gpu):
        nodes = (device.node, *device.graphics_nodes)
    else:
        nodes = (device.verbs, *device.management_nodes)
    return tuple(node for node in nodes if node)

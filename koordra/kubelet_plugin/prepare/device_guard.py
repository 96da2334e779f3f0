"""Keeps guarded.json as the machine is: the device nodes that the NRI hook denies to containers without a
claim.

It is written before a new device is published, and only when its content changes, so that a full disk does
not keep a fault from being published.

A device that went away stays guarded: /dev/nvidia3 remains when card 3 falls off the bus or the driver is
reloaded, and a container's device rules are fixed when it starts. A container that starts while the card is
away must not be able to open it later. An old node is dropped when another device has its numbers, and when
the process ends.

What another stack gives out on the node is not guarded (`leave`, publish/hand_over.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from koordra.api import names
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.node_state import layout, prepared_claim
from koordra.node_state.disk import Disk, reported
from koordra.node_state.prepared_claim import DeviceGuard, GuardedDevice
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Machine


class DeviceGuardFile:
    """The file at `path`. Safe to call from several threads."""

    def __init__(self, path: Path, *, node: str, disk: Disk) -> None:
        self._path = path
        self._node = node
        self._disk = disk
        self._lock = threading.Lock()
        self._written: DeviceGuard | None = None
        self._machine: Machine | None = None
        self._left: frozenset[str] = frozenset()

    def update(self, machine: Machine) -> None:
        """Write the guard of this machine if changed. Raises CheckpointError; the call is to be repeated."""
        with self._lock:
            self._machine = machine
            self._update(self._left)

    def add(self, device: GuardedDevice) -> None:
        """Guard also this one, which is there since just now; the next reading of the machine shows it.
        Raises CheckpointError."""
        with self._lock:
            before = self._written
            if before is not None and device not in before.devices:
                others = tuple(each for each in before.devices if each.name != device.name)
                self._write(with_absent(replace(before, devices=(*others, device)), before))

    def leave(self, types: frozenset[str]) -> None:
        """Guard all but the devices of these types (gpu, nic) from now on. Raises CheckpointError, and then
        guards as before."""
        with self._lock:
            if types != self._left:
                self._update(types)
                self._left = types

    def _update(self, left: frozenset[str]) -> None:
        if self._machine is None:
            return
        guard = guard_of(self._machine, node_name=self._node)
        if self._written is not None:
            guard = with_absent(guard, self._written)
        guard = without(guard, left)
        if guard != self._written:
            self._write(guard)

    def ensure(self) -> None:
        """Rewrite the file if it is missing. Raises CheckpointError."""
        with self._lock:
            if self._written is not None and not self._path.exists():
                self._write(self._written)

    def _write(self, guard: DeviceGuard) -> None:
        with reported(CheckpointError, self._path, "written", remedy="check the state directory"):
            self._disk.replace(self._path, prepared_claim.encode_guard(guard), mode=layout.MODE)
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


def without(guard: DeviceGuard, left: frozenset[str]) -> DeviceGuard:
    """The guard less the devices of these types. IMEX channels go with GPUs."""

    def stays(kind: str) -> bool:
        return (names.TYPE_NIC if kind == names.TYPE_NIC else names.TYPE_GPU) not in left

    def is_nic(node: DeviceNode) -> bool:
        return node.path.startswith("/dev/infiniband/")

    return replace(
        guard,
        devices=tuple(device for device in guard.devices if stays(device.type)),
        control=tuple(
            node for node in guard.control if stays(names.TYPE_NIC if is_nic(node) else names.TYPE_GPU)
        ),
        left=tuple(sorted(left)),
    )


def guard_of(machine: Machine, *, node_name: str) -> DeviceGuard:
    """Every device node that belongs to a GPU or NIC, offered or not.

    A device's first node is what a holder is given; the others (DRM, umad, issm) are given to nobody. A MIG
    instance has its two capability nodes; IMEX channels are one device; what partitions cards, and
    sub-functions of NICs, are entries that nobody holds.
    """
    nodes: list[tuple[str, str, Iterable[DeviceNode | None]]] = [
        (gpu.name, names.TYPE_GPU, (gpu.node, *gpu.graphics_nodes)) for gpu in machine.gpus
    ]
    nodes += [
        (nic.name, names.TYPE_NIC, (nic.verbs, *nic.management_nodes))
        for nic in (*machine.nics, *machine.vfs)
    ]
    for gpu in machine.gpus:
        published = {each.instance: each.name for each in mig_devices(gpu)}
        for instance in filter(lambda each: each.nodes, gpu.mig_instances):
            # One whose profile is not known is not published, and has a name of its own.
            name = published.get(instance, f"{gpu.name}-mig-instance-{instance.gpu_instance}")
            nodes.append((name, names.TYPE_GPU, instance.nodes))
    if machine.gpu_management:
        nodes.append(("gpu-management", names.TYPE_GPU, machine.gpu_management))
    if machine.imex is not None:
        nodes.append((names.IMEX_DEVICE, names.TYPE_IMEX, machine.imex.all))
    for part in filter(lambda each: each.nodes, machine.sub_functions):
        name = f"{names.pci_device_name(names.TYPE_NIC, part.location.bus_id)}-{part.name}"
        nodes.append((name, names.TYPE_NIC, part.nodes))
    return DeviceGuard(
        node=node_name,
        devices=tuple(GuardedDevice(name, kind, tuple(filter(None, each))) for name, kind, each in nodes),
        control=(*machine.gpu_control, *machine.rdma_control),
    )

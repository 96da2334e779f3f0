"""The container edits of each device of a claim. Pure.

Per device: its own nodes (of a MIG instance the card's and two capability nodes), `KOORDRA_DEVICE_<UID>_<n>`
with its name, the edits of the isolation backend, and for a NIC whose interface is moved into the pod the
mounts that keep the container from starting without it (network/network_gate.py). Per request: the nodes and
files that every holder of such a device needs (nvidiactl, nvidia-uvm and the driver's libraries for a GPU,
rdma_cm for a NIC), the device metadata, and the variables by which CUDA, NCCL and UCX use only the given
devices:

    CUDA_VISIBLE_DEVICES   UUIDs of the request's GPUs or MIG instances in claim order
    NCCL_IB_HCA            "=mlx5_0:1,mlx5_3:1"   ("=": exact names, since mlx5_1 is a prefix of mlx5_10)
    UCX_NET_DEVICES        "mlx5_0:1,mlx5_3:1"
    NCCL_TOPO_FILE         the claim's topology file, if it has one (container_files.py)

The kubelet gives a container either all devices of a request or none. So edits that a request needs once are
on its first device, and its variables are on each with the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from koordra.api import names
from koordra.kubelet_plugin.cdi.container_files import main_request, metadata_edits, topology_edits
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.claims.container_edits import NO_EDITS, ContainerEdits
from koordra.kubelet_plugin.isolation.limiter.backend import override_driver_mounts
from koordra.kubelet_plugin.network import network_gate
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.node_state.claim_ref import environment_name
from koordra.topology.machine import Nic


def with_edits(
    record: ClaimRecord,
    *,
    inventory: Inventory,
    isolation: Sequence[ContainerEdits],
    state: Path,
    own_users: bool = False,
) -> ClaimRecord:
    """The record with every device's edits; `isolation` holds what the backends add, device by device.
    `state` is the directory whose files are mounted; `own_users`: a pod of the claim has a user namespace of
    its own."""
    requests: dict[str, list[DeviceRecord]] = {}
    for device in record.devices:
        requests.setdefault(main_request(device), []).append(device)
    topology = topology_edits(record, inventory=inventory, state=state)
    devices = []
    for index, device in enumerate(record.devices):
        siblings = requests[main_request(device)]
        edits = ContainerEdits(
            env=((f"KOORDRA_DEVICE_{environment_name(record.ref.uid)}_{index}", device.device),),
            device_nodes=device.nodes,
        )
        edits += _environment(siblings, inventory=inventory)
        if device.network is not None:
            edits += ContainerEdits(mounts=(network_gate.gate(state, record.ref.uid),))
            if device.network.host_interface and not own_users:
                gate = network_gate.interface_gate(record.ref.uid, device.network.interface)
                edits += ContainerEdits(mounts=(gate,))
        if device is siblings[0]:
            edits += _needed_once(siblings, inventory=inventory) + topology
            edits += metadata_edits(record, main_request(device), state=state)
        devices.append(replace(device, edits=edits + isolation[index]))
    arranged = override_driver_mounts([device.edits for device in devices], isolation=isolation)
    return replace(record, devices=tuple(map(_with, devices, arranged)))


def _with(device: DeviceRecord, edits: ContainerEdits) -> DeviceRecord:
    return replace(device, edits=edits)


def _environment(devices: Sequence[DeviceRecord], *, inventory: Inventory) -> ContainerEdits:
    uuids = list(dict.fromkeys(device.uuid for device in devices if device.uuid))
    ports = list(
        dict.fromkeys(
            f"{device.ib_device}:{_port(device, inventory)}"
            for device in devices
            if device.type in names.NIC_TYPES
        )
    )
    env: list[tuple[str, str]] = []
    if uuids:
        env.append(("CUDA_VISIBLE_DEVICES", ",".join(uuids)))
    if ports:
        env += [("NCCL_IB_HCA", f"={','.join(ports)}"), ("UCX_NET_DEVICES", ",".join(ports))]
    return ContainerEdits(env=tuple(env))


def _port(device: DeviceRecord, inventory: Inventory) -> int:
    nic = inventory.device(device.device)
    return nic.port.number if isinstance(nic, Nic) and nic.port else 1


def _needed_once(devices: Sequence[DeviceRecord], *, inventory: Inventory) -> ContainerEdits:
    types = {device.type for device in devices}
    edits = NO_EDITS
    if types & names.GPU_TYPES:
        edits += ContainerEdits(device_nodes=inventory.machine.gpu_control, mounts=inventory.driver_files)
    if types & names.NIC_TYPES:
        edits += ContainerEdits(device_nodes=inventory.machine.rdma_control)
    return edits

"""The container edits of each device of a claim. Pure.

Per device: its own nodes (of a MIG instance the card's and two capability nodes), `KOORDRA_DEVICE_<UID>_<n>`
with its name, the edits of the isolation backend, and for a NIC whose interface is moved into the pod the
mounts that keep the container from starting without it (network/network_decision.py). Per request: the nodes
and files that every holder of such a device needs (nvidiactl, nvidia-uvm and the driver's libraries for a
GPU, rdma_cm for a NIC), the device metadata, and the variables by which CUDA, NCCL and UCX use only the given
devices:

    CUDA_VISIBLE_DEVICES   UUIDs of the request's GPUs or MIG instances in claim order
    NCCL_IB_HCA            "=mlx5_0:1,mlx5_3:1"   ("=": exact names, since mlx5_1 is a prefix of mlx5_10)
    UCX_NET_DEVICES        "mlx5_0:1,mlx5_3:1"
    NCCL_TOPO_FILE         the claim's topology file, if it has one (container_files.py)

The kubelet gives a container either all devices of a request or none. So edits that a request needs once are
on its first device, and its variables are on each with the same value.

**A gang's member.** The controller writes a `GangMember` into the allocation of every member's claim
(api/opaque/gang_member.py). It becomes

    KOORDRA_GANG, KOORDRA_GANG_SIZE, KOORDRA_RANK        name of the gang, number of its members, this one's
                                                         rank
    KOORDRA_GANG_NODES, KOORDRA_NODE_RANK                number of nodes, and which of them this is, in rank
                                                         order
    KOORDRA_LOCAL_SIZE, KOORDRA_LOCAL_RANK               among the gang's members on this node
    KOORDRA_ZONE, _CORE, _SPINE, _BLOCK, _NVLINK         the known topology domains
    KOORDRA_RAILS                                        "0,1": rails of the member's NICs
    KOORDRA_LEADER                                       host of rank 0, for rendezvous
    KOORDRA_HOSTS                                        "host:gpus,host:gpus", by rank
    KOORDRA_HOSTFILE                                     a file with a line "host slots=gpus" per member, by
                                                         rank

None of them is a launcher's own variable (RANK, MASTER_ADDR, OMPI_*): what CDI sets would override the
launcher's value. docs/gangs-containers.md says how launchers use them. The file is made from KOORDRA_HOSTS in
the claim's record, so that it can be rewritten at any time.

**A legacy pod.** The claim's label koordra.io/dialect says for which stack its pod was written; its dialect
(koordra.compat) says which variables there are. The values are those of the allocation: the request's share
of each of its cards, in the units of that stack. They are informational: the isolation backend enforces the
share and reads none of them, so a user who sets the label or the variables gains nothing. MIG instances get
none, since their limit is in hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.api.opaque.gang_member import GangMember
from koordra.compat.dialect.allocation import DIALECT_LABEL, Card, Granted, unit_of
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB
from koordra.kubelet_plugin.cdi.container_files import (
    HOSTFILE,
    HOSTS,
    main_request,
    metadata_edits,
    topology_edits,
)
from koordra.kubelet_plugin.claims.claim_record import (
    NO_EDITS,
    ClaimRecord,
    ContainerEdits,
    DeviceRecord,
    Mount,
)
from koordra.kubelet_plugin.isolation.limiter.backend import override_driver_mounts
from koordra.kubelet_plugin.network.network_decision import gates
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_ref import environment_name
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import Pairs
from koordra.quantity import parse
from koordra.topology.machine import Nic


def with_edits(
    record: ClaimRecord,
    *,
    inventory: NodeInventory,
    isolation: Sequence[ContainerEdits],
    files: StateFolder,
    own_users: bool = False,
    member: GangMember | None = None,
) -> ClaimRecord:
    """The record with every device's edits; `isolation` holds what the backends add, device by device.
    `files` are those that are mounted; `own_users`: a pod of the claim has a user namespace of
    its own; `member`: the claim's place in a gang."""
    requests: dict[str, list[DeviceRecord]] = {}
    for device in record.devices:
        requests.setdefault(main_request(device), []).append(device)
    topology = topology_edits(record, inventory=inventory, files=files)
    found = []
    for index, device in enumerate(record.devices):
        siblings = requests[main_request(device)]
        edits = ContainerEdits(
            env=((f"KOORDRA_DEVICE_{environment_name(record.ref.uid)}_{index}", device.device),),
            device_nodes=device.nodes,
        )
        edits += _environment(siblings, inventory=inventory)
        if device.network is not None:
            edits += ContainerEdits(mounts=gates(files, record.ref.uid, device.network, own_users=own_users))
        if device is siblings[0]:
            edits += _needed_once(siblings, inventory=inventory) + topology
            edits += metadata_edits(record, main_request(device), files=files)
        edits += isolation[index]
        if member is not None:
            edits += ContainerEdits(env=variables(member, record.ref.uid))
            if member.hosts and device is siblings[0]:
                hostfile = str(files.claim_folder(record.ref.uid) / HOSTFILE)
                edits += ContainerEdits(mounts=(Mount(hostfile, _in_container(record.ref.uid)),))
        found.append(edits)
    arranged = override_driver_mounts(found, isolation=isolation)
    devices = [replace(device, edits=edits) for device, edits in zip(record.devices, arranged, strict=True)]
    return replace(record, devices=tuple(devices))


def _environment(devices: Sequence[DeviceRecord], *, inventory: NodeInventory) -> ContainerEdits:
    uuids = list(dict.fromkeys(device.uuid for device in devices if device.uuid))
    ports = list(
        dict.fromkeys(
            f"{device.ib_device}:{_port(device, inventory)}"
            for device in devices
            if device.type in names.NIC_TYPES
        )
    )
    env = [("CUDA_VISIBLE_DEVICES", ",".join(uuids))] if uuids else []
    if ports:
        env += [("NCCL_IB_HCA", f"={','.join(ports)}"), ("UCX_NET_DEVICES", ",".join(ports))]
    return ContainerEdits(env=tuple(env))


def _port(device: DeviceRecord, inventory: NodeInventory) -> int:
    nic = inventory.device(device.device)
    return nic.port.number if isinstance(nic, Nic) and nic.port else 1


def _needed_once(devices: Sequence[DeviceRecord], *, inventory: NodeInventory) -> ContainerEdits:
    types = {device.type for device in devices}
    edits = NO_EDITS
    if types & names.GPU_TYPES:
        edits += ContainerEdits(device_nodes=inventory.machine.gpu_control, mounts=inventory.driver_files)
    if types & names.NIC_TYPES:
        edits += ContainerEdits(device_nodes=inventory.machine.rdma_control)
    return edits


JOB_FOLDER: Final = "/run/koordra.io/job"
_LATER: Final = frozenset({"KOORDRA_RAILS", "KOORDRA_LEADER", HOSTS, "KOORDRA_HOSTFILE"})
"""Reserved: a topology level named "hosts" or "rails" must not set these."""


def variables(member: GangMember, uid: str) -> Pairs:
    found = [
        ("KOORDRA_GANG", member.gang),
        ("KOORDRA_GANG_SIZE", str(member.size)),
        ("KOORDRA_RANK", str(member.rank)),
        ("KOORDRA_GANG_NODES", str(member.nodes)),
        ("KOORDRA_NODE_RANK", str(member.node_rank)),
        ("KOORDRA_LOCAL_SIZE", str(member.local_size)),
        ("KOORDRA_LOCAL_RANK", str(member.local_rank)),
    ]
    own = {name for name, _ in found} | _LATER
    domains = [(f"KOORDRA_{environment_name(level)}", name) for level, name in sorted(member.domains.items())]
    found += [(variable, name) for variable, name in domains if variable not in own]
    if member.rails:
        found.append(("KOORDRA_RAILS", ",".join(member.rails)))
    if member.leader:
        found.append(("KOORDRA_LEADER", member.leader))
    if member.hosts:
        spelled = (f"{host}:{slots}" for host, slots in zip(member.hosts, member.slots, strict=True))
        found += [(HOSTS, ",".join(spelled)), ("KOORDRA_HOSTFILE", _in_container(uid))]
    return tuple(found)


def _in_container(uid: str) -> str:
    return f"{JOB_FOLDER}/{uid}/{HOSTFILE}"


def legacy_edits(
    record: ClaimRecord, claim: Object, *, inventory: NodeInventory
) -> tuple[ContainerEdits, ...]:
    """The edits of each device of the claim; empty for a claim without a dialect."""
    dialect = dialect_named(objects.labels_of(claim).get(DIALECT_LABEL, ""))
    if dialect is None or dialect.environment is None:
        return (NO_EDITS,) * len(record.devices)
    cards: dict[str, list[Card]] = {}
    for device in record.devices:
        found = _card(device, inventory)
        if found is not None:
            cards.setdefault(main_request(device), []).append(found)
    unit = unit_of(objects.annotations_of(claim)) or GIB
    pod = [card for listed in cards.values() for card in listed]
    variables = {
        request: ContainerEdits(env=dialect.environment(Granted(listed, pod, unit)))
        for request, listed in cards.items()
    }
    return tuple(
        variables.get(main_request(device), NO_EDITS) if device.type == names.TYPE_GPU else NO_EDITS
        for device in record.devices
    )


def _card(device: DeviceRecord, inventory: NodeInventory) -> Card | None:
    published = inventory.published.get(device.device)
    if device.type != names.TYPE_GPU or device.admin_access or published is None:
        return None
    capacity = published.capacity.get(names.CAPACITY_MEMORY)
    total = int(capacity.value) if capacity else 0
    consumed = dict(device.consumed) if device.share_id else {}
    memory = int(parse(consumed[names.CAPACITY_MEMORY])) if names.CAPACITY_MEMORY in consumed else total
    minor = inventory.attributes(device.device).get(names.ATTR_MINOR)
    return Card(minor=minor if isinstance(minor, int) else -1, memory=memory, total=total)

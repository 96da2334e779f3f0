"""The container edits of each device of a claim. Pure.

Per device: its own nodes (of a MIG instance the card's and two capability nodes), `KOORDRA_DEVICE_<UID>_<n>`
with its name, the edits of the isolation backend, and for a NIC whose interface is moved into the pod the
mounts that keep the container from starting without it (network/interface_gate.py). Per request: the nodes
and files that every holder of such a device needs (nvidiactl, nvidia-uvm and the driver's libraries for a
GPU, rdma_cm for a NIC), the device metadata, and the variables by which NCCL and UCX use only the given
devices:

    NCCL_IB_HCA            "=mlx5_0:1,mlx5_3:1"   ("=": exact names, since mlx5_1 is a prefix of mlx5_10)
    UCX_NET_DEVICES        "mlx5_0:1,mlx5_3:1"
    NVSHMEM_HCA_LIST       the same
    UCX_CONFIG_DIR         what the class says of the NICs' network, for UCX (network/fabric_files.py)
    NCCL_TOPO_FILE         the claim's topology file, if it has one (container_files.py)

The first three list devices, and a pod may set them itself. CDI would overwrite that, so they are in the
record for the hook and not in the CDI file (claim_spec.py): the hook joins them over the container's claims,
and leaves alone what the pod says of devices that it holds. The next names a folder, and stays as the pod or
its image sets it.

CUDA_VISIBLE_DEVICES is not set. A container has the device nodes of its own cards alone, and CUDA enumerates
what it can open, in the order of the PCI addresses where the cards are alike; a UUID in the variable breaks
programs that take its entries for numbers, as vLLM does. That holds for MIG too: CUDA uses one instance per
process, the first that it can open, so one instance needs no variable, and of several a program chooses by
the UUIDs that `nvidia-smi -L` lists. None of the legacy stacks sets it either: the device plugins of HAMi,
Volcano, Koordinator, Aliyun and gpu-manager write NVIDIA_VISIBLE_DEVICES, which NVIDIA's runtime reads and no
program.

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
    KOORDRA_HOST_RANKS                                   "0,2,3": whose they are, if they do not count from 0
    KOORDRA_HOSTFILE                                     a file with a line "host slots=gpus" per member, by
                                                         rank
    KOORDRA_LOCAL_ADDR                                   "rank-00003": a name that sorts by rank
    KOORDRA_HOSTALIASES                                  a file by which glibc resolves such names

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
from koordra.api.opaque.driver_capabilities import DriverCapabilities
from koordra.api.opaque.gang_member import GangMember
from koordra.compat.dialect.allocation import DIALECT_LABEL, Card, Granted, unit_of
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB
from koordra.kubelet_plugin.cdi.container_files import (
    HOST_RANKS,
    HOSTALIASES,
    HOSTFILE,
    HOSTS,
    LEADER,
    local_address,
    main_request,
    metadata_edits,
    topology_edits,
)
from koordra.kubelet_plugin.cdi.container_hook import container_hook
from koordra.kubelet_plugin.cdi.driver_edits import by_path_nodes, driver_edits
from koordra.kubelet_plugin.cdi.runtime_support import takes_additional_gids
from koordra.kubelet_plugin.claims.claim_record import (
    NO_EDITS,
    ClaimRecord,
    ContainerEdits,
    DeviceRecord,
    Mount,
)
from koordra.kubelet_plugin.isolation.limiter.backend import override_driver_mounts
from koordra.kubelet_plugin.network.fabric_files import fabric_edits
from koordra.kubelet_plugin.network.interface_gate import gates
from koordra.kubelet_plugin.nvidia_driver.device_nodes import through_own_nodes
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_ref import environment_name
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import Pairs
from koordra.quantity import parse
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Nic


def with_edits(
    record: ClaimRecord,
    *,
    inventory: NodeInventory,
    isolation: Sequence[ContainerEdits],
    capabilities: Sequence[DriverCapabilities],
    files: StateFolder,
    own_users: bool = False,
    member: GangMember | None = None,
    hook_program: str | None = None,
) -> ClaimRecord:
    """The record with every device's edits and the claim's hook; `isolation` holds what the backends add,
    device by device, and `capabilities` the parts of the driver that its holders get. `files` are those that
    are mounted; `own_users`: a pod of the claim has a user namespace of its own; `member`: the claim's place
    in a gang; `hook_program`: where the node has it."""
    requests: dict[str, list[DeviceRecord]] = {}
    for device in record.devices:
        requests.setdefault(main_request(device), []).append(device)
    shared = topology_edits(record, inventory=inventory, files=files)
    fabric = fabric_edits(record, files=files)
    found = []
    for index, device in enumerate(record.devices):
        siblings = requests[main_request(device)]
        edits = ContainerEdits(
            env=((f"KOORDRA_DEVICE_{environment_name(record.ref.uid)}_{index}", device.device),),
            device_nodes=(*device.nodes, *_by_path(device, inventory)),
        )
        edits += _environment(siblings, inventory=inventory)
        if device.network is not None:
            edits += ContainerEdits(mounts=gates(files, record.ref.uid, device.network, own_users=own_users))
        if device is siblings[0]:
            asked = dict(zip(record.devices, capabilities, strict=True))
            parts = frozenset(part for each in siblings for part in asked[each])
            edits += _needed_once(siblings, parts, inventory=inventory) + shared
            edits += metadata_edits(record, main_request(device), files=files)
            if device.type in names.NIC_TYPES:
                edits += fabric
        edits += isolation[index]
        if member is not None:
            edits += ContainerEdits(env=variables(member, record.ref.uid))
            if member.hosts and device is siblings[0]:
                edits += ContainerEdits(mounts=(_mount(HOSTFILE, record.ref.uid, files),))
            if member.leader and device is siblings[0]:
                edits += ContainerEdits(mounts=(_mount(HOSTALIASES, record.ref.uid, files),))
        if takes_additional_gids(inventory.runtime):
            groups = sorted({node.group for node in edits.device_nodes if node.group is not None})
            edits += ContainerEdits(additional_gids=tuple(groups))
        found.append(edits)
    closed = (node.path for edits in found for node in edits.device_nodes if own_users and node.closed)
    absent = inventory.absent_nodes | frozenset(closed)
    arranged = [
        through_own_nodes(edits, absent=absent, folder=files.claim_folder(record.ref.uid))
        for edits in override_driver_mounts(found, isolation=isolation)
    ]
    devices = [replace(device, edits=edits) for device, edits in zip(record.devices, arranged, strict=True)]
    version = inventory.machine.driver_version
    hook = container_hook(hook_program, arranged, driver_version=version) if hook_program else None
    return replace(record, devices=tuple(devices), hooks=(hook,) if hook else ())


def _environment(devices: Sequence[DeviceRecord], *, inventory: NodeInventory) -> ContainerEdits:
    ports = list(
        dict.fromkeys(
            f"{device.ib_device}:{_port(device, inventory)}"
            for device in devices
            if device.type in names.NIC_TYPES
        )
    )
    if not ports:
        return NO_EDITS
    listed = ",".join(ports)
    env = (("NCCL_IB_HCA", f"={listed}"), ("UCX_NET_DEVICES", listed), ("NVSHMEM_HCA_LIST", listed))
    return ContainerEdits(env=env)


def _by_path(device: DeviceRecord, inventory: NodeInventory) -> tuple[DeviceNode, ...]:
    place = inventory.place(device.device)
    return by_path_nodes(place.location.bus_id, device.nodes) if place else ()


def _port(device: DeviceRecord, inventory: NodeInventory) -> int:
    nic = inventory.device(device.device)
    return nic.port.number if isinstance(nic, Nic) and nic.port else 1


def _needed_once(
    devices: Sequence[DeviceRecord], capabilities: DriverCapabilities, *, inventory: NodeInventory
) -> ContainerEdits:
    types = {device.type for device in devices}
    edits = NO_EDITS
    if types & names.GPU_TYPES:
        admin_access = any(device.admin_access for device in devices)
        edits += driver_edits(capabilities, inventory=inventory, admin_access=admin_access)
    if types & names.NIC_TYPES:
        edits += ContainerEdits(device_nodes=inventory.machine.rdma_control)
    return edits


JOB_FOLDER: Final = "/run/koordra.io/job"
_LATER: Final = frozenset(
    {"KOORDRA_RAILS", LEADER, HOSTS, HOST_RANKS, "KOORDRA_HOSTFILE", "KOORDRA_HOSTALIASES"}
)
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
        ("KOORDRA_LOCAL_ADDR", local_address(member.rank)),
    ]
    own = {name for name, _ in found} | _LATER
    domains = [(f"KOORDRA_{environment_name(level)}", name) for level, name in sorted(member.domains.items())]
    found += [(variable, name) for variable, name in domains if variable not in own]
    if member.rails:
        found.append(("KOORDRA_RAILS", ",".join(member.rails)))
    if member.leader:
        found += [(LEADER, member.leader), ("KOORDRA_HOSTALIASES", _in_container(uid, HOSTALIASES))]
    if member.hosts:
        spelled = (f"{host}:{slots}" for host, slots in zip(member.hosts, member.slots, strict=True))
        found += [(HOSTS, ",".join(spelled)), ("KOORDRA_HOSTFILE", _in_container(uid, HOSTFILE))]
    if member.host_ranks:
        found.append((HOST_RANKS, ",".join(map(str, member.host_ranks))))
    return tuple(found)


def _in_container(uid: str, name: str) -> str:
    return f"{JOB_FOLDER}/{uid}/{name}"


def _mount(name: str, uid: str, files: StateFolder) -> Mount:
    return Mount(str(files.claim_folder(uid) / name), _in_container(uid, name))


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

"""Files about a claim that its containers can read. Pure.

    <state>/claims/<uid>/<request>.metadata.json     KEP 5304, one per request: the devices
    <state>/claims/<uid>/nccl-topology.xml           their topology, for NCCL
    <state>/claims/<uid>/hostfile                    the members of the job, by rank (device_edits.py)
    <state>/claims/<uid>/hostaliases                 names of the members that sort by rank
    <state>/claims/<uid>/nccl.conf, ucx.conf         of the network that its NICs are on
                                                     (network/fabric_files.py)
    <state>/claims/<uid>/network.json                the pod's network, once it is attached
                                                     (network/interface_gate.py)

Device metadata appears in the container where every DRA driver puts it:

    /var/run/kubernetes.io/dra-device-attributes/resourceclaims/<claim>/<request>/koordra.io-metadata.json
    /var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/<the pod's name for it>/<request>/...

as a stream of the same object in each version of its API, newest first. Attributes are those of the
ResourceSlice at the time of Prepare. Source: kubernetes dynamic-resource-allocation, api/metadata.

NCCL detects the topology from sysfs; where sysfs is incomplete (virtual machines that hide switches and NUMA
nodes) it needs `NCCL_TOPO_FILE`. koordra knows the topology, from sysfs or from the operator's overlay, so
every container with more than one GPU, or a GPU and a NIC, gets a file of exactly its devices:

    <system version="1"> <cpu numaid=..> <pci busid=switch class=0x060400> <pci busid=device class=..> ...

NCCL completes what the file leaves out (link speeds, CPU models) and trusts what it contains. NVLinks are
left to NCCL, which queries NVML. The format is that of NCCL's own dump (NCCL_TOPO_DUMP_FILE) and of cloud
providers' files.
"""

from __future__ import annotations

import json
import platform
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final

from koordra.api import names
from koordra.api.objects import Object
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ContainerEdits, DeviceRecord, Mount
from koordra.kubelet_plugin.network.fabric_files import NCCL, UCX, fabric_file
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.layout import StateFolder
from koordra.topology.cpu_lists import cpu_numbers
from koordra.topology.location import bus_order
from koordra.topology.machine import Device as MachineDevice
from koordra.topology.machine import Gpu, Machine, NumaNode

MODE: Final = 0o644
TOPOLOGY: Final = "nccl-topology.xml"
HOSTFILE: Final = "hostfile"
HOSTALIASES: Final = "hostaliases"
HOSTS: Final = "KOORDRA_HOSTS"
HOST_RANKS: Final = "KOORDRA_HOST_RANKS"
LEADER: Final = "KOORDRA_LEADER"
API_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
METADATA_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"


def main_request(device: DeviceRecord) -> str:
    """The request that containers name: never one of its firstAvailable alternatives."""
    return device.request.partition("/")[0]


def metadata_name(request: str) -> str:
    return f"{request}.metadata.json"


def metadata_edits(record: ClaimRecord, request: str, *, files: StateFolder) -> ContainerEdits:
    place = (
        f"resourceclaimtemplates/{record.pod_claim}"
        if record.pod_claim
        else f"resourceclaims/{record.ref.name}"
    )
    return ContainerEdits(
        mounts=(
            Mount(
                str(files.claim_folder(record.ref.uid) / metadata_name(request)),
                f"{METADATA_ROOT}/{place}/{request}/{names.DRIVER}-metadata.json",
            ),
        )
    )


def topology_edits(record: ClaimRecord, *, inventory: NodeInventory, files: StateFolder) -> ContainerEdits:
    """The mount of the claim's NCCL topology and the variable that names it; nothing if it has none."""
    if topology_file(_places(record, inventory), inventory.machine) is None:
        return ContainerEdits()
    path = f"{TOPOLOGY_IN_CONTAINER}/{record.ref.uid}.xml"
    return ContainerEdits(
        env=((TOPOLOGY_VARIABLE, path),),
        mounts=(Mount(str(files.claim_folder(record.ref.uid) / TOPOLOGY), path),),
    )


def file_contents(record: ClaimRecord, inventory: NodeInventory) -> dict[str, bytes]:
    mounted = {Path(mount.host_path).name for device in record.devices for mount in device.edits.mounts}
    found = {
        metadata_name(request): metadata(record, request, inventory)
        for request in dict.fromkeys(main_request(device) for device in record.devices)
        if metadata_name(request) in mounted
    }
    if TOPOLOGY in mounted:
        # A device may have gone since; without the file the container could not start again.
        found[TOPOLOGY] = (
            topology_file(_places(record, inventory), inventory.machine) or b'<system version="1"/>\n'
        )
    if {HOSTFILE, HOSTALIASES} & mounted:
        env = dict(pair for device in reversed(record.devices) for pair in device.edits.env)
        hosts = env.get(HOSTS, "")
        if HOSTFILE in mounted:
            found[HOSTFILE] = hostfile(hosts)
        if HOSTALIASES in mounted:
            found[HOSTALIASES] = hostaliases(hosts, env.get(HOST_RANKS, ""), leader=env.get(LEADER, ""))
    for name in (NCCL, UCX):
        if name in mounted:
            found[name] = fabric_file(record, name)
    return found


def metadata(record: ClaimRecord, request: str, inventory: NodeInventory) -> bytes:
    requests: dict[str, list[Object]] = {}
    for device in record.devices:
        if main_request(device) == request:
            requests.setdefault(device.request, []).append(_device(record, device, inventory))
    ref = record.ref
    body = {
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        **({"podClaimName": record.pod_claim} if record.pod_claim else {}),
        "requests": [{"name": name, "devices": devices} for name, devices in requests.items()],
    }
    return b"".join(
        json.dumps({"kind": "DeviceMetadata", "apiVersion": version, **body}, indent=1).encode() + b"\n"
        for version in API_VERSIONS
    )


def _device(record: ClaimRecord, device: DeviceRecord, inventory: NodeInventory) -> Object:
    found: Object = {"driver": names.DRIVER, "pool": record.pool_of(device), "name": device.device}
    published = inventory.published.get(device.device)
    if published is not None:
        found["attributes"] = {
            name: {attribute.kind: attribute.value}
            for name, attribute in sorted(published.attributes.items())
        }
    if device.network is not None:
        addresses = {"ips": list(device.network.addresses)} if device.network.addresses else {}
        found["networkData"] = {"interfaceName": device.network.interface, **addresses}
    return found


def _places(record: ClaimRecord, inventory: NodeInventory) -> list[MachineDevice]:
    found: dict[str, MachineDevice] = {}
    for device in record.devices:
        place = inventory.place(device.device)
        if place is not None:
            found[place.location.bus_id] = place
    return list(found.values())


TOPOLOGY_IN_CONTAINER: Final = "/run/koordra.io/nccl"
TOPOLOGY_VARIABLE: Final = "NCCL_TOPO_FILE"

_SWITCH: Final = "0x060400"
_GPU: Final = "0x030200"
_ETHERNET: Final = "0x020000"
_INFINIBAND: Final = "0x020700"


def topology_file(devices: Sequence[MachineDevice], machine: Machine) -> bytes | None:
    """The file for these devices; None for a single device, or if the place of one is unknown."""
    if len(devices) < 2 or not any(isinstance(device, Gpu) for device in devices):
        return None
    if any(device.location.numa is None for device in devices) and len(machine.numa_nodes) > 1:
        return None
    system = ET.Element("system", version="1")
    cpus: dict[int, ET.Element] = {}
    for device in sorted(devices, key=lambda device: bus_order(device.location.bus_id)):
        numa = device.location.numa or 0
        if numa not in cpus:
            cpus[numa] = ET.SubElement(system, "cpu", _cpu(numa, machine.numa(numa)))
        at = cpus[numa]
        for switch in device.location.switches:
            at = _child(at, switch, _SWITCH)
        _child(at, device.location.bus_id, _pci_class(device))
    ET.indent(system)
    return ET.tostring(system) + b"\n"


def _cpu(numa: int, node: NumaNode | None) -> dict[str, str]:
    found = {"numaid": str(numa)}
    if node is not None and node.cpus:
        found["affinity"] = cpu_mask(node.cpus)
    arch = platform.machine()
    return {**found, "arch": {"aarch64": "arm64"}.get(arch, arch)}


def _child(parent: ET.Element, bus_id: str, kind: str) -> ET.Element:
    bus_id = bus_id.lower()
    known = next((child for child in parent if child.get("busid") == bus_id), None)
    return ET.SubElement(parent, "pci", {"busid": bus_id, "class": kind}) if known is None else known


def _pci_class(device: MachineDevice) -> str:
    if isinstance(device, Gpu):
        return _GPU
    return _INFINIBAND if device.port and device.port.link_layer == "InfiniBand" else _ETHERNET


def cpu_mask(cpus: str) -> str:
    """The kernel's list form (`0-3,8`) as its mask form: words of eight hex digits, highest first."""
    mask = f"{sum(1 << cpu for cpu in {*cpu_numbers(cpus)}):x}"
    return ",".join(wrap(mask.zfill(-(-len(mask) // 8) * 8), 8))


def hostfile(hosts: str) -> bytes:
    """The file of Open MPI and of Horovod, from the value of KOORDRA_HOSTS. Members without a GPU (a
    launcher) have no slot and are left out."""
    lines = []
    for entry in hosts.split(","):
        host, _, slots = entry.rpartition(":")
        if slots != "0":
            lines.append(f"{host} slots={slots}\n")
    return "".join(lines).encode()


def local_address(rank: int) -> str:
    """A name that sorts as the rank does, however many members there are."""
    return f"rank-{rank:05d}"


def hostaliases(hosts: str, ranks: str, *, leader: str) -> bytes:
    """The aliases of glibc's resolver (hostname(7), HOSTALIASES): each member's host under the name that
    sorts by its rank. From the values of KOORDRA_HOSTS and KOORDRA_HOST_RANKS (without it they count from
    0); of the leader alone where the hosts are not told."""
    names = [entry.rpartition(":")[0] for entry in hosts.split(",")] if hosts else [leader]
    numbers = map(int, ranks.split(",")) if ranks else range(len(names))
    pairs = zip(numbers, names, strict=True)
    return "".join(f"{local_address(rank)} {name}\n" for rank, name in pairs).encode()

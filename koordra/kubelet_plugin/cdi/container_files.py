"""Files about a claim that its containers can read. Pure.

    <state>/claims/<uid>/<request>.metadata.json     KEP 5304, one per request: the devices
    <state>/claims/<uid>/nccl-topology.xml           their topology, for NCCL (nccl_topology.py)
    <state>/claims/<uid>/hostfile                    the members of the job, by rank (gang_environment.py)
    <state>/claims/<uid>/network.json                the pod's network, once it is attached (network/network_gate.py)

Device metadata appears in the container where every DRA driver puts it:

    /var/run/kubernetes.io/dra-device-attributes/resourceclaims/<claim>/<request>/koordra.io-metadata.json
    /var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/<the pod's name for it>/<request>/...

as a stream of the same object in each version of its API, newest first. Attributes are those of the
ResourceSlice at the time of Prepare. Source: kubernetes dynamic-resource-allocation, api/metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from koordra.api import names
from koordra.kubelet_plugin.cdi import nccl_topology
from koordra.kubelet_plugin.cdi.gang_environment import job_documents
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits, Mount
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.kubelet_plugin.publish.partitions import MigDevice
from koordra.node_state.layout import claim_folder
from koordra.topology.machine import Device as MachineDevice

MODE: Final = 0o644
TOPOLOGY: Final = "nccl-topology.xml"
API_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
METADATA_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"


def main_request(device: DeviceRecord) -> str:
    """The request that containers name: never one of its firstAvailable alternatives."""
    return device.request.partition("/")[0]


def metadata_name(request: str) -> str:
    return f"{request}.metadata.json"


def metadata_edits(record: ClaimRecord, request: str, *, state: Path) -> ContainerEdits:
    """The mount of one request's metadata."""
    place = (
        f"resourceclaimtemplates/{record.pod_claim}"
        if record.pod_claim
        else f"resourceclaims/{record.ref.name}"
    )
    return ContainerEdits(
        mounts=(
            Mount(
                str(claim_folder(state, record.ref.uid) / metadata_name(request)),
                f"{METADATA_ROOT}/{place}/{request}/{names.DRIVER}-metadata.json",
            ),
        )
    )


def topology_edits(record: ClaimRecord, *, inventory: Inventory, state: Path) -> ContainerEdits:
    """The mount of the claim's NCCL topology and the variable that names it; nothing where the claim has
    none."""
    if nccl_topology.topology_file(_places(record, inventory), inventory.machine) is None:
        return ContainerEdits()
    path = f"{nccl_topology.IN_CONTAINER}/{record.ref.uid}.xml"
    return ContainerEdits(
        env=((nccl_topology.VARIABLE, path),),
        mounts=(Mount(str(claim_folder(state, record.ref.uid) / TOPOLOGY), path),),
    )


def documents(record: ClaimRecord, inventory: Inventory) -> dict[str, bytes]:
    """File name -> content, of every file that the record's edits mount."""
    mounted = {Path(mount.host_path).name for device in record.devices for mount in device.edits.mounts}
    found = {
        metadata_name(request): metadata(record, request, inventory)
        for request in dict.fromkeys(main_request(device) for device in record.devices)
        if metadata_name(request) in mounted
    }
    if TOPOLOGY in mounted:
        topology = nccl_topology.topology_file(_places(record, inventory), inventory.machine)
        # A device may have gone since; without the file the container could not start again.
        found[TOPOLOGY] = topology or b'<system version="1"/>\n'
    return found | job_documents(record, mounted)


def metadata(record: ClaimRecord, request: str, inventory: Inventory) -> bytes:
    """The stream for one request."""
    requests: dict[str, list[dict[str, Any]]] = {}
    for device in record.devices:
        if main_request(device) == request:
            requests.setdefault(device.request, []).append(_device(record, device, inventory))
    body: dict[str, Any] = {
        "metadata": {
            "name": record.ref.name,
            "namespace": record.ref.namespace,
            "uid": record.ref.uid,
        }
    }
    if record.pod_claim:
        body["podClaimName"] = record.pod_claim
    body["requests"] = [{"name": name, "devices": devices} for name, devices in requests.items()]
    return b"".join(
        json.dumps({"kind": "DeviceMetadata", "apiVersion": version, **body}, indent=1).encode() + b"\n"
        for version in API_VERSIONS
    )


def _device(record: ClaimRecord, device: DeviceRecord, inventory: Inventory) -> dict[str, Any]:
    found: dict[str, Any] = {"driver": names.DRIVER, "pool": record.pool, "name": device.device}
    published = inventory.published.get(device.device)
    if published is not None:
        found["attributes"] = {
            name: {attribute.kind: attribute.value}
            for name, attribute in sorted(published.attributes.items())
        }
    if device.network is not None:
        network: Mapping[str, Any] = {
            "interfaceName": device.network.interface,
            **({"ips": list(device.network.addresses)} if device.network.addresses else {}),
        }
        found["networkData"] = dict(network)
    return found


def _places(record: ClaimRecord, inventory: Inventory) -> list[MachineDevice]:
    """The GPUs and NICs of the claim, each once."""
    found: dict[str, MachineDevice] = {}
    for device in record.devices:
        there = inventory.device(device.device)
        place = there.gpu if isinstance(there, MigDevice) else there
        if place is not None:
            found[place.location.bus_id] = place
    return list(found.values())

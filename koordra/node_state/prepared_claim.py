"""One prepared claim, as the kubelet plugin writes it for the NRI hook: prepared/<claim uid>.json.

    {"schema": "koordra.io/prepared/v1",
     "claim": {"namespace": "...", "name": "...", "uid": "..."},
     "nonce": "<32 hex digits>", "marker": "KOORDRA_CLAIM_<UID>",        UID in capitals, "_" for "-"
     "memlock": true | false,
     "devices": [{"request": "...", "device": "...", "type": "gpu|mig|nic|vf", "shareID": null | "...",
                  "cdiDevices": ["koordra.io/claim=..."], "uuid": null | "...", "ibDevice": null | "...",
                  "netdev": null | "...", "numaNode": null | 0, "cpus": null | "0-55",
                  "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
                  "env": {"NAME": "value"}}]}

`deviceNodes` are the device's own nodes; control nodes (nvidiactl, rdma_cm) are in guarded.json and go with
the type. `env` is what the device's CDI edits set, without the markers: CDI lets the last device win where
several set the same variable (CUDA_VISIBLE_DEVICES, NCCL_IB_HCA), and the hook merges them over all devices
of the container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names
from koordra.node_state import strict_json
from koordra.node_state.claim_ref import marker_of
from koordra.topology.machine import DeviceNode

SCHEMA: Final = "koordra.io/prepared/v1"

NUMA_AFFINITY: Final = "KOORDRA_NUMA_AFFINITY"
"""Variable of a GPU whose claim asks for processors near it (GpuConfig `numaAffinity`); its value is
`true`."""

_NONCE: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, and what its CDI edits put into a container."""

    request: str
    device: str
    type: str
    share_id: str | None
    cdi_devices: tuple[str, ...]
    uuid: str | None
    ib_device: str | None
    netdev: str | None
    numa_node: int | None
    cpus: str | None
    nodes: tuple[DeviceNode, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that the kubelet plugin has prepared. Only the node and the claim's CDI file know `nonce`."""

    namespace: str
    name: str
    uid: str
    nonce: str
    marker: str
    devices: tuple[PreparedDevice, ...]
    memlock: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def encode(claim: PreparedClaim) -> bytes:
    return strict_json.encode(
        {
            "schema": SCHEMA,
            "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
            "nonce": claim.nonce,
            "marker": claim.marker,
            "memlock": claim.memlock,
            "devices": [
                {
                    "request": device.request,
                    "device": device.device,
                    "type": device.type,
                    "shareID": device.share_id,
                    "cdiDevices": list(device.cdi_devices),
                    "uuid": device.uuid,
                    "ibDevice": device.ib_device,
                    "netdev": device.netdev,
                    "numaNode": device.numa_node,
                    "cpus": device.cpus,
                    "deviceNodes": [node.to_dict() for node in device.nodes],
                    "env": dict(device.env),
                }
                for device in claim.devices
            ],
        }
    )


def decode(data: bytes) -> PreparedClaim:
    """Raises ValueError naming the field that is not as described above."""
    record = strict_json.fields(strict_json.load(data), "record", "schema claim nonce marker devices memlock")
    strict_json.same(record["schema"], SCHEMA, "schema")
    claim = strict_json.fields(record["claim"], "claim", "namespace name uid")
    uid = strict_json.text(claim["uid"], "claim.uid")
    nonce = strict_json.text(record["nonce"], "nonce")
    if not _NONCE.fullmatch(nonce):
        raise ValueError("nonce: not 32 hexadecimal digits")
    strict_json.same(record["marker"], marker_of(uid), "marker")
    devices = enumerate(strict_json.items(record["devices"], "devices"))
    return PreparedClaim(
        namespace=strict_json.text(claim["namespace"], "claim.namespace"),
        name=strict_json.text(claim["name"], "claim.name"),
        uid=uid,
        nonce=nonce,
        marker=marker_of(uid),
        devices=tuple(_device(item, f"devices[{n}]") for n, item in devices),
        memlock=strict_json.typed(record["memlock"], bool, "memlock"),
    )


_DEVICE_FIELDS: Final = (
    "request device type shareID cdiDevices uuid ibDevice netdev numaNode cpus deviceNodes env"
)


def _device(item: Any, where: str) -> PreparedDevice:
    entry = strict_json.fields(item, where, _DEVICE_FIELDS)
    env = strict_json.typed(entry["env"], dict, f"{where}.env")
    return PreparedDevice(
        request=strict_json.text(entry["request"], f"{where}.request"),
        device=strict_json.text(entry["device"], f"{where}.device"),
        type=strict_json.one_of(entry["type"], names.GPU_TYPES | names.NIC_TYPES, f"{where}.type"),
        share_id=strict_json.optional(entry["shareID"], str, f"{where}.shareID"),
        cdi_devices=strict_json.texts(entry["cdiDevices"], f"{where}.cdiDevices"),
        uuid=strict_json.optional(entry["uuid"], str, f"{where}.uuid"),
        ib_device=strict_json.optional(entry["ibDevice"], str, f"{where}.ibDevice"),
        netdev=strict_json.optional(entry["netdev"], str, f"{where}.netdev"),
        numa_node=strict_json.optional(entry["numaNode"], int, f"{where}.numaNode"),
        cpus=strict_json.optional(entry["cpus"], str, f"{where}.cpus"),
        nodes=strict_json.device_nodes(entry["deviceNodes"], f"{where}.deviceNodes"),
        env=tuple(
            (name, strict_json.typed(value, str, f"{where}.env[{name}]")) for name, value in env.items()
        ),
    )

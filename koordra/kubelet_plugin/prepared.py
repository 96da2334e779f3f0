"""What the node stores for the NRI hook: one file per prepared claim, and the list of device nodes to guard.

The hook (koordra/nri/prepared.py) is a process of its own and only looks up; these two formats are all that the two share.

prepared/<claim uid>.json:

    {"schema": "koordra.io/prepared/v1", "claim": {"namespace", "name", "uid"}, "nonce": "<32 hex>",
     "marker": "KOORDRA_CLAIM_<UID>", "memlock": bool,
     "devices": [{"request", "device", "type": gpu|mig|nic|vf, "shareID", "cdiDevices": [id], "uuid", "ibDevice", "netdev",
                  "numaNode", "cpus", "deviceNodes": [{"path", "type", "major", "minor"}], "env": {name: value}}]}

guarded.json:

    {"schema": "koordra.io/guarded/v1", "node": "...", "devices": [{"name", "type": gpu|nic, "nodes": [...]}], "control": [...]}

`deviceNodes` are the device's own nodes; control nodes (nvidiactl, rdma_cm) are in guarded.json and go with the type. `env`
is what the device's CDI edits set, without the markers: CDI lets the last device win where several set the same variable
(CUDA_VISIBLE_DEVICES, NCCL_IB_HCA), and the hook merges them over all devices of the container. NCCL_TOPO_FILE is not among
it: there is nothing to merge in a file name, and what one claim's file does not say NCCL finds out by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordra.kubelet_plugin.cdi import claim_spec, nccl_topology
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, is_claim_uid

SCHEMA: Final = "koordra.io/prepared/v1"
DIRECTORY: Final = "prepared"
GUARDED_FILE: Final = "guarded.json"
MODE: Final = 0o600

_SUFFIX: Final = ".json"


def file_name(uid: str) -> str:
    return f"{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    uid = name.removesuffix(_SUFFIX)
    return uid if name.endswith(_SUFFIX) and is_claim_uid(uid) else None


def encode(record: ClaimRecord) -> bytes:
    ids = claim_spec.device_ids(record)
    return _json(
        {
            "schema": SCHEMA,
            "claim": {"namespace": record.ref.namespace, "name": record.ref.name, "uid": record.ref.uid},
            "nonce": record.nonce,
            "marker": record.marker,
            "memlock": record.memlock,
            "devices": [
                {
                    "request": device.request,
                    "device": device.device,
                    "type": device.type,
                    "shareID": device.share_id,
                    "cdiDevices": [ids[index]],
                    "uuid": device.uuid,
                    "ibDevice": device.ib_device,
                    "netdev": device.netdev,
                    "numaNode": device.numa_node,
                    "cpus": device.cpus,
                    "deviceNodes": [node.to_dict() for node in device.nodes],
                    "env": {
                        name: value for name, value in device.edits.env if name != nccl_topology.VARIABLE
                    },
                }
                for index, device in enumerate(record.devices)
            ],
        }
    )


def encode_guarded(guarded: Mapping[str, Any]) -> bytes:
    """guarded.json from what discovery says is to be guarded."""
    return _json(guarded)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"

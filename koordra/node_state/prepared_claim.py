"""One prepared claim, as the kubelet plugin writes it for the NRI hook: prepared/<claim uid>.json.

    {"schema": "koordra.io/prepared/v1",
     "claim": {"namespace": "...", "name": "...", "uid": "..."},
     "nonce": "<32 hex digits>", "marker": "KOORDRA_CLAIM_<UID>",        UID in capitals, "_" for "-"
     "memlock": true | false,
     "devices": [{"request": "...", "device": "...", "type": "gpu|mig|nic|vf|imex", "shareID": null | "...",
                  "cdiDevices": ["koordra.io/claim=..."], "uuid": null | "...", "ibDevice": null | "...",
                  "netdev": null | "...", "numaNode": null | 0, "cpus": null | "0-55",
                  "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
                  "env": {"NAME": "value"}}]}

`deviceNodes` are the device's own nodes; control nodes (nvidiactl, rdma_cm) are in guarded.json and go with
the type. `env` is what the device brings, without the markers: what its CDI edits set, and the variables
that the hook alone sets (HOOKS_VARIABLES): they list devices, or name a file. CDI lets the last device win
where several set the same variable; the hook joins the lists over all devices of the container.

guarded.json, the device nodes that a container may open only by a claim:

    {"schema": "koordra.io/guarded/v1", "node": "...",
     "devices": [{"name": "...", "type": "gpu|nic|imex", "nodes": [{"path", "type", "major", "minor"}]}],
     "control": [<node>]}                                                nvidiactl, nvidia-uvm, rdma_cm, ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from koordra.api import names
from koordra.node_state import strict_json
from koordra.node_state.claim_ref import CLAIM_REF, ClaimRef
from koordra.node_state.disk import read_file
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import (
    BOOLEAN,
    DEVICE_NODES,
    INTEGER,
    STRING,
    TEXT,
    Pairs,
    Table,
    later,
    listed,
    mapping,
    one_of,
    optional,
    plain,
    record,
)
from koordra.topology.location import DeviceNode

SCHEMA: Final = "koordra.io/prepared/v1"

NUMA_AFFINITY: Final = "KOORDRA_NUMA_AFFINITY"
"""Variable of a GPU whose claim asks for processors near it (GpuConfig `numaAffinity`); its value is
`true`."""

LIST_VARIABLES: Final = ("NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST")
"""Variables whose value is a comma-separated list of devices."""

UCX_FOLDER: Final = "UCX_CONFIG_DIR"
"""Variable that names the folder of a configuration file."""

HOOKS_VARIABLES: Final = frozenset({*LIST_VARIABLES, UCX_FOLDER})
"""Those that the hook alone sets, where neither pod nor image does."""

_NONCE: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device of a prepared claim; `nodes` are its own device nodes. `pool`: that of a device which is on
    no node; one of the node's own is in the pool of its name."""

    request: str
    device: str
    type: str
    share_id: str | None = None
    uuid: str | None = None
    ib_device: str | None = None
    netdev: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
    pool: str = ""

    @property
    def common(self) -> dict[str, Any]:
        """The fields that the plugin's record (claims/claim_record.py) and the hook's have in common."""
        return {field.name: getattr(self, field.name) for field in fields(ClaimDevice)}


CLAIM_DEVICE: Final[Table] = {
    "request": TEXT,
    "device": TEXT,
    "type": one_of(names.GPU_TYPES | names.NIC_TYPES | {names.TYPE_IMEX, names.TYPE_REMOTE}),
    "shareID": optional(STRING),
    "uuid": optional(STRING),
    "ibDevice": optional(STRING),
    "netdev": optional(STRING),
    "numaNode": optional(INTEGER),
    "cpus": optional(STRING),
    "deviceNodes": ("nodes", DEVICE_NODES),
    "pool": later(STRING, ""),
}


@dataclass(frozen=True, slots=True)
class PreparedDevice(ClaimDevice):
    """The device for the hook: its CDI names, and the variables that its CDI edits put into a container."""

    cdi_devices: tuple[str, ...] = ()
    env: Pairs = ()


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that the kubelet plugin has prepared. Only the node and the claim's CDI file know `nonce`."""

    ref: ClaimRef
    nonce: str
    marker: str
    devices: tuple[PreparedDevice, ...]
    memlock: bool

    def __str__(self) -> str:
        return f"{self.ref.namespace}/{self.ref.name}"


_encode, _decode = strict_json.document(
    PreparedClaim,
    SCHEMA,
    {
        "claim": ("ref", CLAIM_REF),
        "nonce": plain(str, lambda text: bool(_NONCE.fullmatch(text)), "not 32 hexadecimal digits"),
        "marker": TEXT,
        "memlock": BOOLEAN,
        "devices": listed(
            record(
                PreparedDevice,
                {**CLAIM_DEVICE, "cdiDevices": listed(TEXT), "env": mapping(STRING)},
            )
        ),
    },
)
encode = _encode


def decode(data: bytes) -> PreparedClaim:
    """Raises ValueError naming the field that is not as described above."""
    claim = _decode(data)
    if claim.marker != claim.ref.marker:
        raise ValueError(f"marker: {claim.marker!r}, expected {claim.ref.marker!r}")
    return claim


def ref_of(state: Path, uid: str) -> ClaimRef | None:
    """Which claim that is; None where it is not prepared (yet)."""
    try:
        return decode(read_file(StateFolder(state).prepared_file(uid))[0]).ref
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class GuardedDevice:
    """A GPU or NIC of this node, with all device nodes that lead to it."""

    name: str
    type: str
    nodes: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DeviceGuard:
    """`control` nodes belong to no single device and are open to every holder of a GPU or NIC. `left`: types
    (gpu, nic) that another stack gives out on this node, whose devices are not among these."""

    node: str
    devices: tuple[GuardedDevice, ...]
    control: tuple[DeviceNode, ...]
    left: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        return (*self.control, *(node for device in self.devices for node in device.nodes))


encode_guard, decode_guard = strict_json.document(
    DeviceGuard,
    "koordra.io/guarded/v1",
    {
        "node": TEXT,
        "devices": listed(
            record(
                GuardedDevice,
                {
                    "name": TEXT,
                    "type": one_of(frozenset({names.TYPE_GPU, names.TYPE_NIC, names.TYPE_IMEX})),
                    "nodes": DEVICE_NODES,
                },
            )
        ),
        "control": DEVICE_NODES,
        "left": later(listed(one_of(frozenset({names.TYPE_GPU, names.TYPE_NIC}))), ()),
    },
)
"""`decode_guard` raises ValueError naming the field that is not as described above."""

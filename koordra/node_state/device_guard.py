"""The device nodes that a container may open only by a claim: guarded.json.

{"schema": "koordra.io/guarded/v1", "node": "...",
 "devices": [{"name": "...", "type": "gpu|nic", "nodes": [{"path", "type", "major", "minor"}]}],
 "control": [<node>]}                                                nvidiactl, nvidia-uvm, rdma_cm, ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.node_state import strict_json
from koordra.node_state.strict_json import DEVICE_NODES, TEXT, listed, one_of, record
from koordra.topology.machine import DeviceNode

SCHEMA: Final = "koordra.io/guarded/v1"


@dataclass(frozen=True, slots=True)
class GuardedDevice:
    """A GPU or NIC of this node, with all device nodes that lead to it."""

    name: str
    type: str
    nodes: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DeviceGuard:
    """`control` nodes belong to no single device and are open to every holder of a GPU or NIC."""

    node: str
    devices: tuple[GuardedDevice, ...]
    control: tuple[DeviceNode, ...]

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        return (*self.control, *(node for device in self.devices for node in device.nodes))


encode, decode = strict_json.document(
    DeviceGuard,
    SCHEMA,
    {
        "node": TEXT,
        "devices": listed(
            record(
                GuardedDevice,
                {
                    "name": TEXT,
                    "type": one_of(frozenset({names.TYPE_GPU, names.TYPE_NIC})),
                    "nodes": DEVICE_NODES,
                },
            )
        ),
        "control": DEVICE_NODES,
    },
)
"""`decode` raises ValueError naming the field that is not as described above."""

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
from koordra.topology.machine import DeviceNode

SCHEMA: Final = "koordra.io/guarded/v1"

_TYPES: Final = frozenset({names.TYPE_GPU, names.TYPE_NIC})


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
        """Every guarded node."""
        return (*self.control, *(node for device in self.devices for node in device.nodes))


def encode(guard: DeviceGuard) -> bytes:
    return strict_json.encode(
        {
            "schema": SCHEMA,
            "node": guard.node,
            "devices": [
                {
                    "name": device.name,
                    "type": device.type,
                    "nodes": [node.to_dict() for node in device.nodes],
                }
                for device in guard.devices
            ],
            "control": [node.to_dict() for node in guard.control],
        }
    )


def decode(data: bytes) -> DeviceGuard:
    """Raises ValueError naming the field that is not as described above."""
    record = strict_json.fields(strict_json.load(data), "record", "schema node devices control")
    strict_json.same(record["schema"], SCHEMA, "schema")
    devices = []
    for n, item in enumerate(strict_json.items(record["devices"], "devices")):
        where = f"devices[{n}]"
        entry = strict_json.fields(item, where, "name type nodes")
        devices.append(
            GuardedDevice(
                name=strict_json.text(entry["name"], f"{where}.name"),
                type=strict_json.one_of(entry["type"], _TYPES, f"{where}.type"),
                nodes=strict_json.device_nodes(entry["nodes"], f"{where}.nodes"),
            )
        )
    return DeviceGuard(
        node=strict_json.text(record["node"], "node"),
        devices=tuple(devices),
        control=strict_json.device_nodes(record["control"], "control"),
    )

"""What the plugin remembers of one claim: its decision, complete enough to make every file of the claim again.

The CDI spec (cdi.py) and the record for the NRI hook (prepared.py) are pure functions of a `ClaimRecord`; the checkpoint
stores nothing else. The types are koordra's own: nothing of the claim object or of another driver's results is kept.

A record belongs to one boot of the machine. Records of another boot hold nothing, since no container has survived; they
are kept until the kubelet unprepares the claim, only so that a different card under the old name is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from koordra.errors import CheckpointError, PrepareError
from koordra.kubelet_plugin.container_edits import NO_EDITS, ContainerEdits, Mount
from koordra.topology.machine import DeviceNode

NO_BOOT: Final = ""
"""`boot_id` of a record that was rolled back: remembered, but not prepared in any boot."""

_UID: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,62}[0-9a-z])?")


class State(StrEnum):
    """STARTED: files may be half there and no container has them. COMPLETED: the kubelet may have been answered."""

    STARTED = "PrepareStarted"
    COMPLETED = "PrepareCompleted"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it. The uid ends up in file names, so nothing but a Kubernetes UID will do."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"

    @property
    def valid(self) -> bool:
        return bool(self.namespace and self.name and is_claim_uid(self.uid))

    def require_valid(self) -> None:
        """Raises PrepareError unless namespace, name and uid can be a claim's."""
        if not self.valid:
            raise PrepareError(f"{self}: uid {self.uid[:80]!r}, name or namespace cannot be a claim's")


def is_claim_uid(text: str) -> bool:
    return _UID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One allocated device. `identity` is the GPU's UUID or the NIC's GUID; `nodes` are the device's own nodes.

    `consumed` holds exact amounts as canonical quantities, sorted by name. `edits` is everything that a container gets
    with the device (its own nodes among it), apart from the claim's markers.
    """

    request: str
    device: str
    type: str
    identity: str
    share_id: str | None = None
    admin_access: bool = False
    consumed: tuple[tuple[str, str], ...] = ()
    isolation: str | None = None
    uuid: str | None = None
    ib_device: str | None = None
    netdev: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
    edits: ContainerEdits = NO_EDITS

    @property
    def asked(self) -> tuple[str, str, str | None, bool, tuple[tuple[str, str], ...]]:
        """What the allocation said, without what the node added."""
        return self.request, self.device, self.share_id, self.admin_access, self.consumed


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`nonce`: 32 hex digits that only the node and the claim's CDI file know. `pool` is the node's name."""

    ref: ClaimRef
    pool: str
    nonce: str
    boot_id: str
    state: State
    devices: tuple[DeviceRecord, ...]
    memlock: bool = False

    @property
    def marker(self) -> str:
        """Environment variable by which the claim's CDI edits are recognised."""
        return "KOORDRA_CLAIM_" + environment_name(self.ref.uid)

    def cdi_name(self, index: int) -> str:
        """CDI device name of devices[index]: unique in the claim, and never used by another claim."""
        device = self.devices[index]
        name = f"{self.ref.uid}-{device.device}"
        if device.share_id:
            name += f"-{device.share_id[:8]}"
        earlier = [other for other in self.devices[:index] if other.device == device.device]
        return f"{name}-{index}" if earlier else name

    def completed(self) -> ClaimRecord:
        return replace(self, state=State.COMPLETED)

    def rolled_back(self) -> ClaimRecord:
        return replace(self, state=State.STARTED, boot_id=NO_BOOT)


def environment_name(text: str) -> str:
    return text.upper().replace("-", "_")


# Checkpoint form, version 1. Field names are the dataclasses'; strict both ways.


def claim_to_dict(record: ClaimRecord) -> dict[str, Any]:
    return {
        "namespace": record.ref.namespace,
        "name": record.ref.name,
        "uid": record.ref.uid,
        "pool": record.pool,
        "nonce": record.nonce,
        "bootID": record.boot_id,
        "state": record.state.value,
        "memlock": record.memlock,
        "devices": [_device_to_dict(device) for device in record.devices],
    }


def _device_to_dict(device: DeviceRecord) -> dict[str, Any]:
    return {
        "request": device.request,
        "device": device.device,
        "type": device.type,
        "identity": device.identity,
        "shareID": device.share_id,
        "adminAccess": device.admin_access,
        "consumed": dict(device.consumed),
        "isolation": device.isolation,
        "uuid": device.uuid,
        "ibDevice": device.ib_device,
        "netdev": device.netdev,
        "numaNode": device.numa_node,
        "cpus": device.cpus,
        "nodes": [node.to_dict() for node in device.nodes],
        "edits": {
            "env": [list(variable) for variable in device.edits.env],
            "deviceNodes": [node.to_dict() for node in device.edits.device_nodes],
            "mounts": [
                [mount.host_path, mount.container_path, *mount.options] for mount in device.edits.mounts
            ],
        },
    }


def claim_from_dict(raw: object) -> ClaimRecord:
    """Raises CheckpointError for anything that `claim_to_dict` does not write."""
    try:
        record = _claim(_object(raw))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a claim in it is malformed: {error!r}") from error
    if claim_to_dict(record) != raw:
        raise CheckpointError(f"claim {record.ref.uid} in it has fields that this version does not know")
    return record


def _claim(data: Mapping[str, Any]) -> ClaimRecord:
    ref = ClaimRef(namespace=_text(data["namespace"]), name=_text(data["name"]), uid=_text(data["uid"]))
    if not ref.valid:
        raise ValueError(f"uid {ref.uid!r}")
    return ClaimRecord(
        ref=ref,
        pool=_text(data["pool"]),
        nonce=_text(data["nonce"]),
        boot_id=_text(data["bootID"]),
        state=State(data["state"]),
        memlock=bool(data["memlock"]),
        devices=tuple(_device(_object(device)) for device in data["devices"]),
    )


def _device(data: Mapping[str, Any]) -> DeviceRecord:
    edits = _object(data["edits"])
    return DeviceRecord(
        request=_text(data["request"]),
        device=_text(data["device"]),
        type=_text(data["type"]),
        identity=_text(data["identity"]),
        share_id=data["shareID"],
        admin_access=bool(data["adminAccess"]),
        consumed=tuple(
            sorted((_text(name), _text(amount)) for name, amount in _object(data["consumed"]).items())
        ),
        isolation=data["isolation"],
        uuid=data["uuid"],
        ib_device=data["ibDevice"],
        netdev=data["netdev"],
        numa_node=data["numaNode"],
        cpus=data["cpus"],
        nodes=_nodes(data["nodes"]),
        edits=ContainerEdits(
            env=tuple((_text(name), _text(value)) for name, value in edits["env"]),
            device_nodes=_nodes(edits["deviceNodes"]),
            mounts=tuple(
                Mount(_text(host), _text(container), tuple(_text(option) for option in options))
                for host, container, *options in edits["mounts"]
            ),
        ),
    )


def _nodes(raw: Any) -> tuple[DeviceNode, ...]:
    return tuple(
        DeviceNode(
            path=_text(node["path"]),
            type=_text(node["type"]),
            major=int(node["major"]),
            minor=int(node["minor"]),
        )
        for node in raw
    )


def _object(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise TypeError(f"{type(raw).__name__} where an object was expected")
    return raw


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{type(raw).__name__} where text was expected")
    return raw

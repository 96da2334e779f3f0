"""The record of one prepared claim: the decision of Prepare, complete enough to write every file of the claim
again.

The CDI spec (cdi/claim_spec.py) and the record for the NRI hook (node_state/prepared_claim.py) are pure
functions of a `ClaimRecord`; the checkpoint stores nothing else. The types are koordra's own: neither the
claim object nor other drivers' results are kept.

A record belongs to one boot of the machine. A record of an earlier boot holds no device, since no container
has survived; it is kept until the kubelet unprepares the claim, only to detect a different card under the old
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.container_edits import NO_EDITS, ContainerEdits, Hook, Mount
from koordra.node_state.claim_ref import ClaimRef, marker_of
from koordra.node_state.network_plan import NetworkPlan, plan_from_dict, plan_to_dict
from koordra.topology.machine import DeviceNode

NO_BOOT: Final = ""
"""`boot_id` of a record that was rolled back: remembered, but not prepared in any boot."""


class State(StrEnum):
    """STARTED: files may be half there and no container has them. COMPLETED: the kubelet may have been
    answered. RECOVERED: the checkpoint was lost, and the claim is known from its record for the hook alone
    (checkpoint.py)."""

    STARTED = "PrepareStarted"
    COMPLETED = "PrepareCompleted"
    RECOVERED = "Recovered"


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One allocated device. `identity` is the GPU's UUID or the NIC's GUID; `nodes` are the device's own
    nodes.

    `consumed` holds exact amounts as canonical quantities, sorted by name. `edits` is everything that a
    container gets with the device, its own nodes included, apart from the claim's markers. `network` is what
    is done to a NIC once the pod's network namespace exists; None if nothing is.
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
    network: NetworkPlan | None = None

    @property
    def assignment(self) -> tuple[str, str, str | None]:
        """The request, and the device and share that serve it."""
        return self.request, self.device, self.share_id

    @property
    def allocated(self) -> tuple[str, str, str | None, bool, tuple[tuple[str, str], ...]]:
        """The fields that come from the allocation, without those that the node added."""
        return self.request, self.device, self.share_id, self.admin_access, self.consumed


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`nonce`: 32 hex digits that only the node and the claim's CDI file know. `pool` is the node's name.
    `pods` are the uids of the pods for which the claim was reserved when it was prepared; `pod_claim` is the
    name under which its pod refers to a claim that was made from a template."""

    ref: ClaimRef
    pool: str
    nonce: str
    boot_id: str
    state: State
    devices: tuple[DeviceRecord, ...]
    memlock: bool = False
    pods: tuple[str, ...] = ()
    pod_claim: str | None = None

    @property
    def networked(self) -> bool:
        """Whether Prepare planned a network interface for the claim's pod."""
        return any(device.network is not None for device in self.devices)

    @property
    def marker(self) -> str:
        """Environment variable by which the claim's CDI edits are recognised."""
        return marker_of(self.ref.uid)

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


# The forms in the checkpoint. Version 1, of the release before, lacks network plans, consumers and hooks.
# Both are strict.

OLDER: Final = 1
CURRENT: Final = 2


def claim_to_dict(record: ClaimRecord, *, version: int = CURRENT) -> dict[str, Any]:
    """The record in one version of its form. A version that lacks a field writes the record without it."""
    found = {
        "namespace": record.ref.namespace,
        "name": record.ref.name,
        "uid": record.ref.uid,
        "pool": record.pool,
        "nonce": record.nonce,
        "bootID": record.boot_id,
        # Version 1 knows no recovered claims; to it they are prepared, which holds their devices as well.
        "state": (
            State.COMPLETED if version < CURRENT and record.state is State.RECOVERED else record.state
        ).value,
        "memlock": record.memlock,
        "devices": [_device_to_dict(device, version=version) for device in record.devices],
    }
    return found if version < CURRENT else {**found, "pods": list(record.pods), "podClaim": record.pod_claim}


def _device_to_dict(device: DeviceRecord, *, version: int) -> dict[str, Any]:
    found = {
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
        "edits": _edits_to_dict(device.edits, version=version),
    }
    if version < CURRENT:
        return found
    return {**found, "network": None if device.network is None else plan_to_dict(device.network)}


def _edits_to_dict(edits: ContainerEdits, *, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": [list(variable) for variable in edits.env],
        "deviceNodes": [node.to_dict() for node in edits.device_nodes],
        "mounts": [[mount.host_path, mount.container_path, *mount.options] for mount in edits.mounts],
    }
    if version < CURRENT:
        return found
    return {**found, "hooks": [[hook.name, hook.path, *hook.arguments] for hook in edits.hooks]}


def claim_from_dict(raw: object, *, version: int = CURRENT) -> ClaimRecord:
    """Raises CheckpointError for anything that `claim_to_dict` does not write in that version."""
    try:
        record = _claim(_object(raw), version=version)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a claim in it is malformed: {error!r}") from error
    if claim_to_dict(record, version=version) != raw:
        raise CheckpointError(f"claim {record.ref.uid} in it has fields that this version does not know")
    return record


def _claim(data: Mapping[str, Any], *, version: int) -> ClaimRecord:
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
        devices=tuple(_device(_object(device), version=version) for device in data["devices"]),
        pods=tuple(_text(uid) for uid in data["pods"]) if version >= CURRENT else (),
        pod_claim=data["podClaim"] if version >= CURRENT else None,
    )


def _device(data: Mapping[str, Any], *, version: int) -> DeviceRecord:
    edits = _object(data["edits"])
    network = data["network"] if version >= CURRENT else None
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
            hooks=tuple(
                Hook(_text(name), _text(path), tuple(_text(argument) for argument in arguments))
                for name, path, *arguments in (edits["hooks"] if version >= CURRENT else ())
            ),
        ),
        network=None if network is None else plan_from_dict(_object(network)),
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

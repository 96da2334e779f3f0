"""How Prepare, and the hook that sees the sandbox, tell each other about a pod's network: two files per claim.

    <state>/network/<uid>.json              Prepare's: what is to be done, for which pods
    <state>/network/attached/<uid>.json     the hook's: what is being done or was done, with what it takes to undo it
    <state>/claims/<uid>/network.json       the hook's: the pod has its network; what containers may read of it

Prepare makes the last one a read-only mount of the container (`/run/koordra.io/network/<uid>.json`, for programs that want
to know). So **the network fails closed without anybody's help**: as long as nothing was attached the file is missing, the
runtime cannot make the mount, and the container does not start. NRI by itself fails open: a hook that is away, or late, is
not asked.

That file is the claim's, and a claim may get a second pod, for which there is no Prepare. So a device that has a network
interface brings a second mount, of something that exists only in the network namespace that has the interface:

    /proc/sys/net/ipv4/conf/<interface>   ->   /run/koordra.io/network/<uid>.in-one-pod-at-a-time/<interface>

The kernel looks that path up in the network namespace of the process that asks, and runtimes make mounts from inside the
container's own namespaces. So the kernel itself answers, for every container, whether its pod has the interface: one whose
pod has not does not start, and the error names the path. runc 1.2 and later look on the host, too, for what they do not find
inside; so the interface is to have a name in the pod that no interface of the host has (network_decision.py).

Not for pods with a user namespace of their own (`hostUsers: false`): for them older runtimes open mounts from outside, where
the interface is missing for the rightful pod too. There the hook refuses, and verification finds what it missed
(nri/verify/drift.py, InterfaceMissing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ClaimRef, is_claim_uid
from koordra.kubelet_plugin.claims.container_edits import Mount
from koordra.node_state.disk import Disk
from koordra.node_state.network_plan import NetworkPlan, plan_from_dict, plan_to_dict

SCHEMA: Final = "koordra.io/network/v1"
ATTACHED_SCHEMA: Final = "koordra.io/network-attached/v1"
MODE: Final = 0o600
GATE_MODE: Final = 0o644
DIRECTORY: Final = "network"
ATTACHED: Final = "attached"
IN_CONTAINER: Final = "/run/koordra.io/network"
GATE: Final = "network.json"
INTERFACES: Final = "/proc/sys/net/ipv4/conf"
ONE_POD: Final = ".in-one-pod-at-a-time"
"""Part of a path that people read in the error of a container that did not start."""

_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class ClaimNetwork:
    """What is to be done for one claim, by device name."""

    ref: ClaimRef
    pods: tuple[str, ...]
    plans: tuple[tuple[str, NetworkPlan], ...]


@dataclass(frozen=True, slots=True)
class Attached:
    """One device in a pod: the interface's name there, its addresses and MAC, and how it was on the host."""

    device: str
    interface: str
    addresses: tuple[str, ...] = ()
    mac: str = ""
    rdma_moved: bool = False
    gid_ready: bool | None = None
    before: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AttachedClaim:
    """`netns` is the path that was used, `sandbox` the runtime's id of the pod's sandbox."""

    uid: str
    pod: str
    sandbox: str
    netns: str
    devices: tuple[Attached, ...]


def gate(state: Path, uid: str) -> Mount:
    """The mount that holds a container back until its network is there."""
    return Mount(str(gate_file(state, uid)), f"{IN_CONTAINER}/{uid}{_SUFFIX}")


def interface_gate(uid: str, interface: str) -> Mount:
    """The mount that only a container can have whose network namespace has the interface."""
    return Mount(f"{INTERFACES}/{interface}", f"{IN_CONTAINER}/{uid}{ONE_POD}/{interface}")


def gate_file(state: Path, uid: str) -> Path:
    return claim_folder(state, uid) / GATE


def claim_folder(state: Path, uid: str) -> Path:
    """The folder of what the claim's containers may read."""
    return state / "claims" / uid


def network_file(state: Path, uid: str) -> Path:
    return state / DIRECTORY / f"{uid}{_SUFFIX}"


def attached_file(state: Path, uid: str) -> Path:
    return state / DIRECTORY / ATTACHED / f"{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    uid = name.removesuffix(_SUFFIX)
    return uid if name.endswith(_SUFFIX) and is_claim_uid(uid) else None


def encode(record: ClaimRecord) -> bytes:
    """Prepare's file."""
    document = {
        "schema": SCHEMA,
        "claim": {"namespace": record.ref.namespace, "name": record.ref.name, "uid": record.ref.uid},
        "pods": list(record.pods),
        "devices": [
            {"device": device.device, "plan": plan_to_dict(device.network)}
            for device in record.devices
            if device.network is not None
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def read_networks(state: Path, disk: Disk, *, uid: str | None = None) -> tuple[ClaimNetwork, ...]:
    """Every claim with a network to make, or the one. Raises CheckpointError for a file that is not one of ours."""
    folder = state / DIRECTORY
    found = []
    for path in _files(folder, disk, uid=uid):
        document = _read(path, disk, schema=SCHEMA)
        if document is not None:
            found.append(_network(path, document))
    return tuple(found)


def read_attached(state: Path, disk: Disk, *, uid: str | None = None) -> tuple[AttachedClaim, ...]:
    """Every claim whose network is in a pod, or the one. Raises CheckpointError."""
    folder = state / DIRECTORY / ATTACHED
    found = []
    for path in _files(folder, disk, uid=uid):
        document = _read(path, disk, schema=ATTACHED_SCHEMA)
        if document is not None:
            found.append(_attached(path, document))
    return tuple(found)


def encode_attached(claim: AttachedClaim) -> bytes:
    """The hook's file."""
    document = {
        "schema": ATTACHED_SCHEMA,
        "uid": claim.uid,
        "pod": claim.pod,
        "sandbox": claim.sandbox,
        "netns": claim.netns,
        "devices": [
            {
                "device": device.device,
                "interface": device.interface,
                "addresses": list(device.addresses),
                "mac": device.mac,
                "rdmaMoved": device.rdma_moved,
                "gidReady": device.gid_ready,
                "before": dict(device.before),
            }
            for device in claim.devices
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def encode_gate(claim: AttachedClaim) -> bytes:
    """What containers may read."""
    devices = [
        {
            "device": device.device,
            "interface": device.interface,
            "addresses": list(device.addresses),
            "mac": device.mac,
        }
        for device in claim.devices
    ]
    return json.dumps({"devices": devices}, indent=1).encode() + b"\n"


def _files(folder: Path, disk: Disk, *, uid: str | None) -> list[Path]:
    try:
        names = disk.names(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
    of = {name: claim_of_file(name) for name in names}
    return [folder / name for name, claim in of.items() if claim is not None and uid in {None, claim}]


def _read(path: Path, disk: Disk, *, schema: str) -> Mapping[str, Any] | None:
    try:
        data = disk.read(path)
        if data is None:
            return None
        document = json.loads(data)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise CheckpointError(f"{path} is not of schema {schema}")
    return document


def _network(path: Path, document: Mapping[str, Any]) -> ClaimNetwork:
    try:
        claim = document["claim"]
        return ClaimNetwork(
            ref=ClaimRef(namespace=claim["namespace"], name=claim["name"], uid=claim["uid"]),
            pods=tuple(str(uid) for uid in document["pods"]),
            plans=tuple(
                (str(entry["device"]), plan_from_dict(entry["plan"])) for entry in document["devices"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is malformed: {error!r}") from error


def _attached(path: Path, document: Mapping[str, Any]) -> AttachedClaim:
    try:
        return AttachedClaim(
            uid=str(document["uid"]),
            pod=str(document["pod"]),
            sandbox=str(document["sandbox"]),
            netns=str(document["netns"]),
            devices=tuple(
                Attached(
                    device=str(entry["device"]),
                    interface=str(entry["interface"]),
                    addresses=tuple(str(address) for address in entry["addresses"]),
                    mac=str(entry["mac"]),
                    rdma_moved=bool(entry["rdmaMoved"]),
                    gid_ready=entry["gidReady"],
                    before=tuple(sorted(entry["before"].items())),
                )
                for entry in document["devices"]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is malformed: {error!r}") from error

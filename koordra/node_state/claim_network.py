"""The network of a claim's pod: what Prepare decided, and what was done in the pod's sandbox.

network/<claim uid>.json, written by Prepare:

    {"schema": "koordra.io/network/v1", "claim": {"namespace": "...", "name": "...", "uid": "..."}, "pods": ["<pod uid>"],
     "devices": [{"device": "...", "plan": {<network_plan.py>}}]}

network/attached/<claim uid>.json, written by the process that moves NICs (`koordra nri --pod-network`):

    {"schema": "koordra.io/network-attached/v1", "uid": "...", "pod": "<pod uid>", "sandbox": "...", "netns": "...",
     "devices": [{"device": "...", "interface": "...", "addresses": ["..."], "mac": "...", "rdmaMoved": bool,
                  "gidReady": null | bool, "before": {<the interface on the host, as it is restored>}}]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from koordra.errors import CheckpointError
from koordra.node_state import layout, strict_json
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.network_plan import NetworkPlan, plan_from_dict, plan_to_dict

SCHEMA: Final = "koordra.io/network/v1"
ATTACHED_SCHEMA: Final = "koordra.io/network-attached/v1"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClaimNetwork:
    """What is to be done for one claim, by device name. `pods` are the uids of its consumers at Prepare."""

    ref: ClaimRef
    pods: tuple[str, ...]
    plans: tuple[tuple[str, NetworkPlan], ...]

    @property
    def uid(self) -> str:
        return self.ref.uid

    @property
    def interfaces(self) -> Mapping[str, str]:
        """The interfaces that the claim's pod is to have: device name -> name in the pod."""
        return {device: plan.interface for device, plan in self.plans if plan.host_interface}


@dataclass(frozen=True, slots=True)
class AttachedDevice:
    """One device in a pod: the interface's name there, its addresses and MAC, and how it was on the host."""

    device: str
    interface: str
    addresses: tuple[str, ...] = ()
    mac: str = ""
    rdma_moved: bool = False
    gid_ready: bool | None = None
    before: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AttachedNetwork:
    """Where a claim's network is. `pod` is the uid of the pod that has it, or is about to; `netns` is the
    path that was used, `sandbox` the runtime's id of the pod's sandbox."""

    uid: str
    pod: str
    sandbox: str = ""
    netns: str = ""
    devices: tuple[AttachedDevice, ...] = ()


def encode(network: ClaimNetwork) -> bytes:
    ref = network.ref
    return strict_json.encode(
        {
            "schema": SCHEMA,
            "claim": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "pods": list(network.pods),
            "devices": [{"device": device, "plan": plan_to_dict(plan)} for device, plan in network.plans],
        }
    )


def decode(data: bytes) -> ClaimNetwork:
    """Raises ValueError naming the field that is not as described above."""
    record = strict_json.fields(strict_json.load(data), "record", "schema claim pods devices")
    strict_json.same(record["schema"], SCHEMA, "schema")
    claim = strict_json.fields(record["claim"], "claim", "namespace name uid")
    return ClaimNetwork(
        ref=ClaimRef(**{name: strict_json.text(value, f"claim.{name}") for name, value in claim.items()}),
        pods=strict_json.texts(record["pods"], "pods"),
        plans=tuple(
            _planned(item, f"devices[{n}]")
            for n, item in enumerate(strict_json.items(record["devices"], "devices"))
        ),
    )


def _planned(item: Any, where: str) -> tuple[str, NetworkPlan]:
    entry = strict_json.fields(item, where, "device plan")
    try:
        plan = plan_from_dict(strict_json.typed(entry["plan"], dict, f"{where}.plan"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}.plan is malformed: {error!r}") from error
    return strict_json.text(entry["device"], f"{where}.device"), plan


def encode_attached(network: AttachedNetwork) -> bytes:
    return strict_json.encode(
        {
            "schema": ATTACHED_SCHEMA,
            "uid": network.uid,
            "pod": network.pod,
            "sandbox": network.sandbox,
            "netns": network.netns,
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
                for device in network.devices
            ],
        }
    )


def decode_attached(data: bytes) -> AttachedNetwork:
    """Raises ValueError naming the field that is not as described above."""
    record = strict_json.fields(strict_json.load(data), "record", "schema uid pod sandbox netns devices")
    strict_json.same(record["schema"], ATTACHED_SCHEMA, "schema")
    return AttachedNetwork(
        uid=strict_json.text(record["uid"], "uid"),
        pod=strict_json.text(record["pod"], "pod"),
        sandbox=strict_json.typed(record["sandbox"], str, "sandbox"),
        netns=strict_json.typed(record["netns"], str, "netns"),
        devices=tuple(
            _attached(item, f"devices[{n}]")
            for n, item in enumerate(strict_json.items(record["devices"], "devices"))
        ),
    )


def _attached(item: Any, where: str) -> AttachedDevice:
    entry = strict_json.fields(item, where, "device interface addresses mac rdmaMoved gidReady before")
    before = strict_json.typed(entry["before"], dict, f"{where}.before")
    return AttachedDevice(
        device=strict_json.text(entry["device"], f"{where}.device"),
        interface=strict_json.text(entry["interface"], f"{where}.interface"),
        addresses=strict_json.texts(entry["addresses"], f"{where}.addresses"),
        mac=strict_json.typed(entry["mac"], str, f"{where}.mac"),
        rdma_moved=strict_json.typed(entry["rdmaMoved"], bool, f"{where}.rdmaMoved"),
        gid_ready=strict_json.optional(entry["gidReady"], bool, f"{where}.gidReady"),
        before=tuple(sorted(before.items())),
    )


def read_networks(state: Path, disk: Disk, *, uid: str | None = None) -> tuple[ClaimNetwork, ...]:
    """Every claim with a network to make, or the one. Raises CheckpointError."""
    return _read(state / layout.NETWORK, disk, decode, uid=uid)


def read_attached(state: Path, disk: Disk, *, uid: str | None = None) -> tuple[AttachedNetwork, ...]:
    """Every claim whose network is in a pod, or the one. Raises CheckpointError."""
    return _read(state / layout.ATTACHED, disk, decode_attached, uid=uid)


def _read(folder: Path, disk: Disk, decode: Callable[[bytes], _T], *, uid: str | None) -> tuple[_T, ...]:
    found = []
    try:
        listed = {name: layout.claim_of_file(name) for name in disk.names(folder)}
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
    for name, claim in listed.items():
        if claim is None or uid not in {None, claim}:
            continue
        try:
            data = disk.read(folder / name)
            if data is not None:
                found.append(decode(data))
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{folder / name} is unusable: {error}") from error
    return tuple(found)

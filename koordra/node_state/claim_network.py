"""The network of a claim's pod: what Prepare decided, and what was done in the pod's sandbox.

What is done to a NIC once the network namespace of its pod exists:

    Move      the network interface, and with it the RDMA link where RDMA devices belong to network
              namespaces, moves into the pod and back: a virtual function, or a NIC that the claim has
              exclusively
    Macvlan   the pod gets a macvlan interface on top of the NIC: a share of a RoCE NIC, whose own interface
              is shared
    Attach    a CNI plugin does it, as a NetworkAttachmentDefinition says
    Others    nothing: another network plugin (Multus) has attached it before
    Absent    nothing, though the pod needs an interface of it: nobody makes one on this node

The kubelet plugin decides in Prepare (kubelet_plugin/network/network_decision.py); pod_network.py carries it
out when the sandbox is created.

network/<claim uid>.json, written by Prepare:

    {"schema": "koordra.io/network/v1", "claim": {"namespace": "...", "name": "...", "uid": "..."},
     "pods": ["<pod uid>"],
     "devices": [{"device": "...", "plan": {<NetworkPlan>}}]}

network/attached/<claim uid>.json, written by the process that moves NICs (`koordra nri --pod-network`):

    {"schema": "koordra.io/network-attached/v1", "uid": "...", "pod": "<pod uid>", "sandbox": "...",
     "netns": "...",
     "devices": [{"device": "...", "interface": "...", "addresses": ["..."], "mac": "...", "rdmaMoved": bool,
                  "gidReady": null | bool, "before": {<the interface on the host, as it is restored>}}]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from koordra.errors import CheckpointError
from koordra.node_state import layout, strict_json
from koordra.node_state.claim_ref import CLAIM_REF, ClaimRef
from koordra.node_state.disk import Disk, reported
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import (
    BOOLEAN,
    INTEGER,
    PAIR,
    STRING,
    TEXT,
    Pairs,
    later,
    listed,
    mapping,
    optional,
    plain,
    record,
    word,
)

SCHEMA: Final = "koordra.io/network/v1"
ATTACHED_SCHEMA: Final = "koordra.io/network-attached/v1"

_REMEDY: Final = "check the state directory"
_T = TypeVar("_T")


class NetworkKind(StrEnum):
    MOVE = "Move"
    MACVLAN = "Macvlan"
    ATTACH = "Attach"
    OTHERS = "Others"
    ABSENT = "Absent"

    @property
    def ours(self) -> bool:
        """Whether koordra gives the pod a network interface."""
        return self in {NetworkKind.MOVE, NetworkKind.MACVLAN, NetworkKind.ATTACH}


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """`host_interface` is the NIC's on the host, `interface` its name in the pod. `cni` is the configuration
    of the CNI plugin as JSON text. `routes` are pairs of destination and gateway, which is empty for a route
    on the link. `roce_port` is the port of `ib_device` whose table must have a routable GID in the pod, None
    where none is needed."""

    kind: NetworkKind
    bus_id: str
    host_interface: str
    interface: str
    ib_device: str | None = None
    addresses: tuple[str, ...] = ()
    routes: Pairs = ()
    mtu: int | None = None
    vlan: int | None = None
    pkey: int | None = None
    guid: str | None = None
    cni: str | None = None
    roce_port: int | None = None

    @property
    def has_interface(self) -> bool:
        """Whether the pod gets one: EFA has none, nor has what nobody attaches."""
        return bool(self.host_interface) or self.kind in {NetworkKind.ATTACH, NetworkKind.OTHERS}

    @property
    def needs_gid(self) -> bool:
        return self.kind is not NetworkKind.ABSENT and None not in {self.roce_port, self.ib_device}


NETWORK_PLAN: Final = record(
    NetworkPlan,
    {
        "kind": word(NetworkKind),
        "busID": STRING,
        "hostInterface": STRING,
        "interface": STRING,
        "ibDevice": optional(STRING),
        "addresses": listed(STRING),
        "routes": listed(PAIR),
        "mtu": optional(INTEGER),
        "vlan": optional(INTEGER),
        "pkey": optional(INTEGER),
        "guid": optional(STRING),
        "cni": optional(STRING),
        "rocePort": later(optional(INTEGER), None),
    },
)


class PlannedDevice(NamedTuple):
    device: str
    plan: NetworkPlan


@dataclass(frozen=True, slots=True)
class ClaimNetwork:
    """What is to be done for one claim, by device name. `pods` are the uids of its consumers at Prepare."""

    ref: ClaimRef
    pods: tuple[str, ...]
    plans: tuple[PlannedDevice, ...]

    @property
    def uid(self) -> str:
        return self.ref.uid

    @property
    def interfaces(self) -> Mapping[str, str]:
        """The interfaces that the claim's pod is to have: device name -> name in the pod."""
        return {device: plan.interface for device, plan in self.plans if plan.host_interface}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's sandbox as the runtime reports it. `netns` is a path, empty for a pod on the host's network or
    if unknown."""

    id: str
    pod_uid: str
    pod: str
    namespace: str
    netns: str


@dataclass(frozen=True, slots=True)
class AttachedDevice:
    """One device in a pod: the interface's name there, its addresses and MAC, and how it was on the host.
    `gid_ready` False: all of its claim is attached, and it has no routable GID yet."""

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

    @property
    def waits(self) -> bool:
        """Whether all is there but for addresses."""
        return any(each.gid_ready is False for each in self.devices)


encode, decode = strict_json.document(
    ClaimNetwork,
    SCHEMA,
    {
        "claim": ("ref", CLAIM_REF),
        "pods": listed(TEXT),
        "devices": ("plans", listed(record(PlannedDevice, {"device": TEXT, "plan": NETWORK_PLAN}))),
    },
)
encode_attached, decode_attached = strict_json.document(
    AttachedNetwork,
    ATTACHED_SCHEMA,
    {
        "uid": TEXT,
        "pod": TEXT,
        "sandbox": STRING,
        "netns": STRING,
        "devices": listed(
            record(
                AttachedDevice,
                {
                    "device": TEXT,
                    "interface": STRING,
                    "addresses": listed(TEXT),
                    "mac": STRING,
                    "rdmaMoved": BOOLEAN,
                    "gidReady": optional(BOOLEAN),
                    "before": mapping(plain(object)),
                },
            )
        ),
    },
)
"""Decoders raise ValueError naming the field that is not as described above."""


def read_networks(files: StateFolder, disk: Disk, *, uid: str | None = None) -> tuple[ClaimNetwork, ...]:
    """Every claim with a network to make, or the one. Raises CheckpointError."""
    return _read(files.network, disk, decode, uid=uid)


def read_attached(files: StateFolder, disk: Disk, *, uid: str | None = None) -> tuple[AttachedNetwork, ...]:
    """Every claim whose network is in a pod, or the one. Raises CheckpointError."""
    return _read(files.attached, disk, decode_attached, uid=uid)


def _read(folder: Path, disk: Disk, decode: Callable[[bytes], _T], *, uid: str | None) -> tuple[_T, ...]:
    found = []
    with reported(CheckpointError, folder, "read", remedy=_REMEDY):
        listed = {folder / name: layout.claim_of_file(name) for name in disk.names(folder)}
    for path, claim in listed.items():
        if claim is None or uid not in {None, claim}:
            continue
        with reported(CheckpointError, path, "read", remedy=_REMEDY):
            data = disk.read(path)
        try:
            found += [decode(data)] if data is not None else []
        except ValueError as error:
            raise CheckpointError(f"{path} is unusable: {error}") from error
    return tuple(found)
